"""Read one session: its records in order, and what is wrong with its files."""

import bisect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from .audit import Auditor, Progress
from .blobs import Blob, read_blob
from .errors import Damaged
from .files import Folder, reading
from .findings import Audit
from .heads import KnownHead
from .lanes import lane_numbers
from .records import JSON, decode
from .scan import Frame, Gap, LaneScan, Place
from .sealing import SessionKeys

_LIFTED = 2  # the flag of a body that names blobs


@dataclass(frozen=True, slots=True)
class Lifted:
    """A part of a record's value that stands in a blob.

    `path` leads to it from the outside in, `name` is the blob's, `form` is `"text"`
    (a string in UTF-8) or `"json"` (any value).
    """

    path: tuple[str | int, ...]
    name: str
    form: str


class Reader:
    """Takes no lock and may run beside the writer. Not for several threads at once."""

    def __init__(self, folder: Folder, keys: SessionKeys) -> None:
        """Read the session in `folder`, which this object owns from now on."""
        self._folder = folder
        self._keys = keys
        self._lanes: dict[int, LaneScan] = {}
        self._missing: list[int] = []
        self._blobs: Folder | None = None

    def frames(self, after: Place | None = None) -> Iterator[Frame]:
        """Go through the records behind `after`, oldest first, without opening them.

        Call it again later to see what was appended since; only that is read.
        What is not a record is left out and stands in `torn` and `skipped`.
        Raises `UnsafePath`, `Unreadable`.
        """
        with self._reading():
            numbers = lane_numbers(self._folder)
        self._missing = self._find_missing(numbers)
        for number in numbers:
            if after is not None and number < after.lane:
                continue
            lane = self._scan(number)
            with self._reading():
                lane.advance()
            start = 0
            if after is not None:
                start = bisect.bisect_right(lane.frames, after, key=lambda frame: frame.place)
            # A copy: the list grows when somebody asks again meanwhile.
            yield from lane.frames[start:]

    def value(self, frame: Frame, *, bare: bool = False) -> JSON:
        """Return the value of a record, large strings and all; `bare` leaves these empty.

        Raises `Damaged` (the record, one of its blobs, or the lane's header),
        `WrongKey`, `UnsafePath`, `Unreadable`.
        """
        where = f"record {frame.place.seq} of lane {frame.place.lane}"
        with self._reading():
            body = self._scan(frame.place.lane).body(frame, self._keys)
            return decode(body, self._content, where=where, bare=bare)

    def opens(self, frame: Frame) -> bool:
        """Tell whether a record is as it was written; its blobs are not read. Raises as `value`."""
        with self._reading():
            try:
                self._scan(frame.place.lane).body(frame, self._keys)
            except Damaged:
                return False
        return True

    def blobs(self, frame: Frame) -> list[Lifted]:
        """List what a record put out into blobs, and read none of it. Raises as `value`."""
        where = f"record {frame.place.seq} of lane {frame.place.lane}"
        with self._reading():
            body = self._scan(frame.place.lane).body(frame, self._keys)
        if not body or not body[0] & _LIFTED:
            return []
        # Without the flag, the body is the list that holds the value and its blobs.
        plain = bytes([body[0] & ~_LIFTED]) + body[1:]
        record = decode(plain, self._content, where=where)
        try:
            return [Lifted(tuple(path), str(name), str(form)) for path, name, form in record[1]]
        except (ValueError, TypeError, LookupError):
            message = f"{where} does not hold what a record holds"
            raise Damaged(message, where=where) from None

    def blob(self, name: str) -> Blob:
        """Open a blob to read parts of it; the caller closes it. Raises as `value`."""
        with self._reading():
            return Blob.open(self._blob_folder(), self._keys, name)

    def audit(self, heads: Sequence[KnownHead] = (), progress: Progress | None = None) -> Audit:
        """Go through all bytes of the session; `heads` are those that were known before.

        `progress` is told how many bytes of the lanes are done, and of how many. Raises
        `UnsafePath` and `Unreadable` for the folders only; all else is a finding.
        """
        with self._reading():
            return Auditor(self._folder, self._keys, heads, progress).run()

    def follows(self, frame: Frame) -> bool:
        """Tell whether a record was written right behind what stands before it in its lane.

        False where a record was lost, cut out or put in. Raises as `value`.
        """
        with self._reading():
            return self._scan(frame.place.lane).follows(frame, self._keys)

    @property
    def torn(self) -> list[Gap]:
        """Lanes that end in a piece of a record, as a crashed writer's does; as of `frames`."""
        return [lane.torn for _, lane in sorted(self._lanes.items()) if lane.torn]

    @property
    def skipped(self) -> list[Gap]:
        """Damage that `frames` went past, in order; as of `frames`."""
        gaps = [Gap(number, 0, 0, 0, "missing lane") for number in self._missing]
        for lane in self._lanes.values():
            gaps += lane.gaps
        return sorted(gaps, key=lambda gap: (gap.lane, gap.offset))

    def close(self) -> None:
        """Close the folders; harmless if they are closed."""
        self._folder.close()
        if self._blobs is not None:
            self._blobs.close()

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _reading(self) -> AbstractContextManager[None]:
        return reading(f"session {self._keys.session}")

    def _scan(self, number: int) -> LaneScan:
        if number not in self._lanes:
            self._lanes[number] = LaneScan(self._folder, number)
        return self._lanes[number]

    def _find_missing(self, numbers: list[int]) -> list[int]:
        """Find lanes that must have been: below the newest one, or read before.

        An empty lane goes away with its writer; then the next one has its number.
        """
        read = {number for number, lane in self._lanes.items() if lane.frames}
        return sorted({*range(1, max(numbers, default=0)), *read} - {*numbers})

    def _content(self, name: str) -> bytes:
        return read_blob(self._blob_folder(), self._keys, name)

    def _blob_folder(self) -> Folder:
        if self._blobs is None:
            try:
                self._blobs = self._folder.enter("blobs")
            except FileNotFoundError:
                message = "the folder of blobs is missing, though a record names one"
                raise Damaged(message, where=str(self._folder.path)) from None
        return self._blobs
