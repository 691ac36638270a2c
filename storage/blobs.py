"""Large content: one immutable, sealed file for each distinct content of a session.

A blob is written when its content is first seen and synced with the next `sync`,
so that a turn costs no fsync. A power cut may therefore leave torn bytes under a
final name: a file that this process did not write is read and compared before it
counts as stored.
"""

import bisect
import contextlib
import errno
import hmac
import io
import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self, cast

from . import files
from .compression import Compressor, expand
from .errors import Damaged
from .files import Folder
from .names import b32, unb32
from .ranges import ReadAt, SealedMessage, seal_pieces
from .sealing import ALGORITHM, DIGEST_SIZE, SessionKeys

FRAME = 64 * 1024  # bytes of content in a compressed frame; the last one holds the rest
MAX_PENDING = 32  # open files that wait for their fsync
_LARGEST = FRAME + FRAME // 256 + 64  # bytes: what zstd makes of a frame's content at worst
_BATCH = 16  # frames that are sealed and written at once

_HEADER = struct.Struct(">8sBBB5s16s20s12s")  # magic, version, algorithm, codec, 0, store, name, 0
_ROW = struct.Struct(">QIIQ")  # offset, compressed, raw, line feeds before it
_TRAILER = struct.Struct(">8sIIQQQ")  # magic, frames, 0, offset of the table, raw, lines
_MAGIC, _END_MAGIC = b"CPTRBLOB", b"CPTREND\0"
_VERSION, _ZSTD = 1, 1
_compressor = Compressor()


class Blobs:
    """The writing side of a session's blob folder."""

    def __init__(self, folder: Folder, keys: SessionKeys) -> None:
        """Write into `folder`, which this object owns from now on."""
        self._folder = folder
        self._keys = keys
        self._stored: set[str] = set()  # written or compared by this process
        self._pending: dict[str, int] = {}  # name to open file, not yet synced
        self._fresh: set[str] = set()  # their names in the folder are not durable yet
        self._suspect: set[str] = (
            set()
        )  # a write or sync failed: the cache may show what no disk has

    def put(self, content: bytes) -> str:
        """Store `content` once and return its name; durable after the next `sync`.

        Raises `OSError`, or `UnsafePath` if something else stands under the name.
        """
        digest = _digester(self._keys)
        digest.update(content)
        name = b32(digest.digest()[:DIGEST_SIZE])
        if name not in self._stored:
            self._store(name, content)
            self._stored.add(name)
        return name

    def sync(self) -> None:
        """Make all that was put durable: each new file, then their folder.

        Raises `OSError`; a file whose sync failed is written anew when it is put again.
        """
        self._check_kept()
        while self._pending:
            name, fd = next(iter(self._pending.items()))
            files.sync_file(fd)
            files.close(self._pending.pop(name))
        if self._fresh:
            self._folder.sync()
            self._fresh.clear()

    def _check_kept(self) -> None:
        """Find out whether somebody removed what this process stored; that is put again then."""
        there = {name.removesuffix(".blob") for name in self._folder.names()}
        gone = self._stored - there
        if gone or any(not files.is_linked(fd) for fd in self._pending.values()):
            self._stored -= gone
            raise FileNotFoundError(errno.ENOENT, "blobs were removed")

    def distrust(self) -> None:
        """Forget what is not synced, after a failed sync: a second fsync may lie."""
        self._suspect |= self._fresh
        self._stored -= self._fresh
        self._fresh.clear()
        for fd in self._pending.values():
            with contextlib.suppress(OSError):  # what is not synced may be lost anyway
                files.close(fd)
        self._pending.clear()

    def in_place(self) -> bool:
        """Tell whether the folder still is the one that its path leads to."""
        return self._folder.in_place()

    def close(self) -> None:
        """Close the folder and the files that wait."""
        self.distrust()
        self._folder.close()

    def _store(self, name: str, content: bytes) -> None:
        file = f"{name}.blob"
        if name in self._suspect or not self._same(file, name, content):
            self._suspect.add(name)
            try:
                fd = self._folder.publish(file, _sealed(self._keys, name, content), durable=False)
            except FileExistsError:  # torn, or not to be trusted
                self._folder.replace(file, _sealed(self._keys, name, content))
            else:
                self._wait(name, fd)
            self._suspect.discard(name)

    def _same(self, file: str, name: str, content: bytes) -> bool:
        """Tell whether the content is there already; who wrote it may not have synced it."""
        try:
            fd = self._folder.open_file(file)
        except FileNotFoundError:
            return False
        try:
            same = _holds(self._keys, name, fd, content)
        except BaseException:
            files.close(fd)
            raise
        if same:
            self._wait(name, fd)
        else:
            files.close(fd)
        return same

    def _wait(self, name: str, fd: int) -> None:
        self._pending[name] = fd
        self._fresh.add(name)
        if len(self._pending) > MAX_PENDING:
            self.sync()


class Blob:
    """The content of one blob, read in pieces. Not for several threads at once.

    `size` is its bytes and `lines` its lines (a last one without line feed counts).
    Only the pieces that a call needs are read and expanded, less than 1 MiB at a time
    whatever the size; each is authenticated, and bound to the blob's name, before
    any of it is returned. Methods raise `Damaged` and `Unreadable`.
    """

    __slots__ = ("_file", "_keys", "_name", "_pack", "lines", "size")

    def __init__(self, keys: SessionKeys, name: str, read_at: ReadAt, size: int) -> None:
        """Open the blob file of `size` bytes that `read_at` reads. Raises `Damaged`."""
        self._file: _File | None = None
        header = _header(keys, name)
        if read_at(_HEADER.size, 0) != header:
            message = f"blob {name} has another header"
            raise Damaged(message, where=name)

        def sealed_at(count: int, offset: int) -> bytes:
            return read_at(count, _HEADER.size + offset)

        context, rest = keys.context(b"blob", header), size - _HEADER.size
        sealed = SealedMessage(keys.blob, context, sealed_at, rest, where=f"blob {name}")
        self._pack = _Pack(sealed.size, sealed.read, name)
        self._keys, self._name = keys, name
        self.size, self.lines = self._pack.size, self._pack.lines

    @classmethod
    def open(cls, folder: Folder, keys: SessionKeys, name: str) -> Self:
        """Open a blob in the session's folder of blobs. Raises `Damaged`, `UnsafePath`."""
        _parse(name)  # before it becomes part of a path
        try:
            file = _File(folder.open_file(f"{name}.blob"))
        except FileNotFoundError:
            message = f"blob {name} is missing"
            raise Damaged(message, where=name) from None
        try:
            blob = cls(keys, name, file.read_at, files.size_of(file.fd))
        except BaseException:
            file.close()
            raise
        blob._file = file
        return blob

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the content at `offset`; fewer only at its end.

        Raises `ValueError` if one of them is negative.
        """
        _not_negative(offset, length)
        end = min(offset + length, self.size)
        parts = io.BytesIO()
        for index in range(offset // FRAME, -(-end // FRAME)):
            start = index * FRAME
            parts.write(self._pack.frame(index)[max(offset - start, 0) : end - start])
        return parts.getvalue()

    def read_lines(self, start: int, count: int, *, at_most: int | None = None) -> bytes:
        """Return `count` lines from line `start` (the first is 0), with their line feeds.

        Fewer only at the end of the content; cut off behind `at_most` bytes, as one
        line may be as long as the blob. Raises `ValueError` for negative numbers.
        """
        _not_negative(start, count)
        offset = self.start_of_line(start)
        length = self.start_of_line(start + count) - offset
        return self.read(offset, length if at_most is None else min(length, at_most))

    def start_of_line(self, number: int) -> int:
        """Return the offset at which a line starts, the first is 0; the size behind the last."""
        _not_negative(number)
        if number >= self.lines:
            return self.size
        return self._pack.end_of_line(number) if number else 0

    def pages(self) -> Iterator[bytes]:
        """Go through the content, 64 KiB at a time.

        Raises `Damaged`, at the end, if it is not the content that has this name.
        """
        digest = _digester(self._keys)
        for page in self._pack.frames():
            digest.update(page)
            yield page
        if not hmac.compare_digest(digest.digest()[:DIGEST_SIZE], _parse(self._name)):
            message = f"blob {self._name} holds other content"
            raise Damaged(message, where=self._name)

    def close(self) -> None:
        """Close the file, of which no more is read then; harmless if it is closed."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        """Return the blob itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class _File:
    """An open file, closed with its last reference; a closed one is never another's number."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read_at(self, size: int, offset: int) -> bytes:
        with files.reading("a blob"):
            return files.read_at(self.fd, size, offset)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            files.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class _Pack:
    """Frames, table and trailer, behind the seal. A row is read and checked when it is needed."""

    __slots__ = ("_count", "_last", "_name", "_read_at", "_table", "lines", "size")
    lines: int
    size: int

    def __init__(self, packed: int, read_at: ReadAt, name: str) -> None:
        """Parse the trailer of the `packed` bytes that `read_at` reads. Raises `Damaged`."""
        end = packed - _TRAILER.size
        if end < 0:
            raise _odd(name)
        trailer = _TRAILER.unpack(read_at(_TRAILER.size, end))
        magic, self._count, zero, self._table, self.size, self.lines = trailer
        self._name, self._read_at = name, read_at
        self._last = (-1, b"")  # the frame that was read last
        if magic != _END_MAGIC or zero or self._table + self._count * _ROW.size != end:
            raise _odd(name)
        empty_with_table = not self._count and (self._table or self.lines)
        if self._count != -(-self.size // FRAME) or empty_with_table:
            raise _odd(name)

    def frames(self) -> Iterator[bytes]:
        """Go through the content of all frames."""
        return map(self.frame, range(self._count))

    def frame(self, index: int) -> bytes:
        """Return the content of one frame; the last one read is kept. Raises `Damaged`."""
        if self._last[0] == index:
            return self._last[1]
        offset, size, raw, feeds = self._row(index)
        last = index + 1 == self._count
        end, _, _, feeds_then = (self._table, 0, 0, self.lines) if last else self._row(index + 1)
        sizes = (end - offset, min(FRAME, self.size - index * FRAME))
        # Before anything is read or expanded by what they say.
        if (size, raw) != sizes or size > _LARGEST or (not index and (offset or feeds)):
            raise _odd(self._name)
        packed = self._read_at(size, offset)
        content = expand(packed, at_most=FRAME, where=f"blob {self._name}")
        feeds += content.count(b"\n") + (last and not content.endswith(b"\n"))
        if len(content) != raw or feeds != feeds_then:
            raise _odd(self._name)
        self._last = (index, content)
        return content

    def end_of_line(self, count: int) -> int:
        """Return the offset behind the line feed number `count`, counted from 1."""
        rows = range(self._count)
        # The last frame with fewer line feeds before it than that.
        index = max(bisect.bisect_left(rows, count, key=self._feeds) - 1, 0)
        content = self.frame(index)
        inside = count - self._feeds(index)
        lines = content.split(b"\n", inside)
        if len(lines) != inside + 1:
            raise _odd(self._name)
        return index * FRAME + len(content) - len(lines[-1])

    def _feeds(self, index: int) -> int:
        return self._row(index)[3]

    def _row(self, index: int) -> tuple[int, int, int, int]:
        row = self._read_at(_ROW.size, self._table + index * _ROW.size)
        return cast("tuple[int, int, int, int]", _ROW.unpack(row))


def read_blob(folder: Folder, keys: SessionKeys, name: str) -> bytes:
    """Return the content of a blob. Raises `Damaged` if it is not whole, `UnsafePath`."""
    with Blob.open(folder, keys, name) as blob:
        return _joined(blob.pages())


def seal_blob(keys: SessionKeys, name: str, content: bytes) -> bytes:
    """Make the bytes of a blob's file."""
    return _joined(_sealed(keys, name, content))


def open_blob(keys: SessionKeys, name: str, data: bytes) -> bytes:
    """Return the content of a blob's file. Raises `Damaged`."""
    return _joined(Blob(keys, name, _reading(data), len(data)).pages())


def pack(content: bytes) -> bytes:
    """Compress `content` into frames, with the table that finds a byte or a line in them."""
    return _joined(_packed(content))


def unpack(payload: bytes, name: str) -> bytes:
    """Return the content that `pack` was given. Raises `Damaged` for anything else."""
    return _joined(_Pack(len(payload), _reading(payload), name).frames())


def _packed(content: bytes) -> Iterator[bytes]:
    rows, offset, lines = [], 0, 0
    view = memoryview(content)
    for batch in range(0, len(content), _BATCH * FRAME):
        frames = []
        for start in range(batch, min(batch + _BATCH * FRAME, len(content)), FRAME):
            raw = view[start : start + FRAME]
            frame = _compressor.frame(raw)
            rows.append(_ROW.pack(offset, len(frame), len(raw), lines))
            frames.append(frame)
            offset += len(frame)
            lines += content.count(b"\n", start, start + FRAME)
        yield b"".join(frames)
    lines += bool(content) and not content.endswith(b"\n")
    yield b"".join((*rows, _TRAILER.pack(_END_MAGIC, len(rows), 0, offset, len(content), lines)))


def _sealed(keys: SessionKeys, name: str, content: bytes) -> Iterator[bytes]:
    header = _header(keys, name)
    yield header
    yield from seal_pieces(keys.blob, keys.context(b"blob", header), _packed(content))


def _holds(keys: SessionKeys, name: str, fd: int, content: bytes) -> bool:
    """Tell whether an open blob file is whole and holds `content`."""
    view, offset = memoryview(content), 0
    try:
        for page in Blob(keys, name, partial(files.read_at, fd), files.size_of(fd)).pages():
            if view[offset : offset + len(page)] != page:
                return False
            offset += len(page)
    except Damaged:
        return False
    return offset == len(content)


def _digester(keys: SessionKeys) -> hmac.HMAC:
    """Begin what `keys.digest` makes at once, for which its `hmac.digest` stops at 2 GiB."""
    return hmac.new(keys.name, digestmod="sha256")


def _reading(data: bytes) -> ReadAt:
    return lambda size, offset: data[offset : offset + size]


def _joined(pieces: Iterable[bytes]) -> bytes:
    """Join pieces as they come: a list of them would take the space twice."""
    whole = io.BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()


def _not_negative(*numbers: int) -> None:
    if min(numbers) < 0:
        message = "an offset, a line or a count is negative"
        raise ValueError(message)


def _odd(name: str) -> Damaged:
    message = f"blob {name} is not packed as a blob is"
    return Damaged(message, where=name)


def _header(keys: SessionKeys, name: str) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, ALGORITHM, _ZSTD, b"", keys.store, _parse(name), b"")


def _parse(name: str) -> bytes:
    try:
        digest = unb32(name)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_SIZE:
        message = "a record names a blob by something that is no name"
        raise Damaged(message)
    return digest
