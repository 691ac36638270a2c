"""Seal and open bytes, and derive the keys to do it with.

All encryption is Cobblestone-256 of `cryptography` (C2SP chunked-encryption): a
fresh salt a message, so there is no nonce to keep; key commitment; truncation
and reordering are detected. What the bytes are and where they stand is bound
through the context, so bytes that were moved elsewhere do not open.
"""

import hmac
from dataclasses import dataclass
from typing import Self

from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .errors import Damaged, WrongKey

KEY_SIZE = 32
STORE_ID_SIZE = 16
ALGORITHM = 1  # Cobblestone-256, in every header
HPKE = 2  # HPKE (RFC 9180) base mode: X25519, HKDF-SHA256, AES-256-GCM; only in recipients.slots
DIGEST_SIZE = 20  # bytes of a keyed digest of content
CHECK_SIZE = 12  # bytes of a check value
OVERHEAD = 72  # bytes of a message up to 16 KiB: salt 24, commitment 32, tag 16
_PREFIX = b"compactor/1\0"


def bind(kind: bytes, store: bytes, session: str, position: bytes) -> bytes:
    """Make the context that says what bytes are and where they belong.

    Each field stands behind its length (u32be), so that no two different sets
    of fields make the same context.
    """
    fields = (kind, store, session.encode("ascii"), position)
    return _PREFIX + b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def seal(key: bytes, context: bytes, data: bytes) -> bytes:
    """Encrypt `data` for `context`. Raises `WrongKey` for a key of the wrong size."""
    encryptor = Cobblestone256Encryptor(_checked(key), context)
    return encryptor.update(data) + encryptor.finalize()


def unseal(key: bytes, context: bytes, sealed: bytes, *, where: str) -> bytes:
    """Decrypt what `seal` made for the same `context`; all or nothing.

    Raises `Damaged`, naming `where`, if a single bit is not as it was sealed.
    """
    decryptor = Cobblestone256Decryptor(_checked(key), context)
    try:
        return decryptor.update(sealed) + decryptor.finalize()
    except InvalidTag:
        message = f"{where} does not open: its bytes were changed, cut or moved"
        raise Damaged(message, where=where) from None


def derive(key: bytes, purpose: bytes, store: bytes, session: str) -> bytes:
    """Derive the 32-byte sub-key of `key` for one purpose in one session (HKDF-SHA256)."""
    info = bind(b"key", store, session, purpose)
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(_checked(key))


@dataclass(frozen=True, slots=True, repr=False)
class SessionKeys:
    """The sub-keys of one session, with the names that they are bound to."""

    store: bytes
    session: str
    lane: bytes
    blob: bytes
    name: bytes
    check: bytes

    @classmethod
    def derive(cls, session_key: bytes, store: bytes, session: str) -> Self:
        """Derive all sub-keys from the session key."""
        purposes = (b"lane", b"blob", b"name", b"check")
        return cls(store, session, *(derive(session_key, p, store, session) for p in purposes))

    def context(self, kind: bytes, position: bytes) -> bytes:
        """Bind a kind and a position to this session."""
        return bind(kind, self.store, self.session, position)

    def digest(self, content: bytes) -> bytes:
        """Name content by bytes that say nothing to whoever lacks the key."""
        return hmac.digest(self.name, content, "sha256")[:DIGEST_SIZE]

    def check_value(self, header: bytes) -> bytes:
        """Return the bytes by which a header tells a wrong key from damage."""
        return hmac.digest(self.check, header, "sha256")[:CHECK_SIZE]

    def __repr__(self) -> str:
        """Show whose keys these are, and no key."""
        return f"SessionKeys(session={self.session!r}, keys=<hidden>)"


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_SIZE:
        message = f"a key has {KEY_SIZE} bytes, this one has {len(key)}"
        raise WrongKey(message)
    return key
