"""Failures on demand: each waits in a queue for the next request to `/v1/messages`."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What goes wrong."""

    STATUS = "status"  # an error instead of an answer
    DROP = "drop"  # the connection is closed without a byte
    MALFORMED = "malformed"  # 200, and a body that is no JSON
    CUT = "cut"  # the answer breaks off in the middle
    EVENT = "event"  # an `error` event in the middle of a stream
    STALL = "stall"  # nothing, until the test says `resume()`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure; only the fields of its kind count.

    A fault of kind STATUS, DROP or STALL comes before the brain is asked.
    The others come after it: the provider has worked, and its answer is lost.
    """

    kind: Kind
    status: int = 0
    error: str = ""
    message: str = ""
    retry_after: float | None = None
    after_events: int = 0
