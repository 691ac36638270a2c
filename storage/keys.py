"""The keys that open sessions: the host key with its local slots, or an auditor's identity.

Nothing of them lies in the workspace: a copy of a vault without the state folder, or
without an auditor's private key, is noise.
"""

import base64
import binascii
import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from .errors import BadName, Damaged, MissingKey, StorageError, WrongKey
from .files import Folder, close, make_folders, storing
from .locks import alone
from .names import b32, check_name, unb32
from .recipients import LOCK, known, read_identity
from .sealing import KEY_SIZE, derive
from .slots import SLOT_SIZE, open_shared, share, shared_with, unwrap, wrap

KEY_FILE = "host.key"
_OLD_KEY_FILE = "host.key.old"  # during a rotation
_MAX_KEY_FILE = 1024  # bytes
_SLOTS, _SLOT = "slots", ".slot"


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did: slots wrapped anew, and slots that the old key does not open."""

    wrapped: int
    left: tuple[str, ...]


class Keys:
    """What opens sessions here: a host key with the slots in `state`, or an identity.

    `source` says where the key comes from: "argument", "COMPACTOR_KEY",
    "COMPACTOR_KEY_FILE", "host.key" or "identity". `made` is True if the key file was
    created just now: a front end then names the command that backs it up, for a lost
    host key is a lost archive.
    """

    def __init__(
        self,
        host_key: bytes | None,
        state: Path,
        *,
        made: bool = False,
        source: str = "argument",
        identity: X25519PrivateKey | None = None,
    ) -> None:
        """Take a host key of 32 bytes and the folder for slots (made 0700 when needed).

        Raises `WrongKey` for another size.
        """
        if host_key is not None and len(host_key) != KEY_SIZE:
            message = f"a host key has {KEY_SIZE} bytes, this one has {len(host_key)}"
            raise WrongKey(message)
        self._host_key = host_key
        self._identity = identity
        self.state = state
        self.made = made
        self.source = source

    @classmethod
    def default(cls, *, make: bool = True) -> Self:
        """Find the host key: `COMPACTOR_KEY`, `COMPACTOR_KEY_FILE`, or a file made on first use.

        A key is 32 bytes in base64. The file is `host.key` in the state folder:
        `COMPACTOR_STATE`, or the platform's place for a user's state. Without `make`
        it is not made before a session needs it. Raises `WrongKey` for a key that is
        none, `MissingKey` for a named file that is not there and for a state folder with
        slots but no key, `UnsafePath` for a state
        folder or key file that is open to others, `NotStored` if no key file can be made.
        """
        state = state_folder()
        if text := os.environ.get("COMPACTOR_KEY"):
            return cls(_parse(text, "COMPACTOR_KEY"), state, source="COMPACTOR_KEY")
        if named := os.environ.get("COMPACTOR_KEY_FILE"):
            return cls(read_key(Path(named)), state, source="COMPACTOR_KEY_FILE")
        if not make:
            return cls(next(iter(_on_disk(state)), None), state, source=KEY_FILE)
        if not _on_disk(state) and count_slots(state)[1]:
            # A new key would open none of them and stand in the way of the old one.
            message = f"there are wrapped keys in {state}, but no {KEY_FILE}"
            hint = f"restore {KEY_FILE} from a backup, or set COMPACTOR_KEY as it was"
            raise MissingKey(message, where=str(state), hint=hint)
        with storing(str(state / KEY_FILE)):
            key, made = _read_or_make(state, None)
        return cls(key, state, made=made, source=KEY_FILE)

    @classmethod
    def identity(cls, path: Path) -> Self:
        """Read by an auditor's private key, with no state folder.

        Raises `MissingKey` if there is no such file, `WrongKey` if it holds no private key.
        """
        return cls(None, state_folder(), source="identity", identity=read_identity(path))

    @property
    def fingerprint(self) -> str:
        """What tells host keys apart and gives none away. Raises `MissingKey` if there is none."""
        return b32(derive(self._known(), b"fingerprint", b"", "")[:10])

    def export(self) -> bytes:
        """Return the host key as a key file's bytes, for a backup. Raises `MissingKey`."""
        note = f"# compactor: a host key, fingerprint {self.fingerprint}\n"
        return note.encode() + _spell(self._known())

    def session_key(self, store: bytes, session: str, folder: Folder) -> bytes:
        """Unwrap the key of a session, whose folder in the vault is `folder`.

        Raises `MissingKey`, `WrongKey`, `Damaged` or `UnsafePath`.
        """
        if self._identity is not None:
            key = open_shared(folder, store, session, self._identity)
            message = f"session {session} was not sealed for this identity"
            hint = "where its key is: compactor keys add-auditor PUBLIC-KEY --workspace DIR"
        else:
            key = self._open_slot(store, session)
            message = f"the key of session {session} is not on this machine"
            hint = f"restore {self.state}, or read with an auditor's key"
        if key is None:
            raise MissingKey(message, where=session, hint=hint)
        return key

    def new_session_key(self, store: bytes, session: str, folder: Folder) -> bytes:
        """Make the key of a new session and wrap it, durably; or return the one that is there.

        It is wrapped for the recipients known on this host, too. Raises as
        `session_key` and `known`, or `OSError`.
        """
        host_key = self._current()
        slot = wrap(host_key, store, session, secrets.token_bytes(KEY_SIZE))
        with self._slots(store, create=True) as slots:
            with contextlib.suppress(FileExistsError):
                close(slots.publish(session + _SLOT, [slot], durable=True))
            key = self.session_key(store, session, folder)
            # A rotation may have gone by before this slot stood where it looks.
            while (now := self._current()) != host_key:
                host_key = now
                slots.replace(session + _SLOT, [wrap(host_key, store, session, key)])
        publics: frozenset[bytes] = frozenset()
        there = shared_with(folder, store, session)  # not to be trusted: no session was here yet
        while there or publics != self._recipients():
            publics = self._recipients()
            share(folder, store, session, key, add=publics, drop=there)
            there = []
        return key

    def share(
        self, store: bytes, session: str, folder: Folder, *, drop: frozenset[bytes] = frozenset()
    ) -> bool:
        """Wrap a session's key for all recipients known on this host; tell if that was needed.

        Slots for the public keys `drop` go away. Raises as `session_key` and `known`.
        """
        key = self.session_key(store, session, folder)
        return share(folder, store, session, key, add=self._recipients(), drop=drop)

    def rewrap(self, old: bytes) -> Rotation:
        """Wrap under this host key every local slot of the state folder that `old` opens.

        Interrupted anywhere it may be called again. Raises `MissingKey`, `NotStored`, `UnsafePath`.
        """
        with _changing(self.state) as folder:
            return _rewrap(folder, self._known(), old)

    def __repr__(self) -> str:
        """Show where the slots are, and no key."""
        return f"Keys(state={str(self.state)!r}, source={self.source!r}, key=<hidden>)"

    def _known(self) -> bytes:
        if self._host_key is None:
            raise self._none()
        return self._host_key

    def _none(self) -> MissingKey:
        if self._identity is None:
            return _no_key(self.state)
        message = "an identity makes no sessions"
        return MissingKey(message, hint="use the host key")

    def _recipients(self) -> frozenset[bytes]:
        return frozenset(recipient.public for recipient in known(self.state))

    def _current(self) -> bytes:
        """Return the host key to wrap under: that of the file, if it comes from there."""
        if self.source == KEY_FILE:
            self._host_key, _ = _read_or_make(self.state, self._host_key)
        return self._known()

    def _open_slot(self, store: bytes, session: str) -> bytes | None:
        """Open the local slot; None where there is none.

        A rotation may change key and slot between two looks, so what does not open is
        looked at again until nothing has changed.
        """
        seen = None
        while True:
            try:
                with self._slots(store, create=False) as folder:
                    slot = folder.load(session + _SLOT, at_most=SLOT_SIZE)
            except FileNotFoundError:
                return None
            keys = [self._host_key] if self._host_key is not None else []
            if self.source == KEY_FILE:
                keys = [*_on_disk(self.state), *keys]
            wrong: StorageError = self._none()
            for key in keys:
                try:
                    return unwrap(key, store, session, slot)
                except WrongKey as error:
                    wrong = error
            if (slot, keys) == seen:
                raise wrong
            seen = slot, keys

    def _slots(self, store: bytes, *, create: bool) -> Folder:
        if create:
            make_folders(self.state)
        with (
            Folder.open(self.state, create=create) as state,
            state.enter(_SLOTS, create=create) as slots,
        ):
            return slots.enter(b32(store), create=create)


def state_folder() -> Path:
    """Return the folder of host key, slots and recipients: `COMPACTOR_STATE` or the platform's."""
    return Path(os.environ.get("COMPACTOR_STATE") or platformdirs.user_state_path("compactor"))


def read_key(path: Path) -> bytes:
    """Read a key file that the user named: a mounted secret may be a link and of any mode.

    Raises `MissingKey` if there is none, `WrongKey` if it holds no key.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE)
    except FileNotFoundError:
        message = f"there is no key file {path}"
        hint = "COMPACTOR_KEY_FILE names it; unset it to use the default key"
        raise MissingKey(message, where=str(path), hint=hint) from None
    return _parse(data.decode("utf-8", "replace"), str(path))


def rotate(state: Path) -> Rotation:
    """Make a new host key in `state` and wrap every local slot under it.

    Until all are, the old key stays as `host.key.old`, and `Keys` tries both: interrupted
    anywhere, every session still opens, and the next call goes on with the same new key.
    Raises `MissingKey` if there is no key file, `NotStored`, `UnsafePath`.
    """
    with _changing(state) as folder:
        if not folder.has(KEY_FILE):
            raise _no_key(state)
        if not folder.has(_OLD_KEY_FILE):
            old = folder.load(KEY_FILE, at_most=_MAX_KEY_FILE)
            close(folder.publish(_OLD_KEY_FILE, [old], durable=True))
        old_key, new_key = _load(folder, _OLD_KEY_FILE), _load(folder, KEY_FILE)
        if new_key == old_key:
            new_key = secrets.token_bytes(KEY_SIZE)
            folder.replace(KEY_FILE, [_spell(new_key)])
        folder.sync()  # also what an interrupted call may have left unsynced
        done = _rewrap(folder, new_key, old_key)
        folder.remove(_OLD_KEY_FILE)
        for name in folder.names():
            if name.startswith(f"{KEY_FILE}.") and name.endswith(".tmp"):
                folder.remove(name)  # a killed rotation left a key in it
        folder.sync()
        return done


def is_rotating(state: Path) -> bool:
    """Tell whether a rotation in `state` was begun and not ended."""
    with contextlib.suppress(FileNotFoundError), Folder.open(state) as folder:
        return folder.has(_OLD_KEY_FILE)
    return False


def count_slots(state: Path) -> tuple[int, int]:
    """Return how many vaults have local slots in `state`, and how many these are."""
    counts: list[int] = []
    with contextlib.suppress(FileNotFoundError), Folder.open(state) as folder:
        counts += (len(sessions) for _, _, sessions in _all_slots(folder))
    return len(counts), sum(counts)


def _all_slots(state: Folder) -> Iterator[tuple[Folder, bytes, list[str]]]:
    """Go through the folders of slots: each with its store id and the sessions."""
    if not state.has(_SLOTS):
        return
    with state.enter(_SLOTS) as slots:
        for name in slots.names():
            with contextlib.suppress(ValueError):
                store = unb32(name)
                with slots.enter(name) as folder:
                    names = [n.removesuffix(_SLOT) for n in folder.names() if n.endswith(_SLOT)]
                    yield folder, store, names


def _rewrap(state: Folder, new: bytes, old: bytes) -> Rotation:
    wrapped, left = 0, []
    for folder, store, sessions in _all_slots(state):
        for session in sessions:
            try:
                slot = folder.load(session + _SLOT, at_most=SLOT_SIZE)
                key = unwrap(old, store, check_name(session), slot)
            except FileNotFoundError:
                continue  # erased meanwhile
            except (BadName, Damaged):
                left.append(session)
            except WrongKey:
                try:
                    unwrap(new, store, session, slot)
                except WrongKey:
                    left.append(session)
            else:
                folder.replace(session + _SLOT, [wrap(new, store, session, key)])
                wrapped += 1
    return Rotation(wrapped, tuple(left))


@contextlib.contextmanager
def _changing(state: Path) -> Iterator[Folder]:
    try:
        folder = Folder.open(state)
    except FileNotFoundError:
        raise _no_key(state) from None
    with storing(str(state)), folder, alone(folder, LOCK, f"the keys in {state}"):
        yield folder


def _no_key(state: Path) -> MissingKey:
    message = f"there is no host key: {state / KEY_FILE} does not exist"
    hint = "a first session makes one; for sessions made elsewhere use --identity"
    return MissingKey(message, where=str(state), hint=hint)


def _on_disk(state: Path) -> list[bytes]:
    """Return the host keys in the state folder: the present one, and one that is rotated out."""
    keys = []
    with contextlib.suppress(FileNotFoundError), Folder.open(state) as folder:
        for name in (KEY_FILE, _OLD_KEY_FILE):
            with contextlib.suppress(FileNotFoundError):
                keys.append(_load(folder, name))
    return keys


def _load(folder: Folder, name: str) -> bytes:
    data = folder.load(name, at_most=_MAX_KEY_FILE)
    return _parse(data.decode("utf-8", "replace"), str(folder.path / name))


def _read_or_make(state: Path, known: bytes | None) -> tuple[bytes, bool]:
    """Return the host key, and whether its file was made just now, of the key that is `known`.

    Two first uses agree on one.
    """
    make_folders(state)
    with Folder.open(state, create=True) as folder:
        made = False
        if not folder.has(KEY_FILE):
            with contextlib.suppress(FileExistsError):
                key = known or secrets.token_bytes(KEY_SIZE)
                close(folder.publish(KEY_FILE, [_spell(key)], durable=True))
                made = True
        else:
            folder.sync()  # whoever made it may have been killed before this
        return _load(folder, KEY_FILE), made


def _spell(key: bytes) -> bytes:
    return base64.b64encode(key) + b"\n"


def _parse(text: str, where: str) -> bytes:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    with contextlib.suppress(binascii.Error, ValueError):
        key = base64.b64decode("".join("".join(lines).split()), validate=True)
        if len(key) == KEY_SIZE:
            return key
    message = f"{where} is not {KEY_SIZE} bytes in base64"
    raise WrongKey(message, where=where, hint="openssl rand -base64 32 makes one")
