"""The host key, and the session keys that are wrapped under it (slots).

Nothing here lies in the workspace: a copy of a vault without these files, or
without an auditor's key, is noise.
"""

import base64
import binascii
import contextlib
import os
import secrets
import struct
import zlib
from pathlib import Path
from typing import Self

import platformdirs

from .errors import Damaged, MissingKey, WrongKey
from .files import Folder, close, make_folders, storing
from .names import b32
from .sealing import ALGORITHM, KEY_SIZE, OVERHEAD, bind, derive, seal, unseal

_KEY_FILE = "host.key"
_MAX_KEY_FILE = 1024  # bytes
_SLOT_HEAD = struct.Struct(">8sBBH")  # magic, version, algorithm, zero
_SLOT_HEADER = _SLOT_HEAD.pack(b"CPTRSLOT", 1, ALGORITHM, 0)
_CHECKSUM = struct.Struct(">I")
_SLOT_SIZE = _SLOT_HEAD.size + KEY_SIZE + OVERHEAD + _CHECKSUM.size


class Keys:
    """One host's keys: the host key in memory, the session keys wrapped in `state`.

    `made` is True if the key file was created just now: a front end then names
    the command that backs it up, for a lost host key is a lost archive.
    """

    def __init__(self, host_key: bytes, state: Path, *, made: bool = False) -> None:
        """Take a host key of 32 bytes and the folder for slots (made 0700 when needed).

        Raises `WrongKey` for another size.
        """
        if len(host_key) != KEY_SIZE:
            message = f"a host key has {KEY_SIZE} bytes, this one has {len(host_key)}"
            raise WrongKey(message)
        self._host_key = host_key
        self.state = state
        self.made = made

    @classmethod
    def default(cls) -> Self:
        """Find the host key: `COMPACTOR_KEY`, `COMPACTOR_KEY_FILE`, or a file made on first use.

        A key is 32 bytes in base64. The file is `host.key` in the state folder:
        `COMPACTOR_STATE`, or the platform's place for a user's state. Raises
        `WrongKey` for a key that is none, `MissingKey` for a named file that is not
        there, `UnsafePath` for a state folder or key file that is open to others,
        `NotStored` if no key file can be made.
        """
        state = Path(os.environ.get("COMPACTOR_STATE") or platformdirs.user_state_path("compactor"))
        if text := os.environ.get("COMPACTOR_KEY"):
            return cls(_parse(text, "COMPACTOR_KEY"), state)
        if named := os.environ.get("COMPACTOR_KEY_FILE"):
            return cls(_read_named(Path(named)), state)
        with storing(str(state / _KEY_FILE)):
            key, made = _read_or_make(state)
        return cls(key, state, made=made)

    def session_key(self, store: bytes, session: str) -> bytes:
        """Unwrap the key of a session. Raises `MissingKey`, `WrongKey` or `Damaged`."""
        where = f"the key of session {session}"
        try:
            folder = self._slots(store, create=False)
            slot = folder.load(f"{session}.slot", at_most=_SLOT_SIZE)
        except FileNotFoundError:
            message = f"{where} is not on this machine"
            hint = f"restore {self.state}, or read with an auditor's key"
            raise MissingKey(message, where=session, hint=hint) from None
        header, sealed, checksum = _split(slot)
        if header != _SLOT_HEADER or _CHECKSUM.pack(zlib.crc32(header + sealed)) != checksum:
            message = f"{where} is damaged"
            raise Damaged(message, where=session, hint="restore the state folder from a backup")
        try:
            return unseal(*self._wrapping(store, session), sealed, where=where)
        except Damaged:
            message = f"{where} was wrapped under another host key"
            hint = "set COMPACTOR_KEY or COMPACTOR_KEY_FILE to the key that it was made with"
            raise WrongKey(message, where=session, hint=hint) from None

    def new_session_key(self, store: bytes, session: str) -> bytes:
        """Make the key of a new session and wrap it, durably; or return the one that is there.

        Raises as `session_key`, or `OSError`.
        """
        key = secrets.token_bytes(KEY_SIZE)
        sealed = seal(*self._wrapping(store, session), key)
        checksum = _CHECKSUM.pack(zlib.crc32(_SLOT_HEADER + sealed))
        folder = self._slots(store, create=True)
        with contextlib.suppress(FileExistsError):
            close(folder.publish(f"{session}.slot", _SLOT_HEADER + sealed + checksum, durable=True))
        return self.session_key(store, session)

    def __repr__(self) -> str:
        """Show where the slots are, and no key."""
        return f"Keys(state={str(self.state)!r}, host_key=<hidden>)"

    def _slots(self, store: bytes, *, create: bool) -> Folder:
        if create:
            make_folders(self.state)
        with (
            Folder.open(self.state, create=create) as state,
            state.enter("slots", create=create) as slots,
        ):
            return slots.enter(b32(store), create=create)

    def _wrapping(self, store: bytes, session: str) -> tuple[bytes, bytes]:
        key = derive(self._host_key, b"slot", store, session)
        return key, bind(b"slot", store, session, _SLOT_HEADER)


def _split(slot: bytes) -> tuple[bytes, bytes, bytes]:
    end = max(len(slot) - _CHECKSUM.size, 0)
    return slot[: _SLOT_HEAD.size], slot[_SLOT_HEAD.size : end], slot[end:]


def _parse(text: str, where: str) -> bytes:
    with contextlib.suppress(binascii.Error, ValueError):
        key = base64.b64decode("".join(text.split()), validate=True)
        if len(key) == KEY_SIZE:
            return key
    message = f"{where} is not {KEY_SIZE} bytes in base64"
    raise WrongKey(message, where=where, hint="openssl rand -base64 32 makes one")


def _read_named(path: Path) -> bytes:
    """Read a key file that the user named: a mounted secret may be a link and of any mode."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE)
    except FileNotFoundError:
        message = f"there is no key file {path}"
        hint = "COMPACTOR_KEY_FILE names it; unset it to use the default key"
        raise MissingKey(message, where=str(path), hint=hint) from None
    return _parse(data.decode("ascii", "replace"), str(path))


def _read_or_make(state: Path) -> tuple[bytes, bool]:
    """Return the host key and whether it was made just now. Two first uses agree on one."""
    make_folders(state)
    folder = Folder.open(state, create=True)
    made = False
    if not folder.has(_KEY_FILE):
        text = base64.b64encode(secrets.token_bytes(KEY_SIZE)) + b"\n"
        with contextlib.suppress(FileExistsError):
            close(folder.publish(_KEY_FILE, text, durable=True))
            made = True
    data = folder.load(_KEY_FILE, at_most=_MAX_KEY_FILE)
    return _parse(data.decode("ascii", "replace"), str(state / _KEY_FILE)), made
