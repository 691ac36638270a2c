"""Locks between processes: `flock` on a file that stays, opened through its folder.

The system drops a lock when its process ends, however it ends. The file is never removed:
whoever held it would go on while another process locks a new one. A forked child has no
part in its parent's locks.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Final

from . import files
from .errors import NotStored, SessionBusy, UnsafePath
from .files import Folder

if sys.platform != "win32":  # where vaults are only read
    import fcntl

WRITER: Final = "lock"  # the file, in a session's folder, that its writer holds
CHANGE_WAIT: Final = 10.0  # seconds for a lock that is held for milliseconds
_POLL = 0.005  # seconds; a longer pause lets one of several waiters starve


class Lock:
    """A lock that is held until `release`."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        """Own `fd`, which is locked."""
        self._fd = fd
        _held.add(self)

    def release(self) -> None:
        """Let go of it; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # whatever else has the file open
            with contextlib.suppress(OSError):  # it holds nothing that could be lost
                files.close(fd)

    def forget(self) -> None:
        """Close a forked child's copy, which would keep the lock beyond its parent's end."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                files.close(fd)


_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def hold(folder: Folder, session: str, wait: float) -> Lock:
    """Take the lock of a session, waiting up to `wait` seconds.

    Raises `SessionBusy`; `UnsafePath` if `lock` is a link or not ours; `OSError`.
    """
    message = f"session {session} has a writer"
    hint = "close it, wait for it, or choose another session name"
    return _take(folder, WRITER, wait, SessionBusy(message, where=session, hint=hint))


@contextlib.contextmanager
def alone(folder: Folder, name: str, what: str) -> Iterator[None]:
    """Be the only process that changes `what`, by the lock `name` in `folder`.

    Raises `SessionBusy` if another process keeps it for longer than a change can take;
    else as `hold`.
    """
    message = f"another process is changing {what}"
    busy = SessionBusy(message, where=what, hint="wait for it to end")
    lock = _take(folder, name, CHANGE_WAIT, busy)
    try:
        yield
    finally:
        lock.release()


def has_writer(folder: Folder) -> bool:
    """Tell whether a writer holds the lock of the session in `folder` now.

    Takes a shared lock for a moment, in which a writer that does not wait would be refused.
    Where locks cannot be asked (Windows), no.
    """
    if sys.platform == "win32":
        return False
    try:
        fd = folder.open_file(WRITER)
    except (UnsafePath, OSError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        files.close(fd)
    return False


def _take(folder: Folder, name: str, wait: float, busy: SessionBusy) -> Lock:
    if sys.platform == "win32":
        message = "a vault is not written on Windows"
        raise NotStored(message, where=str(folder.path))
    with contextlib.suppress(FileExistsError):
        files.close(folder.create(name))
    fd = folder.open_file(name)
    try:
        _wait_for(fd, wait, busy)
        _check(folder, name, fd)
    except BaseException:
        files.close(fd)
        raise
    return Lock(fd)


def _wait_for(fd: int, wait: float, busy: SessionBusy) -> None:
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise busy from None
        else:
            return
        time.sleep(_POLL)


def _check(folder: Folder, name: str, fd: int) -> None:
    """Check that nobody put another file in the place of the one that is locked."""
    if not folder.is_file(name, fd):
        where = str(folder.path / name)
        message = f"{where} was replaced"
        raise UnsafePath(message, where=where, hint="open the vault again")
