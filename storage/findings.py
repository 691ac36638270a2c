"""What an audit finds in a session, and what that makes of it."""

import enum
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .errors import Damaged, MissingKey, NoTranscript, StorageError, WrongKey
from .heads import KnownHead
from .records import JSON, Kind


class Verdict(enum.StrEnum):
    """What a finding makes of its session, from best to worst."""

    WHOLE = "whole"  # of a finding: a remark
    IN_USE = "open, in use"
    OPEN = "open tail"
    MISSING_KEY = "missing key"
    WRONG_KEY = "wrong key"
    UNREADABLE = "unreadable"
    OLDER = "older than last seen"
    DAMAGED = "damaged"


_RANK: Final = {verdict: rank for rank, verdict in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; of none, `WHOLE`."""
    return max(verdicts, key=_RANK.__getitem__, default=Verdict.WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as a closed session's is, and where.

    `what` says it without content. `lane` is the lane's number, `first` and `last` are sequence
    numbers in it, `offset` and `size` bytes of its file; `blob` is a blob's name; `head` the
    known head that says so.
    """

    verdict: Verdict
    what: str
    lane: int | None = None
    first: int | None = None
    last: int | None = None
    offset: int | None = None
    size: int | None = None
    blob: str | None = None
    head: KnownHead | None = None

    def goes_on(self, other: "Finding") -> bool:
        """Tell whether `other` says the same of the records and bytes right behind."""
        places = (self.offset, self.size, self.last, other.first, other.last)
        return (
            None not in places
            and (self.verdict, self.what, self.lane) == (other.verdict, other.what, other.lane)
            and other.first == (self.last or 0) + 1
            and other.offset == (self.offset or 0) + (self.size or 0)
        )


@dataclass(frozen=True, slots=True)
class AuditedLane:
    """What was found in one lane.

    `id` is None where no copy of the header opens. `first` is the kind and, for an open record,
    the value of the record with number 1 (None where it does not open). `last` is the SHA-256 of
    the last whole frame. `closed` tells whether a close record ends it.
    """

    number: int
    id: str | None
    records: int
    first: tuple[Kind, JSON] | None
    last: bytes | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """The result for one session.

    `records`, `blobs` and `requests` count what opens; `unreferenced` blobs are named by no
    record and `temporaries` are half-written files (a killed writer leaves both); `read` is in
    bytes, of blobs their content. `compared` counts the known heads that were looked for, `head`
    is the newest one now.
    """

    session: str
    findings: tuple[Finding, ...]
    lanes: tuple[AuditedLane, ...] = ()
    records: int = 0
    requests: int = 0
    blobs: int = 0
    unreferenced: int = 0
    temporaries: int = 0
    read: int = 0
    compared: int = 0
    head: KnownHead | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return worst(finding.verdict for finding in self.findings)


def finding(verdict: Verdict, what: str, **where: int | str | KnownHead | None) -> Finding:
    """Make a finding from places that were put together."""
    return Finding(verdict=verdict, what=what, **where)  # type: ignore[arg-type]


def unopened(session: str, error: Exception, heads: Sequence[KnownHead] = ()) -> Audit:
    """Make the result for a session that could not be opened at all."""
    kinds: dict[type[Exception], Verdict] = {
        MissingKey: Verdict.MISSING_KEY,
        WrongKey: Verdict.WRONG_KEY,
        Damaged: Verdict.DAMAGED,
        NoTranscript: Verdict.OLDER if heads else Verdict.UNREADABLE,
    }
    verdict = next((kinds[kind] for kind in kinds if isinstance(error, kind)), Verdict.UNREADABLE)
    head = heads[0] if heads and verdict is Verdict.OLDER else None
    what = "the session is gone" if head else reason(error)
    return Audit(session, (Finding(verdict=verdict, what=what, head=head),), compared=len(heads))


def reason(error: Exception) -> str:
    """Say what the system or this package says; neither holds content."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, StorageError):
        return os.strerror(error.errno)
    return str(error)
