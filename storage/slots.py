"""Slots: the session key wrapped, under the host key or for the public keys of auditors.

A local slot stands in the state folder. `recipients.slots` stands in the session's
folder: whoever has a copy of it and one of the private keys needs nothing else.
"""

import struct
import zlib
from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from .errors import Damaged, NotStored, WrongKey
from .files import Folder
from .locks import alone
from .sealing import ALGORITHM, HPKE, KEY_SIZE, OVERHEAD, STORE_ID_SIZE, bind, derive, seal, unseal

SHARED = "recipients.slots"
MAX_RECIPIENTS = 256

_CHECKSUM = struct.Struct(">I")
_LOCAL_HEADER = struct.pack(">8sBBH", b"CPTRSLOT", 1, ALGORITHM, 0)
SLOT_SIZE = len(_LOCAL_HEADER) + KEY_SIZE + OVERHEAD + _CHECKSUM.size

_SHARED_HEADER = struct.pack(">8sBBH", b"CPTRRCPT", 1, HPKE, 0)
_WRAPPED_SIZE = 80  # encapsulated key 32, session key 32, tag 16
_ROW_SIZE = KEY_SIZE + _WRAPPED_SIZE
_ROWS_AT = len(_SHARED_HEADER) + STORE_ID_SIZE
_MAX_SHARED = _ROWS_AT + MAX_RECIPIENTS * _ROW_SIZE + _CHECKSUM.size
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def wrap(host_key: bytes, store: bytes, session: str, key: bytes) -> bytes:
    """Make a local slot."""
    return _sum_up(_LOCAL_HEADER + seal(*_local(host_key, store, session), key))


def unwrap(host_key: bytes, store: bytes, session: str, slot: bytes) -> bytes:
    """Return the session key in a local slot. Raises `Damaged`, or `WrongKey`."""
    where = f"the key of session {session}"
    body = _summed(slot)
    if body is None or not body.startswith(_LOCAL_HEADER):
        message = f"{where} is damaged"
        raise Damaged(message, where=session, hint="restore the state folder from a backup")
    try:
        return unseal(*_local(host_key, store, session), body[len(_LOCAL_HEADER) :], where=where)
    except Damaged:
        message = f"{where} was wrapped under another host key"
        hint = "set COMPACTOR_KEY or COMPACTOR_KEY_FILE to the key that it was made with"
        raise WrongKey(message, where=session, hint=hint) from None


def share(  # noqa: PLR0913 - what a slot is bound to, and what shall change
    folder: Folder,
    store: bytes,
    session: str,
    key: bytes,
    *,
    add: Iterable[bytes],
    drop: Iterable[bytes] = (),
) -> bool:
    """Wrap a session's key for the public keys `add`; tell whether that changed anything.

    `folder` is the session's. The slots that are there stay, but for those of `drop`.
    Raises `Damaged`, `SessionBusy`, `OSError`.
    """
    wanted = set(add)
    if not wanted and not folder.has(SHARED):
        return False
    with alone(folder, "recipients.lock", f"the slots of session {session}"):
        before = _load(folder, store, session)
        rows = {public: before[public] for public in before.keys() - {*drop}}
        for public in sorted(wanted - rows.keys()):
            info = bind(b"recipient", store, session, _SHARED_HEADER)
            rows[public] = _SUITE.encrypt(key, X25519PublicKey.from_public_bytes(public), info)
        if rows == before:
            return False
        if len(rows) > MAX_RECIPIENTS:
            message = f"session {session} has more than {MAX_RECIPIENTS} recipients"
            raise NotStored(message, where=session, hint="remove some: compactor keys list")
        for name in folder.names():  # what a killed writer of this file left
            if name.startswith(f"{SHARED}.") and name.endswith(".tmp"):
                folder.remove(name)
        body = b"".join(public + rows[public] for public in sorted(rows))
        folder.replace(SHARED, [_sum_up(_SHARED_HEADER + store + body)])
    return True


def shared_with(folder: Folder, store: bytes, session: str) -> list[bytes]:
    """Return the public keys that a session's key is wrapped for, sorted. Raises `Damaged`."""
    return list(_load(folder, store, session))


def open_shared(
    folder: Folder, store: bytes, session: str, private: X25519PrivateKey
) -> bytes | None:
    """Return a session's key by an auditor's private key; None where there is no slot for it.

    Raises `Damaged` also for a slot that was moved here from another session.
    """
    wrapped = _load(folder, store, session).get(private.public_key().public_bytes_raw())
    if wrapped is None:
        return None
    try:
        key = _SUITE.decrypt(wrapped, private, bind(b"recipient", store, session, _SHARED_HEADER))
    except (InvalidTag, ValueError):
        raise _damaged(session, "a slot does not open: it was changed, or moved here") from None
    if len(key) != KEY_SIZE:
        raise _damaged(session, "a slot holds no key")
    return key


def _load(folder: Folder, store: bytes, session: str) -> dict[bytes, bytes]:
    """Read `recipients.slots`, if it is there: public key to wrapped key."""
    try:
        body = _summed(folder.load(SHARED, at_most=_MAX_SHARED))
    except FileNotFoundError:
        return {}
    except Damaged:
        raise _damaged(session, "it is too long") from None
    if body is None or not body.startswith(_SHARED_HEADER):
        raise _damaged(session, "its bytes are not what was written")
    if body[len(_SHARED_HEADER) : _ROWS_AT] != store:
        raise _damaged(session, "it belongs to another vault")
    rows = [body[at : at + _ROW_SIZE] for at in range(_ROWS_AT, len(body), _ROW_SIZE)]
    if any(len(row) != _ROW_SIZE for row in rows):
        raise _damaged(session, "a row is cut")
    return {row[:KEY_SIZE]: row[KEY_SIZE:] for row in rows}


def _damaged(session: str, why: str) -> Damaged:
    message = f"{SHARED} of session {session} is damaged: {why}"
    hint = "where the session's key is: remove the file, then run compactor keys add-auditor again"
    return Damaged(message, where=session, hint=hint)


def _local(host_key: bytes, store: bytes, session: str) -> tuple[bytes, bytes]:
    key = derive(host_key, b"slot", store, session)
    return key, bind(b"slot", store, session, _LOCAL_HEADER)


def _sum_up(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _summed(data: bytes) -> bytes | None:
    """Return what stands before a right checksum."""
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    return body if _CHECKSUM.pack(zlib.crc32(body)) == checksum else None
