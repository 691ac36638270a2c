"""Lanes on the disk: append-only files, each with one writer, never opened again to append.

So there is no torn tail to cut off, no sequence number to continue and no lock
between processes: a crashed writer's lane ends where it ends, and the next
writer begins another.
"""

import re
import secrets
from collections.abc import Sequence

from . import files
from .files import Folder
from .frames import FIRST_FRAME, digest, make_header, seal_frame
from .records import Kind
from .sealing import SessionKeys

_NAME = re.compile(r"([0-9]{6,9})\.lane")


def lane_name(number: int) -> str:
    """Return the file name of a lane."""
    return f"{number:06}.lane"


def lane_numbers(folder: Folder) -> list[int]:
    """Return the numbers of the lanes in a session's folder, in order."""
    found = (_NAME.fullmatch(name) for name in folder.names())
    numbers = sorted(int(match[1]) for match in found if match)
    return [n for n in numbers if n > 0]


class Lane:
    """The writing side of one lane. Raises `OSError`, after which it must not be used."""

    def __init__(self, folder: Folder, number: int, keys: SessionKeys) -> None:
        """Create the lane in the session's `folder`. Raises `FileExistsError`."""
        self.number = number
        self._folder = folder
        self._keys = keys
        self._header = make_header(keys, number, secrets.token_bytes(16))
        self._seq = 0
        self._last = digest(self._header)
        self._size = FIRST_FRAME  # bytes that were written
        self._named = False  # whether the folder's entry is durable
        self._fd = folder.create(lane_name(number))
        try:
            files.write_all(self._fd, self._header * 2)
        except BaseException:
            self.close()
            raise

    def append(self, records: Sequence[tuple[Kind, bytes]]) -> list[int]:
        """Append records with one write; return their sequence numbers, counted from 1."""
        frames = []
        for kind, body in records:
            self._seq += 1
            frame = seal_frame(self._keys, self._header, (kind, self._seq), self._last, body)
            self._last = digest(frame)
            frames.append(frame)
        data = b"".join(frames)
        self._size += len(data)
        files.write_all(self._fd, data)
        return list(range(self._seq - len(frames) + 1, self._seq + 1))

    def in_place(self) -> bool:
        """Tell whether the file still has its name, and all that was written."""
        try:
            named = self._folder.is_file(lane_name(self.number), self._fd)
        except FileNotFoundError:
            return False
        return named and files.size_of(self._fd) == self._size

    def sync(self) -> None:
        """Make all that was appended durable."""
        files.sync_data(self._fd)
        if not self._named:
            self._folder.sync()
            self._named = True

    def close(self) -> None:
        """Close the file; one in which nothing was written goes away."""
        if self._seq == 0:
            self._folder.remove(lane_name(self.number))
        files.close(self._fd)
