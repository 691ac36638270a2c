"""A summarizer that asks Claude for the state, as JSON of a fixed schema.

Source of the request's form: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
(2026): `output_config.format`, for Claude 4.5 and later. Bounds of lists and strings cannot be part
of a schema there, so the prompt asks for them and `SessionState.decode` sees to them.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final

from .errors import Rejected
from .pieces import Piece, cut, fenced, sampled, tag_for, text_of
from .state import SessionState
from .summarizer import Summary, SummaryInput

_SPARE = 1_500  # tokens of a request beside prompt and data: the schema, the question, roles
_PROMPT_BYTES_A_TOKEN = 3  # it is English prose
_LEAST_DATA = 2_200  # tokens of data in a request; less is no window to summarise in
_BYTES_A_TOKEN = (2.5, 2.0, 1.5, 1.0)  # what is assumed, and what after worse was measured
_STATE_CHARS = 8_000  # of a state that is going to be merged
_STATE_BYTES = 3 * _STATE_CHARS
_FOCUS_CHARS = 400
_REMEMBERED = 256  # states of pieces

_CUT_OFF = ("max_tokens", "model_context_window_exceeded")
_TOO_LONG = re.compile("too long|too large|exceed", re.IGNORECASE)
_USAGE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class ClaudeSummarizer:
    """Asks a Claude model to summarise; may be shared by threads and sessions.

    One call where the new events fit into a request. Otherwise one call a piece, each independent
    of the others and remembered by its digest, then calls that merge the states, with the previous
    state in the last one. Nothing of the events is left out unless `SummaryInput.input_chars` says
    so.

    Args:
        client: an `anthropic.Anthropic`, or another synchronous client with `messages.create`. It
            should be a plain one, no client that compacts. Its own retries are the only ones.
        model: the model's name.
        window: tokens of the model's context window. 200,000 is what every Claude model has that
            knows structured outputs; many have a million.
        max_tokens: most tokens of an answer, thinking included (models that always think count it
            as output); never more than a quarter of the window.
        max_calls: most calls for one summary; a history that needs more is rejected before the
            first.
        timeout: seconds that one call may take.

    Raises:
        ValueError: for a window that leaves no room for data (below about 7,000 tokens).

    """

    name: Final = "claude"

    def __init__(
        self,
        client: Any,
        model: str,
        *,
        window: int = 200_000,
        max_tokens: int = 16_000,
        max_calls: int = 40,
        timeout: float = 300.0,
    ) -> None:
        """Keep what to ask with; nothing is sent."""
        self.model = model
        self.max_calls = max_calls
        self._client = client
        self._output = min(max_tokens, window // 4)
        self._tokens = window - self._output - _overhead()
        self._timeout = timeout
        self._density = 0  # position in `_BYTES_A_TOKEN`
        self._known = _Known(_REMEMBERED)
        if self._tokens < _LEAST_DATA:
            message = f"a window of {window} tokens is too small to summarise in"
            raise ValueError(message)

    def summarize(self, given: SummaryInput) -> Summary:
        """Return a summary of the new events, merged with the previous state.

        Raises:
            Rejected: "error: NAME" for an exception of the client, "refused", "cut off", "empty",
                "not the schema", or "too long" for more than `max_calls`. It carries the calls
                that were made and their usage.

        """
        asked = _Asked()
        try:
            if not given.fresh and given.previous is not None:
                return self._summary(given.previous, asked)
            if given.input_chars is not None:
                return self._of_sample(given, given.input_chars, asked)
            return self._summary(self._of_all(given, asked), asked)
        except Rejected as rejected:
            raise Rejected(rejected.reason, calls=asked.calls, usage=asked.usage) from None

    def _summary(self, state: SessionState, asked: "_Asked", *, read: int = 0, of: int = 0) -> Summary:
        if state.is_empty:
            raise Rejected("empty")
        return Summary(
            state=state,
            by=self.name,
            model=self.model,
            prompt=prompt_version(),
            usage=dict(asked.usage),
            calls=asked.calls,
            read=read,
            given=of,
        )

    def _of_all(self, given: SummaryInput, asked: "_Asked") -> SessionState:
        room = self._room()
        pieces = cut(given.fresh, room.piece)
        if len(pieces) <= 1:
            parts = pieces[0] if pieces else ()
            question = _question(_bounded([given.previous], room), parts, self._chars(given), given)
            return self._ask(question, asked)
        questions = [self._about(piece, room, given) for piece in pieces]
        new = sum(self._known.get(self._key(question)) is None for question in questions)
        merges = room.merges(len(pieces), 1 if given.previous else 0)
        if new + merges > self.max_calls:
            raise Rejected("too long")
        states = [self._of_piece(question, asked) for question in questions]
        return self._merged(states, room, given, asked)

    def _of_sample(self, given: SummaryInput, chars: int, asked: "_Asked") -> Summary:
        """Ask once, about the head and the tail of the events."""
        room = self._room()
        whole = [part for piece in cut(given.fresh, room.piece) for part in piece]
        tag = tag_for(text_of(whole, ""), *_texts(_bounded([given.previous], room)))
        text = text_of(whole, tag)
        seen = sampled(text, chars)
        ...
