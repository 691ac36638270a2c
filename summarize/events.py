"""What happened in a stretch of a history, as plain text, whatever the wire format was."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class What(StrEnum):
    """Who or what an event comes from."""

    HUMAN = "human"  # the human speaks
    HOST = "host"  # what the host put into a user message
    SYSTEM = "system"
    SAID = "said"  # the assistant speaks
    CALLED = "called"  # the assistant calls a tool
    RETURNED = "returned"  # what the tool gave back


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was said, called or given back.

    `message` is the position of its message in the history. `text` is what was said or given back,
    of a call its arguments as JSON; images and documents are named in brackets, thinking is left
    out. `tool` and `call` (an identifier that a call shares with its result) are those of calls and
    results; `arguments` are a call's; `failed` says that a tool reported an error.
    """

    message: int
    what: What
    text: str
    tool: str | None = None
    call: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    failed: bool = False
