"""The proof that a session is what was written: its bytes, and what the engine makes of them.

`compactor.storage.audit` goes through the bytes. On top of it: each lane names the last record of
those before, every prepared view is rebuilt from the transcript, everything that was left out
reads back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from compactor.storage import Kind, StorageError, Vault
from compactor.storage.audit import NEVER_SYNCED
from compactor.storage.findings import Audit, AuditedLane, Finding, Verdict, unopened, worst
from compactor.storage.heads import KnownHead

from .decisions import encode_digest
from .transcript import Transcript

# Is told what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

# Records whose bytes are whole may still make no sense together, where others are missing.
_UNREADABLE = (StorageError, OSError, LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one session.

    `audit` is about its bytes; `findings` are all of them, the engine's too. Of `audit.requests`
    views `views` were rebuilt as they were sent; of `handles` things left out `read` read back.
    """

    audit: Audit
    findings: tuple[Finding, ...]
    views: int = 0
    handles: int = 0
    read: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return worst(finding.verdict for finding in self.findings)


def verify(
    vault: Vault,
    session: str,
    *,
    heads: Sequence[KnownHead] = (),
    progress: Progress | None = None,
) -> Report:
    """Verify one session; `heads` are those that were known before.

    What is wrong with the session is a finding, never an error.

    Raises:
        BadName: for what is no session's name.

    """
    told = progress or (lambda _what, _done, _all: None)
    try:
        with vault.read(session) as reader:
            audit = reader.audit(heads, lambda done, size: told("bytes", done, size))
    except (StorageError, OSError) as error:
        audit = unopened(session, error, heads)
        return Report(audit, audit.findings)
    findings = [_explained(finding, audit) for finding in audit.findings]
    findings += _links(audit.lanes)
    if not any(lane.id for lane in audit.lanes):
        return Report(audit, tuple(findings))
    return _rebuilt(vault, Report(audit, tuple(findings)), told)


def _explained(finding: Finding, audit: Audit) -> Finding:
    """Call it a restart where the whole session was begun anew after the head was known.

    The engine does so when the vault vanished under it: it writes the history anew.
    """
    if finding.head is None or finding.head.session != audit.session:
        return finding
    first = next(iter(audit.lanes), None)
    opened = first.first[1] if first and first.number == 1 and first.first else None
    if not isinstance(opened, dict) or "previous" in opened:
        return finding
    began = opened.get("time")
    if not isinstance(began, int) or began <= finding.head.time:
        return finding
    what = "begun anew after it was last seen: the vault had vanished, or was removed"
    return replace(finding, verdict=Verdict.WHOLE, what=what)


def _links(lanes: Sequence[AuditedLane]) -> Iterator[Finding]:
    """Check that the first record of each lane names the last one of those before it."""
    before: bytes | None = None
    for lane in lanes:
        if lane.first is not None:
            kind, opened = lane.first
            named = opened.get("previous") if isinstance(opened, dict) else None
            what = None
            if kind is not Kind.OPEN:
                what = "the lane does not begin with an open record"
            elif named != (None if before is None else encode_digest(before)):
                what = "another record stood before this lane: one was cut off or replaced"
            if what is not None:
                yield Finding(verdict=Verdict.DAMAGED, what=what, lane=lane.number, first=1, last=1)
        before = lane.last or before


def _rebuilt(vault: Vault, report: Report, told: Progress) -> Report:
    """Rebuild every view, and read everything back that was left out."""
    audit, findings = report.audit, list(report.findings)
    # What a power cut left of records that were never synced is an open tail here, too.
    verdict = Verdict.DAMAGED
    if any(finding.verdict is Verdict.UNREADABLE for finding in findings):
        verdict = Verdict.UNREADABLE
    elif any(finding.what.endswith(NEVER_SYNCED) for finding in findings):
        verdict = Verdict.OPEN
    views = read = 0
    with Transcript(vault.read(audit.session)) as transcript:
        try:
            for request in transcript.requests():
                views += request.whole
                if not request.whole:
                    what = f"view {request.number} is not rebuilt as it was sent"
                    findings.append(Finding(verdict=verdict, what=what))
                told("views", request.number, audit.requests)
        except _UNREADABLE:
            what = "views behind a record that does not open, or is missing, cannot be rebuilt"
            findings.append(Finding(verdict=verdict, what=what))
        handles = _handles(transcript, audit.records)
        for number, handle in enumerate(handles, 1):
            try:
                transcript.read(handle)
                read += 1
            except _UNREADABLE:
                what = f"part {number} of {len(handles)} left out does not read back"
                findings.append(Finding(verdict=verdict, what=what))
            told("parts left out", number, len(handles))
    return Report(audit, tuple(findings), views, len(handles), read)


def _handles(transcript: Transcript, records: int) -> list[str]:
    """Return all handles; each call goes on behind the record that the last one stopped at."""
    for _ in range(records + 1):
        with suppress(*_UNREADABLE):
            return transcript.handles()
    return []


def data(report: Report) -> dict[str, Any]:
    """Return a report as JSON values."""
    audit = report.audit
    names = ("records", "requests", "blobs", "unreferenced", "temporaries", "read", "compared")
    return {
        "session": audit.session,
        "verdict": report.verdict.value,
        "lanes": len(audit.lanes),
        **{name: getattr(audit, name) for name in names},
        "views": report.views,
        "handles": report.handles,
        "handles_read": report.read,
        "findings": [_finding_data(finding) for finding in report.findings],
        "head": audit.head.line() if audit.head else None,
    }


def _finding_data(finding: Finding) -> dict[str, Any]:
    names = ("what", "lane", "first", "last", "offset", "size", "blob")
    places = {name: getattr(finding, name) for name in names}
    known = {"head": finding.head.line() if finding.head else None}
    made = {"verdict": finding.verdict.value, **places, **known}
    return {name: value for name, value in made.items() if value is not None}
