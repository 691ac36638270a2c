"""What `Compactor.view` returns: the messages to send, and what was done to get there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .decisions import AnyDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Sizes of a view; tokens are estimates, anchored on real usage where it is known.

    `persisted` and `masked` count the blocks that stand in the view as previews and as lines,
    `archived_messages` and `summarized_messages` the messages that one note stands for.
    `summarizer` names who made the summary in view (None: there is none), and `summary_rejected`
    says why those before it were not taken. `rewritten_tokens` are those of already sent messages
    from the first changed one on, which the provider's cache must take in anew.
    """

    original_chars: int
    view_chars: int
    original_tokens: int
    view_tokens: int
    window: int
    persisted: int
    masked: int
    archived_messages: int
    summarized_messages: int
    rewritten_tokens: int
    summarizer: str | None = None
    summary_rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contributor:
    """A block that takes much of a view: where it stands, what it is, its estimated tokens."""

    message: int
    block: int
    kind: str
    tool: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A compacted copy of the history, to be sent and not to be changed.

    Positions are those of `messages`, which is the caller's own list where nothing is left out.
    `changed` tells whether anything is. `decisions` are those that this call took.
    `rewrites_from` is the first message already sent whose bytes this call changed (None: the
    cached prefix is whole);
    `stable_prefix` counts the leading messages that equal the previous view's, cache marks
    apart. `over_budget` says that the view is too large all the same, and `largest` names what
    takes the room. `unfinished` says that the history ends in a call without its result or in an
    assistant message, so that nothing was planned. `request_hints` are arguments that the request
    needs beside its own, such as a smaller `max_tokens`. `degraded` says why something could not be
    stored; nothing is hidden then that is not stored.
    """

    messages: list[Any]
    changed: bool
    decisions: tuple[AnyDecision, ...]
    rewrites_from: int | None
    stable_prefix: int
    stats: Stats
    over_budget: bool
    largest: tuple[Contributor, ...]
    unfinished: bool
    degraded: str | None
    request_hints: Mapping[str, Any] = field(default_factory=dict)
