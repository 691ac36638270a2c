"""Write one session: append records, make them durable, go on after the disk refused."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from .blobs import Blobs
from .errors import Damaged, NotJson, NotStored
from .files import Folder, storing
from .heads import Keeper
from .lanes import Lane, lane_numbers
from .locks import hold
from .records import Kind, encode
from .scan import LaneScan, Place
from .sealing import SessionKeys


class Writer:
    """The one writer of a session; holds its lock until `close`. Not for several threads at once.

    `session` is its name, `resumed` tells whether it had lanes when this writer
    opened it, and `previous_hash` is the SHA-256 of the last whole frame of the lanes before
    the present one (None if there is none), for the first record of this lane.
    """

    def __init__(
        self,
        session: str,
        enter: Callable[[str], Folder],
        unwrap: Callable[[str, Folder], SessionKeys],
        wait: float,
        state: Path | None = None,
    ) -> None:
        """Open the session's folder by `enter`, lock it, and get its keys by `unwrap`.

        With a state folder, the session's newest head is kept there. Raises
        `SessionBusy` after `wait` seconds, and as `Vault.write`.
        """
        self.session = session
        self.previous_hash: bytes | None = None
        self._enter = enter
        self._unwrap = unwrap
        self._state = state
        self._keeper: Keeper | None = None
        self._pid = os.getpid()
        self._closed = False
        self._lane: Lane | None = None
        self._attach(wait)
        self.resumed = self._numbers != []

    def append(self, records: Sequence[tuple[Kind, object]]) -> list[Place]:
        """Append records with one write and no sync (unless many blobs wait for one).

        Returns where they stand.

        A value is JSON as `NotJson` describes it. All are encoded before any is
        written. Raises `NotJson`, after which the writer works on; `NotStored` or
        `UnsafePath`, after which it takes nothing until `renew`.
        """
        lane = self._ready()
        if not records:
            return []
        with self._or_give_up():
            bodies = [(kind, encode(value, self._blobs.put)) for kind, value in records]
            return [Place(lane.number, seq) for seq in lane.append(bodies)]

    def sync(self) -> None:
        """Make all that was appended durable: new blobs, their folder, the lane.

        Raises `NotStored`, also if the vault was removed or replaced meanwhile;
        nothing since the last `sync` may count as stored then, and the writer takes
        nothing until `renew`.
        """
        lane = self._ready()
        with self._or_give_up():
            if not (self._in_place() and lane.in_place()):
                message = f"the vault of session {self.session} was removed or replaced"
                hint = "write the history anew after renew()"
                raise NotStored(message, where=self.session, hint=hint)
            self._blobs.sync()
            lane.sync()
        if self._keeper is not None:
            self._keeper.synced()

    def renew(self) -> None:
        """Go on in the next lane, whatever became of this one; make a vanished vault anew.

        The caller writes again what was appended since the last `sync`, and all of
        it if the vault had vanished (`previous_hash` is None then). Raises
        `NotStored` if the disk still refuses, `SessionBusy`, `NoTranscript` if
        another vault stands in its place; it may be called again.
        """
        self._check_open()
        self._give_up()
        if self._in_place():
            with storing(f"session {self.session}"):
                self._begin_lane()
        else:
            self._detach()
            self._attach(0.0)

    def close(self) -> None:
        """Release the session. Syncs nothing but the kept head; harmless when repeated.

        In a forked child it does nothing: the lock and the lane are the parent's.
        """
        if os.getpid() == self._pid:
            self._closed = True
            self._give_up()
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            self._detach()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _attach(self, wait: float) -> None:
        with storing(f"session {self.session}"), contextlib.ExitStack() as undo:
            folder = self._enter(self.session)
            undo.callback(folder.close)
            lock = hold(folder, self.session, wait)
            undo.callback(lock.release)
            keys = self._unwrap(self.session, folder)
            blobs = folder.enter("blobs", create=True)
            undo.callback(blobs.close)
            blobs.remove_temporaries()
            self._folder, self._lock, self._keys = folder, lock, keys
            self._blobs = Blobs(blobs, keys)
            self._begin_lane()
            undo.pop_all()

    def _detach(self) -> None:
        try:
            self._blobs.close()
            self._folder.close()
        finally:
            self._lock.release()

    def _begin_lane(self) -> None:
        self._numbers = lane_numbers(self._folder)
        self.previous_hash = None
        for number in reversed(self._numbers):
            scan = LaneScan(self._folder, number)
            scan.advance()
            # A damaged header is the reader's finding; a wrong key must not write on.
            with contextlib.suppress(Damaged):
                scan.check_key(self._keys)
            if (last := scan.last_digest()) is not None:
                self.previous_hash = last
                if scan.frames[-1].kind is not Kind.CLOSE:
                    # Its writer may have died before a sync; what this lane names must stay.
                    with contextlib.suppress(OSError):
                        scan.sync()
                break
        self._lane = Lane(self._folder, max(self._numbers, default=0) + 1, self._keys)
        if self._state is not None:
            self._keeper = Keeper(self._state, self._folder, self._keys, self._lane.number)

    def _in_place(self) -> bool:
        return self._folder.in_place() and self._blobs.in_place()

    def _ready(self) -> Lane:
        self._check_open()
        if self._lane is None:
            message = f"the lane of session {self.session} was given up"
            raise NotStored(message, where=self.session, hint="renew() begins the next one")
        return self._lane

    def _check_open(self) -> None:
        if self._closed:
            message = f"this writer of session {self.session} is closed"
            raise NotStored(message, where=self.session, hint="open the session again")
        if os.getpid() != self._pid:
            message = f"session {self.session} belongs to the process that forked this one"
            raise NotStored(message, where=self.session, hint="open another session here")

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        """Never write again into a lane whose last write or sync failed.

        A retried fsync may report success after the pages were dropped.
        """
        try:
            with storing(f"session {self.session}"):
                yield
        except NotJson:
            raise
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        lane, self._lane = self._lane, None
        self._blobs.distrust()
        if lane is not None:
            with contextlib.suppress(OSError):
                lane.close()
