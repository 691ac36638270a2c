"""A summarizer that asks Claude for the state, as JSON of a fixed schema.

Source of the form of a request, for Claude 4.5 and later (2026), `output_config.format` in
https://platform.claude.com/docs/en/build-with-claude/structured-outputs. A schema cannot bound
lists and strings there: the prompt asks for bounds and `SessionState.decode` sees to them.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final, Self

from .errors import Rejected
from .pieces import Part, cut, fenced, sampled, tag_for, text_of
from .state import SessionState
from .summarizer import Summary, SummaryInput

_BYTES_A_TOKEN = (2.5, 2.0, 1.5, 1.0)  # what is assumed, and what after a worse measurement
_PROMPT_BYTES_A_TOKEN = 3  # the prompt is English prose
_SPARE = 1_500  # tokens of a request beside prompt and data: schema, question, fences
_LEAST_DATA = 2_800  # tokens that must be left for data
_MERGED_CHARS = 8_000  # of a state that is going to be merged
_FOCUS_CHARS = 400
_REMEMBERED = 256  # answers

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_USAGE = (*_INPUT, "output_tokens")
_CUT_OFF = ("max_tokens", "model_context_window_exceeded")
_TOO_LONG = re.compile("too long|too large|exceed", re.IGNORECASE)


class ClaudeSummarizer:
    """Asks a Claude model for a summary; threads and sessions may share it.

    One call where the new events fit into a request. Otherwise a call for each piece of them,
    independent of the others and remembered, then calls that merge the states of the pieces, the
    last one with the previous state. All events are read, unless `SummaryInput.input_chars` says
    otherwise. No lock is held during a call.

    Args:
        client: an `anthropic.Anthropic`, or another synchronous client with `messages.create`; a
            plain one, not one that compacts. The retries are its own.
        model: the model to ask, whatever model the session talks to.
        window: tokens of its context window. All Claude models that know structured outputs have
            200,000; for those that have a million, saying so saves calls.
        max_tokens: most tokens of an answer, with its thinking; at most a quarter of the window.
        max_calls: most calls for one summary. What needs more is rejected before the first.
        timeout: seconds that one try of a call may take.

    Raises:
        ValueError: where the window leaves no room for data (below about 7,500 tokens).

    """

    name: Final = "claude"

    def __init__(  # noqa: PLR0913 - the limits are named, and have defaults
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
        self._client = client
        self._output = min(max_tokens, window // 4)
        self._data = window - self._output - _overhead()
        self._max_calls = max_calls
        self._timeout = timeout
        self._known = _Answers()
        self._worse = 0  # position in _BYTES_A_TOKEN; a race of two threads costs one more step
        if self._data < _LEAST_DATA:
            message = f"a window of {window} tokens leaves no room to summarise in"
            raise ValueError(message)

    def summarize(self, given: SummaryInput) -> Summary:
        """Return a summary of the new events, merged with the previous state.

        Raises:
            Rejected: with "error: NAME" for what the client raised, "refused", "cut off", "empty",
                "not the schema", or "too long" where `max_calls` would not do; it carries the
                calls that were made and their usage.

        """
        spent = _Spent()
        room = _Room.of(self._data * _BYTES_A_TOKEN[self._worse])
        try:
            if not given.fresh:
                return self._summary(given.previous or SessionState(), spent)
            if given.input_chars is not None:
                return self._of_sample(given, given.input_chars, room, spent)
            return self._summary(self._of_all(given, room, spent), spent)
        except Rejected as rejected:
            raise Rejected(rejected.reason, calls=spent.calls, usage=spent.usage) from None

    def _summary(self, state: SessionState, spent: "_Spent", read: int = 0, of: int = 0) -> Summary:
        if state.is_empty:
            reason = "empty"
            raise Rejected(reason)
        return Summary(
            state=state,
            by=self.name,
            model=self.model,
            prompt=prompt_version(),
            usage=spent.usage,
            calls=spent.calls,
            read=read,
            given=of,
        )

    def _of_sample(
        self, given: SummaryInput, chars: int, room: "_Room", spent: "_Spent"
    ) -> Summary:
        """Ask once, about the head and the tail of the events."""
        parts = [part for piece in cut(given.fresh, room.piece) for part in piece]
        chars = min(chars, room.piece // 4)  # that many fit in any script
        before = room.held(given.previous)
        question = _question(before, parts, self._asked(given), given.focus, chars)
        state = self._ask(question, spent).fitted(given.state_chars)
        size = len(text_of(parts, ""))
        return self._summary(state, spent, *((chars, size) if size > chars else ()))

    def _of_all(self, given: SummaryInput, room: "_Room", spent: "_Spent") -> SessionState:
        before = room.held(given.previous)
        pieces = cut(given.fresh, room.piece)
        if len(pieces) == 1:
            question = _question(before, pieces[0], self._asked(given), given.focus)
            return self._ask(question, spent).fitted(given.state_chars)
        chars = room.merged_chars(self._output)
        questions = [_question((), piece, chars, given.focus) for piece in pieces]
        unknown = sum(self._known.get(self._key(question)) is None for question in questions)
        if unknown + room.merges(len(pieces), len(before)) > self._max_calls:
            reason = "too long"
            raise Rejected(reason)
        states = [self._recall(question, room, spent) for question in questions]
        states = [state for state in states if not state.is_empty]
        while _sizes(before) + _sizes(states) > room.data:
            states = [
                self._recall(_question(group, (), chars, given.focus), room, spent)
                if len(group) > 1
                else group[0]
                for group in room.groups(states)
            ]
        final = _question((*before, *states), (), self._asked(given), given.focus)
        return self._ask(final, spent).fitted(given.state_chars)

    def _asked(self, given: SummaryInput) -> int:
        """Return the characters to ask for: one a token leaves room for any script and thoughts."""
        return min(given.state_chars, self._output)

    def _recall(self, question: str, room: "_Room", spent: "_Spent") -> SessionState:
        """Ask what is asked again when the history has grown; the answer is remembered."""
        key = self._key(question)
        state = self._known.get(key)
        if state is None:
            state = self._ask(question, spent)
            self._known.put(key, state)
        return room.held(state)[0]

    def _key(self, question: str) -> bytes:
        asked = f"{self.model}\0{prompt_version()}\0{question}"
        return hashlib.sha256(asked.encode()).digest()

    def _ask(self, question: str, spent: "_Spent") -> SessionState:
        spent.calls += 1
        try:
            reply = self._client.messages.create(
                model=self.model,
                max_tokens=self._output,
                system=prompt(),
                messages=[{"role": "user", "content": question}],
                output_config={"format": {"type": "json_schema", "schema": schema()}},
                timeout=self._timeout,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it may quote the conversation
            if getattr(error, "status_code", 0) in (400, 413) and _TOO_LONG.search(str(error)):
                self._assume(self._worse + 1)
            reason = f"error: {type(error).__name__}"
            raise Rejected(reason) from None
        spent.add(getattr(reply, "usage", None))
        self._measure(len(question.encode()), getattr(reply, "usage", None))
        return _read(reply)

    def _measure(self, size: int, usage: object) -> None:
        """Learn from what a request of `size` bytes has measured.

        Only for the worse: larger pieces would be other pieces, and all answers be forgotten.
        """
        tokens = sum(_counted(usage, name) for name in _INPUT) - _overhead()
        while tokens * _BYTES_A_TOKEN[self._worse] > size and self._worse + 1 < len(_BYTES_A_TOKEN):
            self._assume(self._worse + 1)

    def _assume(self, worse: int) -> None:
        self._worse = min(worse, len(_BYTES_A_TOKEN) - 1)


@dataclass(frozen=True, slots=True)
class _Room:
    """What a request has room for, in bytes: `data` in all, for a `state`, for a `piece`."""

    data: int
    state: int
    piece: int

    @classmethod
    def of(cls, data: float) -> Self:
        state = min(3 * _MERGED_CHARS, int(data) // 4)  # three bytes a character: any script
        return cls(int(data), state, int(data) - state)

    def merged_chars(self, output: int) -> int:
        """Return the characters to ask for in a state that is going to be merged."""
        return min(_MERGED_CHARS, output, self.state // 2)

    def held(self, state: SessionState | None) -> tuple[SessionState, ...]:
        """Return the state, made to fit; none for None."""
        if state is None:
            return ()
        while (size := _sizes([state])) > self.state and not state.is_empty:
            state = state.fitted(state.chars * self.state // size)
        return (state,)

    def groups(self, states: Sequence[SessionState]) -> Iterator[list[SessionState]]:
        """Give neighbours that fit into one request."""
        group: list[SessionState] = []
        for state in states:
            if _sizes([*group, state]) > self.data:
                yield group
                group = []
            group.append(state)
        yield group

    def merges(self, states: int, before: int) -> int:
        """Return how many calls at most it takes to make one of so many states."""
        group = self.data // self.state
        calls = 0
        while states + before > group:
            states = -(-states // group)
            calls += states
        return calls + 1


@dataclass(slots=True)
class _Spent:
    """Calls made for one summary, and what the provider reported for them."""

    calls: int = 0
    usage: dict[str, int] = field(default_factory=dict)

    def add(self, usage: object) -> None:
        for name in _USAGE:
            if count := _counted(usage, name):
                self.usage[name] = self.usage.get(name, 0) + count


class _Answers:
    """The states that were used last, by the digest of the question. The lock is for this only."""

    def __init__(self) -> None:
        self._states: dict[bytes, SessionState] = {}
        self._lock = threading.Lock()

    def get(self, key: bytes) -> SessionState | None:
        with self._lock:
            state = self._states.pop(key, None)
            if state is not None:
                self._states[key] = state  # the last place is that of the latest use
            return state

    def put(self, key: bytes, state: SessionState) -> None:
        with self._lock:
            self._states[key] = state
            while len(self._states) > _REMEMBERED:
                del self._states[next(iter(self._states))]


@cache
def prompt() -> str:
    """Return the system prompt, `prompt.md`."""
    return files("compactor.summarize").joinpath("prompt.md").read_text("utf-8")


@cache
def prompt_version() -> str:
    """Return twelve digits that change with the prompt or the schema."""
    return hashlib.sha256((prompt() + json.dumps(schema())).encode()).hexdigest()[:12]


def schema() -> dict[str, Any]:
    """Return the JSON schema of a state: every field is there, and no other."""
    text = {"type": "string"}
    kinds = {
        one.name: {"type": "array", "items": text} if isinstance(one.default, tuple) else text
        for one in fields(SessionState)
    }
    return {
        "type": "object",
        "properties": kinds,
        "required": list(kinds),
        "additionalProperties": False,
    }


def _overhead() -> int:
    """Return the tokens that a request takes beside its data."""
    return _SPARE + len(prompt().encode()) // _PROMPT_BYTES_A_TOKEN


def _question(
    states: Sequence[SessionState],
    parts: Sequence[Part],
    chars: int,
    focus: str | None = None,
    sample: int | None = None,
) -> str:
    """Return the request: the data in its fences, and after it what to do, out of its reach.

    A digest of it stands for the answer, so nothing else may decide what is asked.
    """
    written = [_json(state) for state in states]
    tag = tag_for(*written, *(f"{part.header}\n{part.text}" for part in parts))
    data = [fenced("state", text, tag) for text in written]
    if parts:
        text = text_of(parts, tag)
        data.append(fenced("events", text if sample is None else sampled(text, sample), tag))
    asked = f"Write the state after all of this, in at most {chars} characters."
    if focus and focus.strip():
        about = json.dumps(" ".join(focus.split())[:_FOCUS_CHARS], ensure_ascii=False)
        asked += f" Look at this in particular: {about}"
    return "".join([*data, asked])


def _read(reply: object) -> SessionState:
    """Return the state that an answer holds.

    Raises:
        Rejected: where it holds none.

    """
    stopped = getattr(reply, "stop_reason", None)
    blocks = getattr(reply, "content", None) or ()
    text = "".join(block.text for block in blocks if block.type == "text")
    reason = "not the schema"
    if stopped == "refusal":
        reason = "refused"
    elif stopped in _CUT_OFF:
        reason = "cut off"
    elif not text.strip():
        reason = "empty"
    else:
        try:
            return SessionState.decode(json.loads(text))
        except (ValueError, RecursionError):
            pass
    raise Rejected(reason)


def _json(state: SessionState) -> str:
    return json.dumps(state.encode(), ensure_ascii=False)


def _sizes(states: Sequence[SessionState]) -> int:
    """Return the bytes of states in a request, fences included."""
    return sum(len(fenced("state", _json(state), "x" * 8).encode()) for state in states)


def _counted(usage: object, name: str) -> int:
    count = getattr(usage, name, None)
    return count if isinstance(count, int) else 0
