"""The reading side of one lane: find its frames without a key, then open single ones."""

import bisect
import hmac
from collections.abc import Iterator
from dataclasses import dataclass

from . import files
from .errors import Damaged
from .files import Folder
from .frames import (
    FIRST_FRAME,
    HEAD_SIZE,
    HEADER_SIZE,
    Head,
    digest,
    find_heads,
    open_frame,
    open_header,
    whole_header,
)
from .lanes import lane_name
from .records import Kind
from .sealing import SessionKeys

TORN = "torn tail"
_LANE_ID = slice(32, 48)  # in a header
_WINDOW = 1024 * 1024  # bytes searched at a time for the next frame after damage


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a record stands: the lane's number and the record's in it, both from 1."""

    lane: int
    seq: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A record that was found and not yet opened; `size` is its bytes on disk."""

    place: Place
    kind: Kind
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a lane that hold no record, or records that ought to be there and are not.

    `size` (bytes) is 0 where records were cut out without a trace but their
    numbers; `records` counts the missing numbers, as far as they tell.
    """

    lane: int
    offset: int
    size: int
    records: int
    why: str


def walk(
    fd: int, lane: int, behind: tuple[int, int], size: int
) -> Iterator[tuple[int, Head] | Gap]:
    """Go through the first `size` bytes of an open lane, without a key and holding nothing.

    `behind` is the offset and the sequence number to go on from: those of the last frame's end
    (of a lane's first frame: `FIRST_FRAME` and 0). Yields the offset and the head of each frame,
    and between them what is no frame or is missing; last, if there is one, the torn rest.
    """
    end, seq = behind
    while end < size:
        offset, head = end, _head(fd, end, seq, size)
        if head is None:
            offset, head = _search(fd, end + 1, seq, size)
        if head is None:
            yield Gap(lane, end, size - end, 0, TORN)
            return
        missing = head.seq - seq - 1
        if offset > end or missing:
            why = "damaged bytes" if offset > end else "missing records"
            yield Gap(lane, end, offset - end, missing, why)
        yield offset, head
        end, seq = offset + head.size, head.seq


def lane_id(start: bytes) -> bytes | None:
    """Return a lane's id from the first 128 bytes of its file; None where no header is whole."""
    copies = (start[:HEADER_SIZE], start[HEADER_SIZE:FIRST_FRAME])
    header = next(filter(whole_header, copies), None)
    return header[_LANE_ID] if header else None


def _head(fd: int, offset: int, seq: int, size: int) -> Head | None:
    """Return the head at `offset` if a frame of a number above `seq` fits there."""
    head = Head.parse(files.read_at(fd, HEAD_SIZE, offset))
    return head if head and head.seq > seq and offset + head.size <= size else None


def _search(fd: int, offset: int, seq: int, size: int) -> tuple[int, Head | None]:
    """Find the next frame at or behind `offset`."""
    while offset < size:
        data = files.read_at(fd, _WINDOW + HEAD_SIZE, offset)
        for found in find_heads(data):
            if head := _head(fd, offset + found, seq, size):
                return offset + found, head
        offset += _WINDOW
    return size, None


class LaneScan:
    """What is known of one lane; `advance` learns what was appended since."""

    def __init__(self, folder: Folder, number: int) -> None:
        """Read lane `number` in the session's `folder`, which the caller keeps open."""
        self.number = number
        self._folder = folder
        self._header: bytes | None = None  # once it was checked with the key
        self._reset()

    def _reset(self) -> None:
        self.frames: list[Frame] = []
        self.gaps: list[Gap] = []
        self.torn: Gap | None = None
        self._end = 0  # offset behind the last frame
        self._seq = 0  # number of the last frame
        self._size = 0  # the file's size at the last look

    def advance(self) -> None:
        """Find the frames that were appended since the last call.

        Raises `Damaged` if the lane is gone, `UnsafePath`, `OSError`.
        """
        fd = self._open_file()
        try:
            size = files.size_of(fd)
            if size < self._size:
                self._reset()
            if size > self._size:
                self._look(fd, size)
                self._size = size
        finally:
            files.close(fd)

    def body(self, frame: Frame, keys: SessionKeys) -> bytes:
        """Return the body of a record.

        Raises `Damaged` (this frame, or the lane's header), `WrongKey`, `UnsafePath`.
        """
        return self._open(frame, keys)[1]

    def follows(self, frame: Frame, keys: SessionKeys) -> bool:
        """Tell whether a record was written right behind what stands before it now.

        Raises as `body`.
        """
        before = self._open(frame, keys)[0]
        index = bisect.bisect_left(self.frames, frame.place, key=lambda known: known.place)
        there = self._bytes(self.frames[index - 1]) if index else self._checked_header(keys)
        return hmac.compare_digest(before, digest(there))

    def check_key(self, keys: SessionKeys) -> None:
        """Check the lane's header. Raises `WrongKey`, `Damaged`, `UnsafePath`."""
        self._checked_header(keys)

    def id(self) -> bytes | None:
        """Return the lane's id, None where no copy of its header is whole."""
        return lane_id(self._read(FIRST_FRAME, 0))

    def digest(self, seq: int) -> bytes | None:
        """Return the SHA-256 of the frame of record `seq`, None if it was not found."""
        index = bisect.bisect_left(self.frames, seq, key=lambda known: known.place.seq)
        found = self.frames[index : index + 1]
        return digest(self._bytes(found[0])) if found and found[0].place.seq == seq else None

    def sync(self) -> None:
        """Make the lane's bytes durable as they are. Raises `OSError`."""
        fd = self._open_file()
        try:
            files.sync_data(fd)
        finally:
            files.close(fd)

    def last_digest(self) -> bytes | None:
        """Return the SHA-256 of the last whole frame, None if there is none."""
        return digest(self._bytes(self.frames[-1])) if self.frames else None

    def _look(self, fd: int, size: int) -> None:
        self.torn = None
        if size < FIRST_FRAME:
            self.torn = Gap(self.number, 0, size, 0, "torn header")
            return
        if self._end == 0:
            self._look_at_headers(files.read_at(fd, FIRST_FRAME, 0))
        for piece in walk(fd, self.number, (self._end, self._seq), size):
            if not isinstance(piece, Gap):
                self._take(*piece)
            elif piece.why == TORN:
                self.torn = piece
            else:
                self.gaps.append(piece)

    def _look_at_headers(self, data: bytes) -> None:
        first, second = data[:HEADER_SIZE], data[HEADER_SIZE:]
        if not whole_header(first):
            self.gaps.append(Gap(self.number, 0, HEADER_SIZE, 0, "damaged header"))
        if not whole_header(second) or (whole_header(first) and first != second):
            self.gaps.append(Gap(self.number, HEADER_SIZE, HEADER_SIZE, 0, "damaged header"))
        self._end = FIRST_FRAME

    def _take(self, offset: int, head: Head) -> None:
        try:
            kind = Kind(head.kind)
        except ValueError:
            why = "a kind of record that this version does not know"
            self.gaps.append(Gap(self.number, offset, head.size, 1, why))
        else:
            place = Place(self.number, head.seq)
            self.frames.append(Frame(place, kind, head.size, offset))
        self._seq = head.seq
        self._end = offset + head.size

    def _open(self, frame: Frame, keys: SessionKeys) -> tuple[bytes, bytes]:
        where = f"record {frame.place.seq} of lane {self.number}"
        header = self._checked_header(keys)
        head = Head(frame.size - HEAD_SIZE, frame.kind, frame.place.seq)
        return open_frame(keys, header, head, self._bytes(frame), where=where)

    def _checked_header(self, keys: SessionKeys) -> bytes:
        if self._header is None:
            start = self._read(FIRST_FRAME, 0)
            self._header = open_header(keys, self.number, start, where=f"lane {self.number}")
        return self._header

    def _bytes(self, frame: Frame) -> bytes:
        return self._read(frame.size, frame.offset)

    def _read(self, size: int, offset: int) -> bytes:
        fd = self._open_file()
        try:
            return files.read_at(fd, size, offset)
        finally:
            files.close(fd)

    def _open_file(self) -> int:
        try:
            return self._folder.open_file(lane_name(self.number))
        except FileNotFoundError:
            message = f"lane {self.number} is gone"
            raise Damaged(message, where=f"lane {self.number}") from None
