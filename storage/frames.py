"""The bytes of a lane: a header, twice, then frames. Nothing here touches a file.

A frame is a head in clear (payload length, kind, sequence number, a checksum of
these) and a sealed payload: the SHA-256 of what stands before the frame, then
the record's body.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from .errors import Damaged, WrongKey
from .sealing import ALGORITHM, CHECK_SIZE, OVERHEAD, SessionKeys, seal, unseal

MAX_PAYLOAD = 2 * 1024 * 1024  # bytes; a longer one is damage
HASH_SIZE = 32

_MAGIC, _VERSION = b"CPTRLANE", 1
_FIELDS = struct.Struct(">8sBBHI16s16s")  # magic, version, algorithm, 0, number, store, lane id
_CHECKSUM = struct.Struct(">I")
HEADER_SIZE = _FIELDS.size + CHECK_SIZE + _CHECKSUM.size
# The header stands twice: every frame is bound to it, so its loss would cost the lane.
FIRST_FRAME = 2 * HEADER_SIZE

_HEAD = struct.Struct(">IBQ")  # length of the payload, kind, sequence number
HEAD_SIZE = _HEAD.size + _CHECKSUM.size
_LENGTH_SIZE = 4
# What may be a head: up to 2 MiB of payload, a kind, fewer than 2^48 frames.
_MAYBE_HEAD = re.compile(rb"\x00(?=[\x00-\x20].{2}[^\x00]\x00\x00)", re.DOTALL)
# In so many there is no head, but for one that begins with the last of them.
_ZEROS, _ALL_ZEROS = bytes(64), re.compile(rb"\x00*")


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a frame that stands in clear."""

    length: int
    kind: int
    seq: int

    @property
    def size(self) -> int:
        """Size of the whole frame in bytes."""
        return HEAD_SIZE + self.length

    def encode(self) -> bytes:
        """Make the head's bytes."""
        fields = _HEAD.pack(self.length, self.kind, self.seq)
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def parse(cls, data: bytes, offset: int = 0) -> Self | None:
        """Read the head at `offset`; None if none stands there."""
        fields = data[offset : offset + _HEAD.size]
        checksum = data[offset + _HEAD.size : offset + HEAD_SIZE]
        if _CHECKSUM.pack(zlib.crc32(fields)) != checksum:
            return None
        head = cls(*_HEAD.unpack(fields))
        return head if OVERHEAD + HASH_SIZE <= head.length <= MAX_PAYLOAD else None


def find_heads(data: bytes) -> Iterator[int]:
    """Find the offsets in `data` at which a whole head stands."""
    start = 0
    while start < len(data):
        zeros = data.find(_ZEROS, start)
        end = len(data) if zeros < 0 else zeros + HEAD_SIZE
        for match in _MAYBE_HEAD.finditer(data, start, end):
            if Head.parse(data, match.start()):
                yield match.start()
        start = end
        if zeros >= 0 and (run := _ALL_ZEROS.match(data, zeros)):
            start = run.end() - (_LENGTH_SIZE if run.end() < len(data) else 0)


def make_header(keys: SessionKeys, number: int, lane_id: bytes) -> bytes:
    """Make the header of a lane; `lane_id` is 16 random bytes."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, ALGORITHM, 0, number, keys.store, lane_id)
    fields += keys.check_value(fields)
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def whole_header(header: bytes) -> bool:
    """Tell, without a key, whether these 64 bytes are a header as it was written."""
    fields, checksum = header[: -_CHECKSUM.size], header[-_CHECKSUM.size :]
    return len(header) == HEADER_SIZE and _CHECKSUM.pack(zlib.crc32(fields)) == checksum


def open_header(keys: SessionKeys, number: int, start: bytes, *, where: str) -> bytes:
    """Return the header of lane `number` from the first 128 bytes of its file.

    Raises `WrongKey` if it is whole but was made under another key, `Damaged` if
    neither copy is whole, or if it belongs to another lane or format.
    """
    copies = (start[:HEADER_SIZE], start[HEADER_SIZE:FIRST_FRAME])
    header = next(filter(whole_header, copies), None)
    if header is None:
        message = f"{where} has a damaged header"
        raise Damaged(message, where=where)
    magic, version, algorithm, zero, its_number, store, _ = _FIELDS.unpack_from(header)
    if (magic, version, algorithm, zero) != (_MAGIC, _VERSION, ALGORITHM, 0):
        message = f"{where} is in a form that this version does not know"
        raise Damaged(message, where=where, hint="read it with a newer version")
    if (its_number, store) != (number, keys.store):
        message = f"{where} is another lane, moved here"
        raise Damaged(message, where=where)
    if keys.check_value(header[: _FIELDS.size]) != header[_FIELDS.size : -_CHECKSUM.size]:
        message = f"{where} was written under another session key"
        raise WrongKey(message, where=where, hint="restore the state folder that goes with it")
    return header


def seal_frame(
    keys: SessionKeys, header: bytes, place: tuple[int, int], before: bytes, body: bytes
) -> bytes:
    """Make a frame for a `place`, its kind and sequence number.

    `before` is the `digest` of the frame (or header) that stands before it.
    """
    payload = seal(keys.lane, _context(keys, header, *place), before + body)
    return Head(len(payload), *place).encode() + payload


def open_frame(
    keys: SessionKeys, header: bytes, head: Head, frame: bytes, *, where: str
) -> tuple[bytes, bytes]:
    """Return what stood before a frame, as its `digest`, and the record's body.

    `head` is what the frame ought to be. Raises `Damaged`.
    """
    if frame[:HEAD_SIZE] != head.encode() or len(frame) != head.size:
        message = f"{where} is not as it was written"
        raise Damaged(message, where=where)
    context = _context(keys, header, head.kind, head.seq)
    text = unseal(keys.lane, context, frame[HEAD_SIZE:], where=where)
    return text[:HASH_SIZE], text[HASH_SIZE:]


def digest(data: bytes) -> bytes:
    """Return the SHA-256 by which a frame names what stands before it."""
    return hashlib.sha256(data).digest()


def _context(keys: SessionKeys, header: bytes, kind: int, seq: int) -> bytes:
    return keys.context(b"lane", header + struct.pack(">BQ", kind, seq))
