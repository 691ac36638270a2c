"""The lock that makes a session's writer the only one."""

import contextlib

from filelock import FileLock, Timeout

from .errors import SessionBusy, UnsafePath
from .files import Folder, close

_NAME = "lock"
_POLL = 0.005  # seconds; the default of 0.05 lets one of several waiters starve


def hold(folder: Folder, session: str, wait: float) -> FileLock:
    """Take the lock of a session, waiting up to `wait` seconds.

    The system drops it when the process ends, however it ends. The file is never
    removed: whoever held it would go on while another process locks a new one.
    Raises `SessionBusy`; `UnsafePath` if `lock` is a link or not ours; `OSError`.
    """
    with contextlib.suppress(FileExistsError):
        close(folder.create(_NAME))
    close(folder.open_file(_NAME))  # refuses links, foreign owners and open modes
    path = folder.path / _NAME
    opened: list[int] = []
    lock = FileLock(
        path,
        mode=0o600,
        thread_local=False,
        poll_interval=_POLL,
        fallback_to_soft=False,
        preserve_lock_file=True,
        on_acquired=opened.append,
    )
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        message = f"session {session} has a writer"
        hint = "close it, wait for it, or choose another session name"
        raise SessionBusy(message, where=session, hint=hint) from None
    try:
        _check(folder, opened[0])
    except BaseException:
        lock.release()
        raise
    return lock


def _check(folder: Folder, fd: int) -> None:
    """Check that the lock, which was opened by its path, is the file in the folder that is open."""
    if not folder.is_file(_NAME, fd):
        where = str(folder.path / _NAME)
        message = f"{where} was replaced"
        raise UnsafePath(message, where=where, hint="open the vault again")
