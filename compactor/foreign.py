"""Whose request it is: the conversation's own, or one that its host sends beside it.

Hosts use one client for all they ask: titles, classifiers, probes, other agents. To take such a
request for a rewind would lose the conversation's views; to miss one's own would send it whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .decisions import RangeDecision
from .messages import JsonObject, plain
from .render import Renderer

_NEWEST = 32  # messages of the history
_CARRIED = 4  # assistant messages of a request


@dataclass(frozen=True, slots=True)
class _Known:
    """A conversation: its first message, digests of what may stand there, and of newest replies."""

    first: JsonObject
    starts: frozenset[bytes]
    newest: frozenset[bytes]
    length: int


class Recognizer:
    """Tells a conversation's own requests from others. Not for several threads at once."""

    def __init__(self, *, resumed: bool) -> None:
        """Know nothing; of a resumed session the transcript has the history."""
        self._resumed = resumed
        self._recalled: _Known | None = None
        self._has_tools = resumed  # as nearly all have

    def is_own(
        self,
        request: Mapping[str, Any],
        renderer: Renderer,
        recall: Callable[[], list[JsonObject]],
    ) -> bool:
        """Tell whether a request goes on with the conversation of this view.

        It does where its first message is the conversation's, or is what a view in force begins
        with, or where it carries on the newest replies behind another beginning. One that comes
        without the conversation's tools and is shorter asks for something else about it (a title).
        The first request of all is the conversation's; if it was a single message without tools,
        and one with tools follows, that one is.
        """
        messages, has_tools = request.get("messages"), bool(request.get("tools"))
        if not (isinstance(messages, list) and messages and isinstance(messages[0], dict)):
            return False
        own = self._is_own(messages, has_tools, renderer, recall)
        self._has_tools = self._has_tools or (own and has_tools)
        return own

    def _is_own(
        self,
        messages: list[Any],
        has_tools: bool,  # noqa: FBT001
        renderer: Renderer,
        recall: Callable[[], list[JsonObject]],
    ) -> bool:
        known = self._known(renderer, recall)
        if known is None:
            return True
        lacks_tools = self._has_tools and not has_tools
        digest = _digest(renderer)
        if not (lacks_tools and len(messages) < known.length):
            if messages[0] == known.first or digest(messages[0]) in known.starts:
                return True
            if known.length == 1 and has_tools and not self._has_tools:
                return True
        replies = islice(filter(_is_reply, reversed(messages)), _CARRIED)
        return any(digest(one) in known.newest for one in replies)

    def _known(self, renderer: Renderer, recall: Callable[[], list[JsonObject]]) -> _Known | None:
        index = renderer.index
        if len(index):
            first = {index.messages[0].digest, *(facts.digest for facts in renderer.facts(0))}
            newest = [one.digest for one in index.messages[-_NEWEST:] if one.role == "assistant"]
            return _Known(index.plain[0], frozenset(first), frozenset(newest), len(index))
        if self._resumed and self._recalled is None:
            self._recalled = _recalled(renderer, recall())
        return self._recalled


def _recalled(renderer: Renderer, history: list[JsonObject]) -> _Known | None:
    """Say what is known of a conversation from its transcript; None where that has no message."""
    if not history:
        return None
    digest = _digest(renderer)
    notes = [
        decision.messages[0]
        for one in renderer.ledger.sets
        for decision in one.decisions
        if isinstance(decision, RangeDecision) and decision.span.start == 0
    ]
    newest = filter(_is_reply, history[-_NEWEST:])
    starts = frozenset(map(digest, [history[0], *notes]))
    return _Known(history[0], starts, frozenset(map(digest, newest)), len(history))


def _digest(renderer: Renderer) -> Callable[[JsonObject], bytes]:
    return lambda message: renderer.index.digest(plain(message))


def _is_reply(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"
