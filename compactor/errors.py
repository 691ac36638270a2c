"""Every error that the engine raises of its own accord.

    CompactorError
    ├── BadMessage (ValueError)     a message or a request argument that is not JSON, or has no role
    ├── BadPolicy (ValueError)      settings that contradict each other or the request
    ├── CannotFit (ValueError)      nothing legal is small enough for the window
    ├── UnknownHandle (LookupError) a handle that this session never issued
    └── Closed (RuntimeError)       a session that was closed is used again

What the disk or a key refuses is a `compactor.storage.StorageError`; its tree stands in
`compactor/storage/errors.py`. No text of an error holds content of a conversation.
"""


class CompactorError(Exception):
    """An error of the engine; `hint` says what to do next.

    Args:
        message: what is wrong, without content of the conversation.
        hint: what the caller can do about it.

    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Keep the hint apart, so that a front end can print it on a line of its own."""
        super().__init__(message)
        self.hint = hint


class BadMessage(CompactorError, ValueError):
    """A message or an argument of the request that cannot be sent or recorded exactly."""


class BadPolicy(CompactorError, ValueError):
    """Settings that contradict each other, or leave no room for a prompt."""


class CannotFit(CompactorError, ValueError):
    """What was asked for would not fit the model's window."""


class UnknownHandle(CompactorError, LookupError):
    """A handle that no set of this session names."""


class Closed(CompactorError, RuntimeError):
    """The session was closed; open it again to go on."""
