"""Large content: one immutable, sealed file for each distinct content of a session.

A blob is written when its content is first seen and synced with the next `sync`,
so that a turn costs no fsync. A power cut may therefore leave torn bytes under a
final name: a file that this process did not write is read and compared before it
counts as stored.
"""

import errno
import hmac
import struct

from . import files
from .compression import Compressor, expand
from .errors import Damaged
from .files import Folder
from .names import b32, unb32
from .sealing import ALGORITHM, DIGEST_SIZE, SessionKeys, seal, unseal

FRAME = 64 * 1024  # bytes of content in a compressed frame; the last one holds the rest
MAX_PENDING = 32  # open files that wait for their fsync

_HEADER = struct.Struct(">8sBBB5s16s20s12s")  # magic, version, algorithm, codec, 0, store, name, 0
_ROW = struct.Struct(">QIIQ")  # offset, compressed, raw, number of the first line
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
        name = b32(self._keys.digest(content))
        if name not in self._stored:
            self._store(name, content)
            self._stored.add(name)
        return name

    def sync(self) -> None:
        """Make all that was put durable: each new file, then their folder.

        Raises `OSError`; a file whose sync failed is written anew when it is put again.
        """
        while self._pending:
            name, fd = next(iter(self._pending.items()))
            if not files.is_linked(fd):
                raise FileNotFoundError(errno.ENOENT, "a blob was removed before its sync")
            files.sync_file(fd)
            files.close(self._pending.pop(name))
        if self._fresh:
            self._folder.sync()
            self._fresh.clear()

    def distrust(self) -> None:
        """Forget what is not synced, after a failed sync: a second fsync may lie."""
        self._suspect |= self._fresh
        self._stored -= self._fresh
        self._fresh.clear()
        for fd in self._pending.values():
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
            sealed = seal_blob(self._keys, name, content)
            self._suspect.add(name)
            try:
                self._wait(name, self._folder.publish(file, sealed, durable=False))
            except FileExistsError:
                self._folder.replace(file, sealed)
            self._suspect.discard(name)

    def _same(self, file: str, name: str, content: bytes) -> bool:
        """Tell whether the content is there already; who wrote it may not have synced it."""
        try:
            fd = self._folder.open_file(file)
        except FileNotFoundError:
            return False
        try:
            data = files.read_at(fd, files.size_of(fd), 0)
            same = open_blob(self._keys, name, data) == content
        except Damaged:
            same = False
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


def read_blob(folder: Folder, keys: SessionKeys, name: str) -> bytes:
    """Return the content of a blob. Raises `Damaged` if it is not whole, `UnsafePath`."""
    _parse(name)  # before it becomes part of a path
    try:
        fd = folder.open_file(f"{name}.blob")
    except FileNotFoundError:
        message = f"blob {name} is missing"
        raise Damaged(message, where=name) from None
    try:
        return open_blob(keys, name, files.read_at(fd, files.size_of(fd), 0))
    finally:
        files.close(fd)


def seal_blob(keys: SessionKeys, name: str, content: bytes) -> bytes:
    """Make the bytes of a blob's file."""
    header = _header(keys, name)
    return header + seal(keys.blob, keys.context(b"blob", header), pack(content))


def open_blob(keys: SessionKeys, name: str, data: bytes) -> bytes:
    """Return the content of a blob's file. Raises `Damaged`."""
    header, sealed = data[: _HEADER.size], data[_HEADER.size :]
    if header != _header(keys, name):
        message = f"blob {name} has another header"
        raise Damaged(message, where=name)
    content = unpack(
        unseal(keys.blob, keys.context(b"blob", header), sealed, where=f"blob {name}"), name
    )
    if not hmac.compare_digest(keys.digest(content), _parse(name)):
        message = f"blob {name} holds other content"
        raise Damaged(message, where=name)
    return content


def pack(content: bytes) -> bytes:
    """Compress `content` into frames, with the table that finds a byte or a line in them."""
    frames, rows, offset, lines = [], [], 0, 0
    for start in range(0, len(content), FRAME):
        raw = content[start : start + FRAME]
        frame = _compressor.frame(raw)
        rows.append(_ROW.pack(offset, len(frame), len(raw), lines))
        frames.append(frame)
        offset += len(frame)
        lines += raw.count(b"\n")
    lines += bool(content) and not content.endswith(b"\n")
    trailer = _TRAILER.pack(_END_MAGIC, len(rows), 0, offset, len(content), lines)
    return b"".join((*frames, *rows, trailer))


def unpack(payload: bytes, name: str) -> bytes:
    """Return the content that `pack` was given. Raises `Damaged` for anything else."""
    content = bytearray()
    for offset, size, raw, _ in _table(payload, name):
        frame = expand(payload[offset : offset + size], at_most=FRAME, where=f"blob {name}")
        if len(frame) != raw:
            raise _odd(name)
        content += frame
    return bytes(content)


def _table(payload: bytes, name: str) -> list[tuple[int, int, int, int]]:
    """Parse and check the table: frames follow one another, all but the last are full."""
    end = len(payload) - _TRAILER.size
    if end < 0:
        raise _odd(name)
    magic, count, zero, table, raw_size, _ = _TRAILER.unpack_from(payload, end)
    if magic != _END_MAGIC or zero or table + count * _ROW.size != end:
        raise _odd(name)
    rows = [_ROW.unpack_from(payload, table + i * _ROW.size) for i in range(count)]
    ends = [offset + size for offset, size, _, _ in rows]
    starts = [offset for offset, _, _, _ in rows]
    sizes = [raw for _, _, raw, _ in rows]
    full = all(raw == FRAME for raw in sizes[:-1]) and all(0 < raw <= FRAME for raw in sizes[-1:])
    if [0, *ends] != [*starts, table] or not full or sum(sizes) != raw_size:
        raise _odd(name)
    return rows


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
