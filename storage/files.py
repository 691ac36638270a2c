"""Every file system call of this package, with the checks that go with it.

Paths are walked one component at a time from an open folder and links are never
followed. Modes are exactly 0700 and 0600 whatever the umask says. Errors of the
system go up as `OSError`; `storing` turns them into `NotStored`. Faults are
injected here, so nothing else may call `os` for a file.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from .errors import Damaged, NotStored, StorageError, Unreadable, UnsafePath

if sys.platform == "darwin":
    import fcntl

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
_TEMP = ".tmp"
_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
# What an open says when it meets a link, a socket, or a file in a folder's place.
_ODD = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK})
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


class Folder:
    """An open folder of ours; all below it is reached through it, one name at a time."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        """Own `fd`; `path` is for messages and for `in_place`."""
        self._fd = fd
        self.path = path

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Self:
        """Open `path`; with `create`, make it if it is missing.

        Everything above `path` is the user's business and may hold links.
        Raises `FileNotFoundError`, or `UnsafePath` if it is not ours alone.
        """
        path = path.absolute()
        with cls(os.open(path.parent, _WALK), path.parent) as above:
            return above.enter(path.name, create=create)

    def enter(self, name: str, *, create: bool = False) -> Self:
        """Open the folder `name` in this one. Errors as for `open`."""
        path = self.path / name
        made = create and self._make(name)
        try:
            fd = _open(path, _WALK | os.O_NOFOLLOW, self._fd)
        except PermissionError:
            if not made:
                raise
            self._lift_mode(name)
            fd = _open(path, _WALK | os.O_NOFOLLOW, self._fd)
        folder = type(self)(fd, path)
        try:
            if made:
                os.fchmod(fd, FOLDER_MODE)
            if create:
                self.sync()  # also if found: whoever made it may have been killed before this
            _check_ours(os.fstat(fd), path, FOLDER_MODE)
        except BaseException:
            folder.close()
            if made:  # a name whose sync failed must not be found and trusted by the next try
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=self._fd)
            raise
        return folder

    def names(self) -> list[str]:
        """List what is in here, sorted."""
        with os.scandir(self._fd) as entries:
            return sorted(entry.name for entry in entries)

    def has(self, name: str) -> bool:
        """Tell whether anything, be it a dangling link, stands under `name`."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def create(self, name: str) -> int:
        """Make a new file for reading and writing. Raises `FileExistsError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE
        fd = os.open(name, flags, FILE_MODE, dir_fd=self._fd)
        try:
            os.fchmod(fd, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_file(self, name: str) -> int:
        """Open a file of ours for reading.

        Raises `FileNotFoundError`, or `UnsafePath` for anything but a regular
        file with one name that is ours alone. Never waits (a FIFO would).
        """
        path = self.path / name
        fd = _open(path, os.O_RDONLY | os.O_NONBLOCK | _SAFE, self._fd)
        try:
            found = os.fstat(fd)
            if found.st_nlink > 1:
                self._finish_publish(name, found)
                found = os.fstat(fd)
            _check_ours(found, path, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def load(self, name: str, *, at_most: int) -> bytes:
        """Read a whole file of `at_most` bytes. Raises as `open_file`, or `Damaged`."""
        fd = self.open_file(name)
        try:
            data = read_at(fd, at_most + 1, 0)
        finally:
            close(fd)
        if len(data) > at_most:
            where = str(self.path / name)
            message = f"{where} is longer than {at_most} bytes"
            raise Damaged(message, where=where)
        return data

    def publish(self, name: str, pieces: Iterable[bytes], *, durable: bool) -> int:
        """Make the file `name` appear with all the pieces or not at all; return it open.

        Raises `FileExistsError` and leaves what stands there. Without `durable`
        nothing is synced: after a power cut the name may stand over torn bytes.
        Each piece is written as it comes.
        """
        temp, fd = self._temporary(name, pieces)
        try:
            if durable:
                sync_file(fd)
            os.link(temp, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
            self.remove(temp)
            if durable:
                self._sync_name(name)
        except BaseException as error:
            close(fd)
            self.remove(temp)
            if durable and isinstance(error, FileExistsError):
                self.sync()  # for whoever put it there, as in `enter`
            raise
        return fd

    def _sync_name(self, name: str) -> None:
        """Make a new name durable, or take it back: the next try must not find and trust it."""
        try:
            self.sync()
        except BaseException:
            self.remove(name)
            raise

    def replace(self, name: str, pieces: Iterable[bytes], *, durable: bool = True) -> None:
        """Put the pieces under `name` in place of what stands there, in one step.

        Without `durable` nothing is synced, as for `publish`.
        """
        temp, fd = self._temporary(name, pieces)
        try:
            if durable:
                sync_file(fd)
            os.replace(temp, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            self.remove(temp)
            raise
        finally:
            close(fd)
        if durable:
            self.sync()

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def remove_temporaries(self) -> None:
        """Remove what killed writers left. Only for whoever holds the lock."""
        for name in self.names():
            if name.endswith(_TEMP):
                self.remove(name)

    def sync(self) -> None:
        """Make the names in this folder durable."""
        sync_folder(self._fd)

    def in_place(self) -> bool:
        """Tell whether this folder still is the one that its path leads to."""
        if self._fd < 0:
            return False
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def is_file(self, name: str, fd: int) -> bool:
        """Tell whether the open file `fd` is the one under `name`, and ours alone."""
        path = self.path / name
        found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        _check_ours(found, path, FILE_MODE)
        return os.path.samestat(found, os.fstat(fd))

    def close(self) -> None:
        """Close it; harmless if it is closed. No error matters: a folder is synced or not."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> Self:
        """Return the folder itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """Close it with the last reference."""
        self.close()

    def _make(self, name: str) -> bool:
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=self._fd)
        except FileExistsError:
            return False
        return True

    def _lift_mode(self, name: str) -> None:
        """Open up a new folder whose owner's bits the umask took, without following a link."""
        if sys.platform == "linux":
            fd = os.open(name, os.O_PATH | os.O_DIRECTORY | _SAFE, dir_fd=self._fd)
            try:
                Path(f"/proc/self/fd/{fd}").chmod(FOLDER_MODE)
            finally:
                os.close(fd)
        else:
            os.chmod(name, FOLDER_MODE, dir_fd=self._fd, follow_symlinks=False)

    def _temporary(self, name: str, pieces: Iterable[bytes]) -> tuple[str, int]:
        temp = f"{name}.{secrets.token_hex(8)}{_TEMP}"
        fd = self.create(temp)
        try:
            for piece in pieces:
                write_all(fd, piece)
        except BaseException:
            close(fd)
            self.remove(temp)
            raise
        return temp, fd

    def _finish_publish(self, name: str, found: os.stat_result) -> None:
        """Remove the temporary name of a publisher that is (or was killed) at its last step.

        Only a name that `publish` gives and that is the same file; a link from
        anywhere else stays, and the file is refused.
        """
        for other in self.names():
            if other.startswith(f"{name}.") and other.endswith(_TEMP):
                with contextlib.suppress(FileNotFoundError):
                    there = os.stat(other, dir_fd=self._fd, follow_symlinks=False)
                    if os.path.samestat(there, found):
                        self.remove(other)


def make_folders(path: Path) -> None:
    """Make the missing levels above `path` (0700), as `mkdir -p` would.

    `os.makedirs` gives its mode to the last level only.
    """
    above = path.absolute().parent
    if not above.exists():
        make_folders(above)
        Folder.open(above, create=True).close()


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the file's position. A write may take only a part."""
    view = memoryview(data)
    while view:
        count = os.write(fd, view)
        if count == 0:
            raise OSError(errno.EIO, "a write took nothing")
        view = view[count:]


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes at `offset`; fewer only at the end of the file."""
    parts = []
    while size > 0:
        part = os.pread(fd, min(size, 1 << 24), offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def size_of(fd: int) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(fd).st_size


def is_linked(fd: int) -> bool:
    """Tell whether an open file still has a name."""
    return os.fstat(fd).st_nlink > 0


def sync_file(fd: int) -> None:
    """Make an open file durable, with its size and times."""
    if sys.platform == "darwin":
        # fsync there stops at the drive's own cache.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make an open file's bytes durable, and its size where it grew."""
    if sys.platform == "darwin":
        sync_file(fd)
    else:
        os.fdatasync(fd)


def sync_folder(fd: int) -> None:
    """Make the names in an open folder durable, where the file system can (SMB, FUSE cannot)."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def close(fd: int) -> None:
    """Close a file."""
    os.close(fd)


@contextlib.contextmanager
def storing(where: str) -> Iterator[None]:
    """Turn a system error into `NotStored`, naming `where`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = f"{where} was not stored: {_reason(error)}"
        raise NotStored(message, where=where, errno=error.errno) from error


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn a system error into `Unreadable`, naming `where`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = f"{where} was not read: {_reason(error)}"
        raise Unreadable(message, where=where, errno=error.errno) from error


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _open(path: Path, flags: int, folder: int) -> int:
    try:
        return os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in _ODD:
            kind = "folder" if flags & os.O_DIRECTORY else "file"
            message = f"{path} is a link or not a {kind}"
            raise UnsafePath(
                message, where=str(path), hint="remove it if it is not yours"
            ) from None
        raise


def _check_ours(found: os.stat_result, path: Path, mode: int) -> None:
    folder = mode == FOLDER_MODE
    hint = f"if it is yours: chmod {mode:o} {path}"
    if not folder and not stat.S_ISREG(found.st_mode):
        message, hint = f"{path} is not a regular file", "remove it if it is not yours"
    elif found.st_uid != os.geteuid():
        message, hint = f"{path} belongs to another user", "copy it to a folder of your own"
    elif found.st_mode & _OTHERS:
        message = f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):o})"
    elif not folder and found.st_nlink > 1:
        message, hint = f"{path} has {found.st_nlink} names", "copy it, and remove the others"
    else:
        return
    raise UnsafePath(message, where=str(path), hint=hint)
