"""The newest known head of each session, kept where a copy of the vault has no hands.

A head names the last record that a writer knew to be durable. Lanes only grow, so
lanes that do not contain it were cut, rolled back or replaced. Kept heads stand in
the state folder; as a line of text a head can be held anywhere else.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from . import files
from .errors import BadName, Damaged, StorageError
from .files import Folder
from .frames import FIRST_FRAME, HASH_SIZE, digest
from .lanes import lane_name, lane_numbers
from .names import b32, check_name, unb32
from .scan import LaneScan, lane_id, walk
from .sealing import STORE_ID_SIZE, SessionKeys

_FOLDER = "heads"
_FORMAT = 1
_TITLE = "compactor-head-1"
_MAX_FILE = 64 * 1024  # bytes
_MAX_KEPT = 16  # heads of one session
_MAX_STORE = 4096  # bytes of STORE.json
_ID_SIZE = 16  # bytes of a lane id
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The last durable record of a session, as it was once known.

    `store` is the vault's id and `lane_id` the lane's, in base32; `digest` is the SHA-256 of the
    record's whole frame and `store_file` that of STORE.json, in hexadecimal; `size` is where the
    frame ends in its lane, in bytes; `lanes` is how many there were; `time` is in milliseconds
    since the epoch.
    """

    store: str
    session: str
    lane: int
    lane_id: str
    seq: int
    digest: str
    size: int
    lanes: int
    store_file: str
    time: int

    def line(self) -> str:
        """Write the head as one line of plain text, to be held elsewhere."""
        return " ".join([_TITLE, *map(str, dataclasses.astuple(self))])

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read what `line` wrote. Raises `ValueError`."""
        title, *words = line.split() or [""]
        if title != _TITLE or len(words) != len(_FIELDS):
            message = "not a line that names a head"
            raise ValueError(message)
        values: dict[str, Any] = dict(zip(_FIELDS, words, strict=True))
        for name in _NUMBERS:
            if not _NUMBER.fullmatch(values[name]):
                message = f"a head's {name} is not a number"
                raise ValueError(message)
            values[name] = int(values[name])
        return cls.decode(values)

    @classmethod
    def decode(cls, values: Any) -> Self:
        """Read what `dataclasses.asdict` made. Raises `ValueError`."""
        if not isinstance(values, dict) or set(values) != set(_FIELDS):
            message = "not a head"
            raise ValueError(message)
        for name, value in values.items():
            if type(value) is not (int if name in _NUMBERS else str):
                message = f"a head's {name} is not what it ought to be"
                raise ValueError(message)
        head = cls(**values)
        ids, hashes = (head.store, head.lane_id), (head.digest, head.store_file)
        sizes = {
            **dict.fromkeys(map(unb32, ids), STORE_ID_SIZE),
            **dict.fromkeys(map(bytes.fromhex, hashes), HASH_SIZE),
        }
        if any(len(data) != size for data, size in sizes.items()) or min(head.lane, head.seq) < 1:
            message = "a head's fields are not what they ought to be"
            raise ValueError(message)
        check_name(head.session)
        return head


_FIELDS = tuple(field.name for field in dataclasses.fields(KnownHead))
_NUMBERS = frozenset({"lane", "seq", "size", "lanes", "time"})


class Heads:
    """The kept heads of one vault's sessions, in `<state>/heads/<store id>/`."""

    def __init__(self, state: Path, store: bytes) -> None:
        """Use the state folder `state` for the vault of this id; nothing is made yet."""
        self._state = state
        self._store = b32(store)

    def path(self, session: str) -> Path:
        """Return where a session's heads are kept."""
        return self._state / _FOLDER / self._store / f"{check_name(session)}.head"

    def load(self, session: str) -> list[KnownHead]:
        """Return the kept heads of a session, the newest first; none if none was kept.

        Behind the newest stand those that the lanes no longer contained when a writer went on.
        Raises `Damaged`, `UnsafePath`, `OSError`.
        """
        path = self.path(session)
        try:
            with self._folder(create=False) as folder:
                data = folder.load(path.name, at_most=_MAX_FILE)
        except FileNotFoundError:
            return []
        try:
            record = json.loads(data)
            heads = [KnownHead.decode(values) for values in record["heads"]]
            whole = record["format"] == _FORMAT and all(head.session == session for head in heads)
        except (ValueError, LookupError, TypeError, RecursionError):
            whole = False
        if not whole:
            message = f"{path} does not hold heads"
            hint = "remove it; the next writer keeps a new one"
            raise Damaged(message, where=str(path), hint=hint)
        return heads

    def save(self, session: str, heads: list[KnownHead], *, durable: bool) -> None:
        """Replace the kept heads of a session in one step.

        Without `durable` nothing is synced: after a power cut an older head may stand there, or
        none. Raises `StorageError`, `OSError`.
        """
        record = {"format": _FORMAT, "heads": [dataclasses.asdict(head) for head in heads]}
        data, name = json.dumps(record).encode() + b"\n", self.path(session).name
        try:
            folder = self._folder(create=False)
        except FileNotFoundError:
            folder = self._folder(create=True)
        with folder:
            folder.replace(name, [data], durable=durable)

    def make(self) -> None:
        """Make the folders where they are missing. Raises `UnsafePath`, `OSError`."""
        files.make_folders(self._state)
        self._folder(create=True).close()

    def sessions(self) -> list[str]:
        """List the sessions of which heads are kept, sorted. Raises `UnsafePath`, `OSError`."""
        names = []
        with contextlib.suppress(FileNotFoundError), self._folder(create=False) as folder:
            for name in folder.names():
                with contextlib.suppress(BadName):
                    names += [check_name(name[:-5])] if name.endswith(".head") else []
        return names

    def _folder(self, *, create: bool) -> Folder:
        with (
            Folder.open(self._state, create=create) as state,
            state.enter(_FOLDER, create=create) as heads,
        ):
            return heads.enter(self._store, create=create)


class Keeper:
    """Keeps the head of a lane while it is written.

    Failures are nobody's: a turn that is stored does not fail because its head is not kept.
    """

    def __init__(self, state: Path, folder: Folder, keys: SessionKeys, lane: int) -> None:
        """Follow `lane`, which was just begun in the session's `folder`."""
        self._heads = Heads(state, keys.store)
        self._folder, self._keys, self._lane = folder, keys, lane
        self._behind = (FIRST_FRAME, 0)
        self._head: KnownHead | None = None
        self._displaced: list[KnownHead] = []
        self._store_file: str | None = None
        with contextlib.suppress(StorageError, OSError):
            self._heads.make()  # now: a new folder is synced, and `synced` costs no sync
        with contextlib.suppress(StorageError, OSError):
            self._store_file = hashlib.sha256(load_store_file(folder)).hexdigest()
        with contextlib.suppress(StorageError, OSError):
            kept = self._heads.load(keys.session)
            self._displaced = kept[1:]
            # The newest one will be replaced; not if it proves that something was lost.
            if kept and not self._contains(kept[0]):
                self._displaced = kept[: _MAX_KEPT - 1]

    def synced(self) -> None:
        """Keep the head as it is now: all that the lane holds is durable."""
        with contextlib.suppress(StorageError, OSError):
            self._advance()
            self._save(durable=False)

    def close(self) -> None:
        """Make the kept head durable."""
        with contextlib.suppress(StorageError, OSError):
            self._save(durable=True)

    def _save(self, *, durable: bool) -> None:
        if self._head is not None:
            heads = [self._head, *self._displaced]
            self._heads.save(self._keys.session, heads, durable=durable)

    def _advance(self) -> None:
        """Take the head from the lane's file: it can name nothing that is not there."""
        fd = self._folder.open_file(lane_name(self._lane))
        try:
            last = None
            for piece in walk(fd, self._lane, self._behind, files.size_of(fd)):
                if isinstance(piece, tuple):
                    last = piece
            if last is None:
                return
            offset, head = last
            self._behind = offset + head.size, head.seq
            frame = files.read_at(fd, head.size, offset)
            name = lane_id(files.read_at(fd, FIRST_FRAME, 0))
        finally:
            files.close(fd)
        if name is not None and self._store_file is not None:
            self._head = KnownHead(
                store=b32(self._keys.store),
                session=self._keys.session,
                lane=self._lane,
                lane_id=b32(name),
                seq=head.seq,
                digest=digest(frame).hex(),
                size=offset + head.size,
                lanes=len(lane_numbers(self._folder)),
                store_file=self._store_file,
                time=time.time_ns() // 1_000_000,
            )

    def _contains(self, head: KnownHead) -> bool:
        """Tell whether the vault still is the one of a head and its lanes contain it."""
        if head.store_file != self._store_file or head.lane not in lane_numbers(self._folder):
            return False
        scan = LaneScan(self._folder, head.lane)
        scan.advance()
        there = scan.digest(head.seq)
        return scan.id() == unb32(head.lane_id) and there == bytes.fromhex(head.digest)


def load_store_file(session: Folder) -> bytes:
    """Return STORE.json of the vault of a session's folder. Raises `Damaged`, `OSError`."""
    with Folder.open(session.path.parents[1]) as root:
        return root.load("STORE.json", at_most=_MAX_STORE)
