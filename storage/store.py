"""The vault's folder itself: its id in STORE.json, and what keeps it out of git and backups."""

import contextlib
import datetime as dt
import json
from pathlib import Path

from .errors import Damaged, NoTranscript
from .files import Folder, close
from .names import b32, unb32
from .sealing import STORE_ID_SIZE

FORMAT = 1
SESSIONS = "s"
_STORE = "STORE.json"
_MAX_STORE = 4096  # bytes
# Files that tools look for. Of the second, tar, borg and restic where they are asked to;
# its first line is that of the Cache Directory Tagging Specification.
_ASIDE = {
    ".gitignore": b"*\n",
    "CACHEDIR.TAG": b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Encrypted transcripts of compactor; a backup that excludes caches leaves them out.\n",
}


def open_store(root: Path) -> tuple[Folder, bytes]:
    """Open the vault at `root`; return its folder and id.

    Raises `NoTranscript`, `Damaged`, `UnsafePath`, `OSError`.
    """
    try:
        folder = Folder.open(root)
    except FileNotFoundError:
        raise _no_vault(root) from None
    try:
        return folder, _read(folder)
    except BaseException:
        folder.close()
        raise


def make_store(root: Path, store: bytes) -> bytes:
    """Make a vault at `root` under the id `store`, or find one; return the id that counts.

    Two makers at once agree on one id. Raises as `open_store`.
    """
    with Folder.open(root, create=True) as folder:
        try:
            store = _read(folder)
            folder.sync()  # whoever made it may have been killed before this
        except NoTranscript:
            for name, data in _ASIDE.items():
                _publish(folder, name, data)
            created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            record = {"format": FORMAT, "store_id": b32(store), "created": created}
            _publish(folder, _STORE, json.dumps(record).encode() + b"\n")
            store = _read(folder)
        return store


def _publish(folder: Folder, name: str, data: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        close(folder.publish(name, [data], durable=True))


def _read(folder: Folder) -> bytes:
    # Looked at first: STORE.json stands before any session does.
    has_sessions = folder.has(SESSIONS)
    where = str(folder.path / _STORE)
    try:
        data = folder.load(_STORE, at_most=_MAX_STORE)
    except FileNotFoundError:
        if not has_sessions:
            raise _no_vault(folder.path) from None
        message = f"{where} is missing, though there are sessions"
        raise Damaged(message, where=where, hint="restore it from a backup") from None
    try:
        record = json.loads(data)
        form, store = record["format"], unb32(record["store_id"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        form, store = None, b""
    if form != FORMAT or len(store) != STORE_ID_SIZE:
        message = f"{where} is damaged, or of a format that this version does not know"
        raise Damaged(message, where=where, hint="restore it, or use a newer version")
    return store


def _no_vault(root: Path) -> NoTranscript:
    message = f"there is no vault at {root}"
    return NoTranscript(message, where=str(root), hint="a first session makes one")
