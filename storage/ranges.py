"""Seal a long message piece by piece, and open ranges of it.

Cobblestone-256 (https://c2sp.org/chunked-encryption) cuts a message into chunks of
16 KiB, each under the message's key and a nonce that counts, so that a chunk opens
without those before it. `cryptography` opens whole messages only; what reads ranges
here is made of its AES-GCM and HKDF and cannot seal anything.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator

from cryptography.cobblestone import Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from .errors import Damaged, WrongKey
from .sealing import KEY_SIZE

CHUNK = 16 * 1024  # bytes of the message in a chunk; the last one is always shorter
_TAG = 16
_SALT, _COMMITMENT, _NONCE = 24, 32, 12
_HEADER = _SALT + _COMMITMENT
_MAX_CHUNKS = 2**38
_INFO = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0"
_KEPT = 8  # opened chunks that are kept for the next read

# Reads `size` bytes at `offset`, fewer only at the end: `files.read_at` of an open file.
ReadAt = Callable[[int, int], bytes]


def seal_pieces(key: bytes, context: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield, piece by piece, what `sealing.seal` makes of the pieces joined."""
    _check(key)
    encryptor = Cobblestone256Encryptor(key, context)
    for piece in pieces:
        yield encryptor.update(piece)
    yield encryptor.finalize()


class SealedMessage:
    """One sealed message, of which single chunks are opened. `size` is its plain size in bytes.

    Making one checks the commitment and opens the last chunk: from then on key,
    context and size are known to be right, and `read` returns what was sealed or
    raises. Each chunk is authenticated when it is first read, and no other is
    touched. Reading all of it proves as much as `sealing.unseal` does.
    """

    __slots__ = ("_aead", "_kept", "_nonce", "_read_at", "_where", "size")

    def __init__(
        self, key: bytes, context: bytes, read_at: ReadAt, sealed: int, *, where: str
    ) -> None:
        """Open the message of `sealed` bytes that `read_at` reads, its offsets from 0.

        Raises `WrongKey` for a key of the wrong size, else `Damaged`, naming `where`.
        """
        _check(key)
        chunks, tail = divmod(sealed - _HEADER, CHUNK + _TAG)
        self._where = where
        if sealed < _HEADER or tail < _TAG or chunks >= _MAX_CHUNKS:
            raise self._damaged()
        header = read_at(_HEADER, 0)
        if len(header) != _HEADER:
            raise self._damaged()
        info = _INFO + header[:_SALT] + context
        derived = HKDFExpand(SHA512(), KEY_SIZE + _NONCE + _COMMITMENT, info).derive(key)
        if not hmac.compare_digest(derived[KEY_SIZE + _NONCE :], header[_SALT:]):
            raise self._damaged()
        self._aead = AESGCM(derived[:KEY_SIZE])
        self._nonce = int.from_bytes(derived[KEY_SIZE:][:_NONCE], "big")
        self._read_at = read_at
        self._kept: dict[int, bytes] = {}
        self.size = chunks * CHUNK + tail - _TAG
        self._chunk(chunks)

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes of the message at `offset`; fewer only at its end.

        Raises `Damaged` if a chunk of them is not as it was sealed, `OSError`.
        """
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        first, last = offset // CHUNK, (end - 1) // CHUNK
        data = b"".join([self._chunk(index) for index in range(first, last + 1)])
        start = first * CHUNK
        return data[offset - start : end - start]

    def _chunk(self, index: int) -> bytes:
        if index in self._kept:
            return self._kept[index]
        size = min(CHUNK, self.size - index * CHUNK) + _TAG
        sealed = self._read_at(size, _HEADER + index * (CHUNK + _TAG))
        nonce = (self._nonce ^ index).to_bytes(_NONCE, "big")
        try:
            chunk = self._aead.decrypt(nonce, sealed, None)
        except InvalidTag:
            raise self._damaged() from None
        if len(chunk) != size - _TAG:
            raise self._damaged()
        if len(self._kept) >= _KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[index] = chunk
        return chunk

    def _damaged(self) -> Damaged:
        message = f"{self._where} does not open: its bytes were changed, cut or moved"
        return Damaged(message, where=self._where)


def _check(key: bytes) -> None:
    if len(key) != KEY_SIZE:
        message = f"a key has {KEY_SIZE} bytes, this one has {len(key)}"
        raise WrongKey(message)
