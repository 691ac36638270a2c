"""Go through all bytes of a session and say what is wrong, where, and what it means.

One pass, holding one record and a piece of a blob at a time: every copy of a lane's
header, every record (it opens, follows the one before it, its number is the next),
every blob that a record names, and the heads that were known before.
"""

import contextlib
import datetime as dt
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from . import files
from .blobs import Blob
from .errors import Damaged, UnsafePath, WrongKey
from .files import Folder
from .findings import Audit, AuditedLane, Finding, Verdict, finding, reason
from .frames import (
    FIRST_FRAME,
    HEAD_SIZE,
    HEADER_SIZE,
    Head,
    digest,
    open_frame,
    open_header,
    whole_header,
)
from .heads import KnownHead, load_store_file
from .lanes import lane_name, lane_numbers
from .locks import has_writer
from .names import b32
from .records import JSON, Kind, decode
from .scan import TORN, Gap, lane_id, walk
from .sealing import SessionKeys

NEVER_SYNCED = " (never synced)"
_STORE_CHANGED = "STORE.json is not as it was written"
_WINDOW = 1024 * 1024  # bytes searched at a time for what is not zero

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class _Lane:
    """One lane while it is gone through."""

    number: int
    heads: list[KnownHead]  # those that are looked for in it
    id: str | None = None
    header: bytes | None = None
    before: bytes | None = None  # what the next record must follow; None: nobody knows
    seq: int = 0
    end: int = FIRST_FRAME
    records: int = 0
    first: tuple[Kind, JSON] | None = None
    last: bytes | None = None
    closed: bool = False
    synced: KnownHead | None = None  # the newest of the heads that name this very lane
    replaced: set[KnownHead] = field(default_factory=set)  # another record has their number
    faults: list[Finding] = field(default_factory=list)

    def add(self, fault: Finding) -> None:
        """Keep a finding, joined with the last one where it goes on from it."""
        held = self.faults[-1] if self.faults else None
        border = self.synced.seq if self.synced else None
        if held is not None and held.last != border and held.goes_on(fault):
            size = (held.size or 0) + (fault.size or 0)
            self.faults[-1] = replace(held, last=fault.last, size=size)
        else:
            self.faults.append(fault)


class Auditor:
    """Audits one session, once. `heads` were known before; `progress` is told bytes of lanes."""

    def __init__(
        self,
        folder: Folder,
        keys: SessionKeys,
        heads: Sequence[KnownHead] = (),
        progress: Progress | None = None,
    ) -> None:
        """Look at the session in `folder`, which stays the caller's."""
        self._folder, self._keys, self._heads = folder, keys, heads
        self._progress = progress or (lambda _done, _all: None)
        self._findings: list[Finding] = []
        self._blobs: Folder | None = None
        self._good: set[str] = set()
        self._bad: dict[str, Finding] = {}
        self._read = self._done = self._all = self._requests = 0
        self._wrong: list[int] = []
        self._store_file = ""

    def run(self) -> Audit:
        """Go through everything. Raises `UnsafePath` and `OSError` for the folders only."""
        # Before anything is read: a writer that closes meanwhile is not a crashed one.
        in_use = has_writer(self._folder)
        self._look_at_store()
        numbers = lane_numbers(self._folder)
        for number in sorted({*range(1, max(numbers, default=0))} - {*numbers}):
            self._find(Verdict.DAMAGED, "the lane is missing", lane=number)
        self._all = sum(self._size(number) for number in numbers)
        with contextlib.suppress(FileNotFoundError):
            self._blobs = self._folder.enter("blobs")
        try:
            newest = numbers[-1:] if in_use else []
            lanes = [self._lane(number, in_use=number in newest) for number in numbers]
            unreferenced, temporaries = self._count_files()
        finally:
            if self._blobs is not None:
                self._blobs.close()
        self._judge_keys(lanes)
        for lane in lanes:
            self._compare_store(lane)
        for head in self._heads:
            self._compare(head, {lane.number: lane for lane in lanes})
        return Audit(
            session=self._keys.session,
            findings=tuple(self._findings),
            lanes=tuple(
                AuditedLane(lane.number, lane.id, lane.records, lane.first, lane.last, lane.closed)
                for lane in lanes
            ),
            records=sum(lane.records for lane in lanes),
            requests=self._requests,
            blobs=len(self._good),
            unreferenced=unreferenced,
            temporaries=temporaries,
            read=self._read,
            compared=len(self._heads),
            head=self._head(lanes),
        )

    def _find(self, verdict: Verdict, what: str, **where: int | str | KnownHead | None) -> None:
        self._findings.append(finding(verdict, what, **where))

    def _look_at_store(self) -> None:
        """STORE.json is in clear: it must be spelled as it is written."""
        data = load_store_file(self._folder)
        try:
            record = json.loads(data)
            spelled = json.dumps(record).encode() + b"\n" == data
            created = dt.datetime.fromisoformat(record["created"])
            whole = spelled and [*record] == ["format", "store_id", "created"] and created.tzinfo
        except (ValueError, LookupError, TypeError, RecursionError):
            whole = None
        if not whole:
            self._find(Verdict.DAMAGED, _STORE_CHANGED)
        self._store_file = hashlib.sha256(data).hexdigest()

    def _size(self, number: int) -> int:
        with contextlib.suppress(UnsafePath, OSError):
            fd = self._folder.open_file(lane_name(number))
            try:
                return files.size_of(fd)
            finally:
                files.close(fd)
        return 0

    def _lane(self, number: int, *, in_use: bool) -> _Lane:
        heads = [head for head in self._heads if head.lane == number]
        lane = _Lane(number, [head for head in heads if head.store == b32(self._keys.store)])
        try:
            fd = self._folder.open_file(lane_name(number))
        except FileNotFoundError:
            # A writer that wrote nothing removed it meanwhile.
            return lane
        except (UnsafePath, OSError) as error:
            self._find(Verdict.UNREADABLE, reason(error), lane=number)
            return lane
        try:
            self._read_lane(lane, fd, in_use=in_use)
        except OSError as error:
            self._find(Verdict.UNREADABLE, reason(error), lane=number, first=lane.seq + 1)
        finally:
            files.close(fd)
        self._findings += [self._excused(lane, fault) for fault in lane.faults]
        return lane

    def _read_lane(self, lane: _Lane, fd: int, *, in_use: bool) -> None:
        size, done = files.size_of(fd), self._done
        self._read += size
        opened = Verdict.IN_USE if in_use else Verdict.OPEN
        if size < FIRST_FRAME:
            lane.add(finding(opened, "torn header", lane=lane.number, offset=0, size=size))
            return
        self._open_header(lane, files.read_at(fd, FIRST_FRAME, 0))
        torn = False
        for piece in walk(fd, lane.number, (FIRST_FRAME, 0), size):
            if isinstance(piece, Gap):
                torn = piece.why == TORN
                self._gap(lane, fd, piece, opened)
            else:
                offset, head = piece
                self._record(lane, head, offset, files.read_at(fd, head.size, offset))
                self._progress(done + lane.end, self._all)
        self._done = done + size
        self._progress(self._done, self._all)
        if not lane.closed and not torn and lane.header is not None:
            what = "no close record"
            lane.add(finding(opened, what, lane=lane.number, first=lane.seq + 1))

    def _open_header(self, lane: _Lane, start: bytes) -> None:
        where = f"lane {lane.number}"
        try:
            lane.header = open_header(self._keys, lane.number, start, where=where)
        except WrongKey:
            self._wrong.append(lane.number)
            return
        except Damaged as error:
            self._find(Verdict.DAMAGED, str(error), lane=lane.number, offset=0, size=FIRST_FRAME)
            return
        lane.before, name = digest(lane.header), lane_id(start)
        lane.id = None if name is None else b32(name)
        named = [head for head in lane.heads if head.lane_id == lane.id]
        lane.synced = max(named, key=lambda head: head.seq, default=None)
        for offset in (0, HEADER_SIZE):
            copy = start[offset : offset + HEADER_SIZE]
            if copy != lane.header or not whole_header(copy):
                what = "one of two copies of the header is damaged; nothing is lost"
                place = {"lane": lane.number, "offset": offset, "size": HEADER_SIZE}
                self._find(Verdict.DAMAGED, what, **place)

    def _gap(self, lane: _Lane, fd: int, gap: Gap, opened: Verdict) -> None:
        lane.before = None
        first = lane.seq + 1 if gap.records else None
        last = lane.seq + gap.records if gap.records else None
        verdict, what = Verdict.DAMAGED, gap.why
        if gap.why == TORN:
            if lane.closed:
                what = "bytes behind the close record"
            elif _is_cut_short(fd, gap, lane.seq):
                verdict = opened
            else:
                what = "damaged bytes at the end"
            first = lane.seq + 1
        place = {"lane": lane.number, "offset": gap.offset, "size": gap.size}
        lane.add(finding(verdict, what, **place, first=first, last=last))

    def _record(self, lane: _Lane, head: Head, offset: int, frame: bytes) -> None:
        lane.seq, lane.end, lane.closed = head.seq, offset + head.size, False
        before, lane.before, lane.last = lane.before, None, digest(frame)
        if lane.header is None:
            return
        place = {"lane": lane.number, "first": head.seq, "last": head.seq}
        place |= {"offset": offset, "size": head.size}
        where = f"record {head.seq} of lane {lane.number}"
        names: list[str] = []
        try:
            its, body = open_frame(self._keys, lane.header, head, frame, where=where)
            kind = Kind(head.kind)
            value = decode(body, _noting(names), where=where)
        except Damaged:
            lane.add(finding(Verdict.DAMAGED, "does not open", **place))
            return
        except ValueError:
            what = "a kind of record that this version does not know"
            lane.add(finding(Verdict.DAMAGED, what, **place))
            return
        if before is not None and its != before:
            what = "does not follow the record before it"
            lane.add(finding(Verdict.DAMAGED, what, **place))
        lane.before = lane.last
        lane.records += 1
        self._requests += kind is Kind.REQUEST
        lane.closed = kind is Kind.CLOSE
        if head.seq == 1:
            lane.first = kind, value if kind is Kind.OPEN else None
        for name in names:
            if fault := self._blob(name):
                lane.add(replace(fault, lane=lane.number, first=head.seq, last=head.seq))
        for known in lane.heads:
            same_place = (known.lane_id, known.seq) == (lane.id, head.seq)
            if same_place and known.digest != lane.last.hex():
                lane.replaced.add(known)

    def _blob(self, name: str) -> Finding | None:
        """Return what is wrong with a blob; each is read once."""
        if name in self._good:
            return None
        if name not in self._bad:
            try:
                if self._blobs is None:
                    return finding(Verdict.DAMAGED, "the blob is missing", blob=name)
                with Blob.open(self._blobs, self._keys, name) as blob:
                    for page in blob.pages():
                        self._read += len(page)
            except Damaged as error:
                self._bad[name] = finding(Verdict.DAMAGED, str(error), blob=name)
            except (UnsafePath, OSError) as error:
                self._bad[name] = finding(Verdict.UNREADABLE, reason(error), blob=name)
            else:
                self._good.add(name)
        return self._bad.get(name)

    def _excused(self, lane: _Lane, fault: Finding) -> Finding:
        """Call what a power cut may do to records that were never synced an open tail.

        That is known only where a head names this lane and the lane is not closed.
        """
        known = lane.synced
        if lane.closed or known is None or fault.verdict is not Verdict.DAMAGED:
            return fault
        if (fault.first or 0) <= known.seq and (fault.offset or 0) < known.size:
            return fault
        return replace(fault, verdict=Verdict.OPEN, what=fault.what + NEVER_SYNCED)

    def _count_files(self) -> tuple[int, int]:
        names = self._folder.names()
        blobs = self._blobs.names() if self._blobs is not None else []
        known = {f"{name}.blob" for name in (*self._good, *self._bad)}
        unreferenced = sum(name.endswith(".blob") and name not in known for name in blobs)
        return unreferenced, sum(name.endswith(".tmp") for name in (*names, *blobs))

    def _judge_keys(self, lanes: list[_Lane]) -> None:
        """One lane of several under another key was put there; all of them: it is the key."""
        right = any(lane.header for lane in lanes)
        for number in self._wrong:
            verdict = Verdict.DAMAGED if right else Verdict.WRONG_KEY
            self._find(verdict, "written under another session key", lane=number)

    def _compare(self, head: KnownHead, lanes: dict[int, _Lane]) -> None:
        """Find out what became of the record that a head names."""
        lane = lanes.get(head.lane)
        first: int | None = None
        if head.store != b32(self._keys.store):
            what = "another vault stands here"
        elif lane is None:
            rest = head.lane > max(lanes, default=0)
            what = "lanes up to this one are gone" if rest else "the lane is gone"
        elif lane.id is None:
            return  # its header's damage says so
        elif lane.id != head.lane_id:
            what = "another lane stands in its place"
        elif lane.seq < head.seq:
            what, first = "the lane was cut", lane.seq + 1
        elif head in lane.replaced:
            what, first = "the record is another one", head.seq
        else:
            return  # it is there, or its damage says so
        place = {"lane": head.lane, "first": first, "last": head.seq if first else None}
        self._find(Verdict.OLDER, what, **place, head=head)

    def _compare_store(self, lane: _Lane) -> None:
        """STORE.json must be the one that stood there when this lane was synced."""
        if lane.synced is not None and lane.synced.store_file != self._store_file:
            self._find(Verdict.DAMAGED, _STORE_CHANGED)

    def _head(self, lanes: list[_Lane]) -> KnownHead | None:
        """Return the newest head, to be known from now on."""
        for lane in reversed(lanes):
            if lane.id is not None and lane.last is not None:
                return KnownHead(
                    store=b32(self._keys.store),
                    session=self._keys.session,
                    lane=lane.number,
                    lane_id=lane.id,
                    seq=lane.seq,
                    digest=lane.last.hex(),
                    size=lane.end,
                    lanes=len(lanes),
                    store_file=self._store_file,
                    time=time.time_ns() // 1_000_000,
                )
        return None


def _noting(names: list[str]) -> Callable[[str], bytes]:
    """Note which blobs a record names; "null" is a text and a JSON value, so any form is met."""

    def note(name: str) -> bytes:
        if not isinstance(name, str):
            message = "not a blob's name"
            raise TypeError(message)
        names.append(name)
        return b"null"

    return note


def _is_cut_short(fd: int, gap: Gap, seq: int) -> bool:
    """Tell whether a torn rest is what a crash leaves: a frame's beginning, then zeros or nothing.

    Anything else is damage to a record that was whole.
    """
    start = files.read_at(fd, min(HEAD_SIZE, gap.size), gap.offset)
    head = Head.parse(start)
    if head is not None:
        return head.seq == seq + 1 and head.size > gap.size
    if len(start) < HEAD_SIZE:
        return True
    end = gap.offset + gap.size
    return start[-1:] == b"\0" and all(
        not any(files.read_at(fd, min(_WINDOW, end - offset), offset))
        for offset in range(gap.offset + HEAD_SIZE, end, _WINDOW)
    )
