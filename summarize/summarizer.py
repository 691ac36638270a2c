"""The interface of summarizers: what they are given, and what they give back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .events import Event
from .state import SessionState


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryInput:
    """A stretch of a history to be summarised.

    `events`: all of it, oldest first. `previous`: the state of an earlier summary, which stands for
    the events before position `new_from` of `events` (None: there is none, or it is to be made
    anew from everything, against drift). `state_chars`: characters that the state may take.
    `input_chars`: of longer text that many characters are read, the first quarter at its start and
    the rest at its end (None: all of it). `focus`: what this one summary should look at, in the
    words of who asked for it.
    """

    events: Sequence[Event]
    previous: SessionState | None = None
    new_from: int = 0
    state_chars: int = 8_000
    input_chars: int | None = None
    focus: str | None = None

    @property
    def fresh(self) -> Sequence[Event]:
        """The events that no earlier state stands for."""
        return self.events if self.previous is None else self.events[self.new_from :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a summarizer made: the state, and how it was made.

    `by` names the summarizer, `model` and `prompt` (a version) what it asked with. `usage` adds up
    what the provider reported for all `calls`. `read` counts the characters of events that it read
    of `given`, where it left some out.
    """

    state: SessionState
    by: str
    model: str | None = None
    prompt: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict, hash=False)
    calls: int = 0
    read: int = 0
    given: int = 0

    def encode(self) -> dict[str, Any]:
        """Encode as a JSON object, the state included; what is empty is left out."""
        values: dict[str, Any] = {
            "state": self.state.encode(),
            "by": self.by,
            "model": self.model,
            "prompt": self.prompt,
            "usage": dict(self.usage),
            "calls": self.calls,
            "read": self.read,
            "given": self.given,
        }
        return {name: value for name, value in values.items() if value or name == "state"}


class Summarizer(Protocol):
    """Makes a state of a stretch of a history. Called without a lock held, in any thread."""

    @property
    def name(self) -> str:
        """What records and reports call it."""

    def summarize(self, given: SummaryInput) -> Summary:
        """Return a summary.

        Raises:
            Rejected: where what was made cannot be used.
            Exception: anything else counts as a failure too.

        """
