"""The front door: a folder of sealed sessions, to write and to read."""

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .errors import BadName, MissingKey, NoTranscript, StorageError
from .files import Folder, reading, storing
from .keys import Keys
from .lanes import lane_numbers
from .names import b32, check_name
from .reader import Reader
from .sealing import STORE_ID_SIZE, SessionKeys
from .slots import SHARED, shared_with
from .store import SESSIONS, make_store, open_store
from .writer import Writer


@dataclass(frozen=True, slots=True)
class Shared:
    """Sessions whose slots were changed, those that had them already, and why others were not."""

    changed: list[str]
    unchanged: list[str]
    refused: dict[str, StorageError]


class Vault:
    """The vault in the folder `root`; holds nothing open between calls."""

    def __init__(self, root: Path, store: bytes, keys: Keys) -> None:
        """Take a known store id; `create` and `open` find it."""
        self.root = root
        self._store = store
        self._keys = keys

    @classmethod
    def create(cls, root: Path, keys: Keys) -> Self:
        """Open the vault at `root`, or make it (0700); two makers at once agree on one.

        The folder above must exist. Raises `Damaged`, `UnsafePath`, `NotStored`.
        """
        root = root.absolute()
        with storing(str(root)):
            return cls(root, make_store(root, secrets.token_bytes(STORE_ID_SIZE)), keys)

    @classmethod
    def open(cls, root: Path, keys: Keys) -> Self:
        """Open the vault at `root`.

        Raises `NoTranscript`, `Damaged`, `UnsafePath`, `Unreadable`.
        """
        root = root.absolute()
        with reading(str(root)):
            folder, store = open_store(root)
            folder.close()
        return cls(root, store, keys)

    @property
    def id(self) -> str:
        """The vault's id in base32; it names the folder of slots in the state folder."""
        return b32(self._store)

    def sessions(self) -> list[str]:
        """List the names of the sessions, sorted. Raises as `open`."""
        absent = contextlib.suppress(FileNotFoundError)
        with self._reading(), absent, self._folder() as root, root.enter(SESSIONS) as sessions:
            return [name for name in sessions.names() if _has_lanes(sessions, name)]
        return []

    def exists(self, session: str) -> bool:
        """Tell whether a session was written. Raises as `open`, and `BadName`."""
        check_name(session)
        absent = contextlib.suppress(FileNotFoundError)
        with self._reading(), absent, self._folder() as root, root.enter(SESSIONS) as sessions:
            return _has_lanes(sessions, session)
        return False

    def write(self, session: str, wait: float = 0.0) -> Writer:
        """Open a session as its only writer; make it, and a vanished vault, where missing.

        Raises `BadName`; `SessionBusy` after `wait` seconds; `MissingKey` or
        `WrongKey` if the session exists and its key is not here; `NoTranscript` if
        another vault stands at `root` now; `Damaged`, `UnsafePath`, `NotStored`.
        """
        return Writer(
            check_name(session), self._enter_or_make, self._unwrap, wait, self._keys.state
        )

    def read(self, session: str) -> Reader:
        """Open a session for reading; a writer may be at work.

        Raises `BadName`, `NoTranscript`, `MissingKey`, `WrongKey`, `Damaged`, `UnsafePath`,
        `Unreadable`.
        """
        with self._reading():
            folder = self._session(session)
            return Reader(folder, self._unwrap(session, folder))

    def readers(self, session: str) -> list[bytes]:
        """Return the public keys that open a session; needs no key itself. Raises as `read`."""
        with self._reading(), self._session(session) as folder:
            return shared_with(folder, self._store, session)

    def share(self, *, drop: frozenset[bytes] = frozenset()) -> Shared:
        """Wrap the keys of all sessions for all recipients known on this host.

        Slots for the public keys `drop` go away: whoever has a copy of the vault keeps
        theirs. What one session refuses stands in the result. Raises as `open`.
        """
        done = Shared([], [], {})
        absent = contextlib.suppress(FileNotFoundError)
        with self._reading(), absent, self._folder() as root, root.enter(SESSIONS) as sessions:
            for name in sessions.names():
                # Also one that has no lane yet: its writer may have looked before a change.
                self._share(sessions, name, drop, done)
        return done

    def _share(self, sessions: Folder, name: str, drop: frozenset[bytes], done: Shared) -> None:
        try:
            with storing(f"{SHARED} of session {name}"), sessions.enter(check_name(name)) as folder:
                try:
                    changed = self._keys.share(self._store, name, folder, drop=drop)
                except MissingKey:
                    if lane_numbers(folder):
                        raise
                else:
                    (done.changed if changed else done.unchanged).append(name)
        except BadName:
            pass  # not a session
        except StorageError as error:
            done.refused[name] = error

    def __repr__(self) -> str:
        """Show the place and the id."""
        return f"Vault({str(self.root)!r}, id={self.id!r})"

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return reading(str(self.root))

    def _folder(self) -> Folder:
        folder, store = open_store(self.root)
        self._check_same(store)
        return folder

    def _session(self, session: str) -> Folder:
        check_name(session)
        try:
            with self._folder() as root, root.enter(SESSIONS) as sessions:
                folder = sessions.enter(session)
        except FileNotFoundError:
            folder = None
        if folder is None or not lane_numbers(folder):
            message = f"there is no session {session} in {self.root}"
            raise NoTranscript(message, where=session)
        return folder

    def _enter_or_make(self, session: str) -> Folder:
        self._check_same(make_store(self.root, self._store))
        with self._folder() as root, root.enter(SESSIONS, create=True) as sessions:
            return sessions.enter(session, create=True)

    def _unwrap(self, session: str, folder: Folder) -> SessionKeys:
        """Get the keys of a session; one that has lanes never gets a new key."""
        known = bool(lane_numbers(folder))
        unwrap = self._keys.session_key if known else self._keys.new_session_key
        return SessionKeys.derive(unwrap(self._store, session, folder), self._store, session)

    def _check_same(self, store: bytes) -> None:
        if store != self._store:
            message = f"another vault stands at {self.root} now"
            raise NoTranscript(message, where=str(self.root), hint="open it anew")


def _has_lanes(sessions: Folder, name: str) -> bool:
    try:
        check_name(name)
        with sessions.enter(name) as folder:
            return bool(lane_numbers(folder))
    except (BadName, FileNotFoundError):
        return False
