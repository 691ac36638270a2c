"""What can go wrong in a vault.

::

    StorageError
    ├── BadName       (ValueError)       not a session name
    ├── NotJson       (TypeError, ValueError)  a value that JSON cannot hold exactly
    ├── NoTranscript  (LookupError)      no vault there, or no such session in it
    ├── MissingKey    (LookupError)      the session's key is not on this machine
    ├── WrongKey      (ValueError)       a key is there, but not the one
    ├── Damaged       (ValueError)       bytes that are not what was written; never "empty"
    ├── UnsafePath    (PermissionError)  a link, a foreign owner, an open mode
    ├── SessionBusy   (TimeoutError)     another writer holds the session
    ├── Unreadable    (OSError)          the system refused to read what is there
    └── NotStored     (OSError)          the bytes are not on the disk

Each also is the standard error that a caller may already catch. Messages hold
names, sizes and positions: never content, never key bytes.
"""


class StorageError(Exception):
    """The root of the tree.

    `where` names the file, folder, session or setting concerned (may be empty),
    `hint` says what to do next, if there is something to do.
    """

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        """Keep `where` and `hint` beside the message."""
        super().__init__(message)
        self.where = where
        self.hint = hint


class BadName(StorageError, ValueError):
    """A session name that the rules of `names` refuse."""


class NotJson(StorageError, TypeError, ValueError):
    """A value that would not read back equal: NaN, bytes, objects, keys that are no strings.

    `where` is the path in the value, like `[3].*[0]`: keys may be content and show as `*`.
    """


class NoTranscript(StorageError, LookupError):
    """There is no vault at that place, or no such session in it."""


class MissingKey(StorageError, LookupError):
    """The session exists, but its key is not here."""


class WrongKey(StorageError, ValueError):
    """A key is here, but this session was sealed under another one."""


class Damaged(StorageError, ValueError):
    """Bytes that are not what was written: flipped, cut, moved or replaced."""


class UnsafePath(StorageError, PermissionError):
    """A path that is a link, belongs to somebody else or is open to others."""


class SessionBusy(StorageError, TimeoutError):
    """Another writer holds the session's lock; `where` is the session."""


class Unreadable(StorageError, OSError):
    """The system refused to read.

    `errno` is the system's number where there is one, else None.
    """

    def __init__(
        self, message: str, *, where: str = "", hint: str | None = None, errno: int | None = None
    ) -> None:
        """Keep the system's error number too."""
        super().__init__(message, where=where, hint=hint)
        self.errno = errno


class NotStored(StorageError, OSError):
    """The disk refused, or what was written is gone.

    `errno` is the system's number where there is one, else None.
    """

    def __init__(
        self, message: str, *, where: str = "", hint: str | None = None, errno: int | None = None
    ) -> None:
        """Keep the system's error number too."""
        super().__init__(message, where=where, hint=hint)
        self.errno = errno
