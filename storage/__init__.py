"""Encrypted transcripts on disk: sealed records in lanes, large content in blobs.

A `Vault` is a folder of sessions. A `Writer` appends records to one session, a
`Reader` goes through them. What the bytes are is written down in FORMAT.md. This
package knows nothing of messages or prompts: a record is a kind and a JSON value.
"""

from .errors import (
    BadName,
    Damaged,
    MissingKey,
    NotJson,
    NoTranscript,
    NotStored,
    SessionBusy,
    StorageError,
    Unreadable,
    UnsafePath,
    WrongKey,
)
from .keys import Keys, Rotation, rotate
from .names import check_name, export_name, new_name
from .reader import Reader
from .recipients import Recipient
from .records import JSON, Kind
from .scan import Frame, Gap, Place
from .vault import Shared, Vault
from .writer import Writer

__all__ = [
    "JSON",
    "BadName",
    "Damaged",
    "Frame",
    "Gap",
    "Keys",
    "Kind",
    "MissingKey",
    "NoTranscript",
    "NotJson",
    "NotStored",
    "Place",
    "Reader",
    "Recipient",
    "Rotation",
    "SessionBusy",
    "Shared",
    "StorageError",
    "Unreadable",
    "UnsafePath",
    "Vault",
    "Writer",
    "WrongKey",
    "check_name",
    "export_name",
    "new_name",
    "rotate",
]
