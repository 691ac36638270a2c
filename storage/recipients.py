"""Auditors: their key pairs, and whom this host wraps the keys of new sessions for.

A key as text is a prefix that says what it is, then base32 of the 32 bytes and a
checksum of prefix and bytes: a slip of the pen is no key.
"""

import contextlib
import dataclasses
import datetime as dt
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from .errors import BadName, Damaged, MissingKey, WrongKey
from .files import (
    FILE_MODE,
    Folder,
    close,
    make_folders,
    storing,
    sync_file,
    sync_folder,
    write_all,
)
from .locks import alone
from .names import b32, unb32
from .sealing import KEY_SIZE

FILE = "recipients"
LOCK = "keys.lock"  # of the state folder: held while recipients or the host key change
PUBLIC, PRIVATE = "compactor-public-", "compactor-private-"
_RECOVERY = "recovery"
_SUM_SIZE = 4
_MAX_FILE = 64 * 1024  # bytes
_Line = tuple[str, "Recipient | None"]  # of the file, and the recipient in it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@_+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Recipient:
    """Somebody whose private key opens sessions; `recovery` marks the user's own way back."""

    name: str
    public: bytes
    recovery: bool = False

    @property
    def key(self) -> str:
        """The public key as text."""
        return spell(PUBLIC, self.public)

    @property
    def line(self) -> str:
        """The line of the file: `name public-key`, and `recovery` behind it."""
        return " ".join([self.name, self.key, *([_RECOVERY] if self.recovery else [])])

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Read a line; None for an empty one and a comment. Raises `WrongKey`, `BadName`."""
        words = line.split()
        if not words or words[0].startswith("#"):
            return None
        if len(words) == 1 or words[2:] not in ([], [_RECOVERY]):
            message = "not `name public-key` or `name public-key recovery`"
            raise BadName(message)
        return cls(check_recipient(words[0]), parse_public(words[1]), bool(words[2:]))


def check_recipient(name: str) -> str:
    """Return `name` if it can name a recipient. Raises `BadName`."""
    if not _NAME.fullmatch(name) or name.startswith((PUBLIC, PRIVATE)):
        message = f"not a recipient's name: {name[:64]!a}"
        raise BadName(message, hint="use 1 to 64 of A-Z a-z 0-9 . @ _ + -, a letter or digit first")
    return name


def known(state: Path) -> list[Recipient]:
    """Return the recipients known on this host. Raises `Damaged`, `UnsafePath`, `OSError`."""
    try:
        with Folder.open(state) as folder:
            return [one for _, one in _load(folder) if one]
    except FileNotFoundError:
        return []


def add(state: Path, new: Recipient) -> None:
    """Make a recipient known, durably; one who is known may become the recovery recipient.

    There is one recovery recipient: the mark goes from whoever had it. Raises
    `BadName` if the name or the key belongs to another entry, and as `known`.
    """

    def change(old: list[_Line]) -> list[str]:
        lines = []
        found = False
        for text, one in old:
            same_name, same_key = one and one.name == new.name, one and one.public == new.public
            if one and same_name != same_key:
                message = f"this {'name' if same_name else 'key'} is known: {one.line}"
                raise BadName(message, where=one.name, hint="compactor keys list shows all")
            if one and new.recovery:
                lines.append(dataclasses.replace(one, recovery=bool(same_key)).line)
            else:
                lines.append(text)
            found = found or bool(same_key)
        return lines if found else [*lines, new.line]

    _edit(state, change)


def remove(state: Path, name_or_key: str) -> Recipient:
    """Forget a recipient, durably, for the sessions to come. Raises `BadName`, and as `known`."""
    gone: list[Recipient] = []

    def change(old: list[_Line]) -> list[str]:
        gone.extend(one for _, one in old if one and name_or_key in {one.name, one.key})
        if not gone:
            message = f"no recipient has the name or key {name_or_key[:80]!a}"
            raise BadName(message, hint="compactor keys list shows all")
        return [line for line, one in old if one not in gone]

    _edit(state, change)
    return gone[0]


def new_identity(path: Path, name: str = "") -> str:
    """Write a new private key to a new file (0600); return its public key as text.

    Raises `NotStored`, also if something stands at `path`.
    """
    private = X25519PrivateKey.generate()
    public = spell(PUBLIC, private.public_key().public_bytes_raw())
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    head = f"# created: {now}{f', for {name}' if name else ''}\n# public key: {public}\n"
    write_private(path, f"{head}{spell(PRIVATE, private.private_bytes_raw())}\n".encode())
    return public


def read_identity(path: Path) -> X25519PrivateKey:
    """Read an auditor's private key: a mounted secret may be a link and of any mode.

    Raises `MissingKey` if there is no such file, `WrongKey` if it holds no private key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE).decode("utf-8", "replace")
    except FileNotFoundError:
        message = f"there is no identity file {path}"
        hint = "compactor keys new-auditor makes one"
        raise MissingKey(message, where=str(path), hint=hint) from None
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if len(keys) != 1:
        message = f"{path} does not hold one private key"
        raise WrongKey(message, where=str(path), hint="compactor keys new-auditor makes one")
    return X25519PrivateKey.from_private_bytes(_parse(PRIVATE, keys[0], str(path)))


def write_private(path: Path, data: bytes) -> None:
    """Write a new file of the user's own (0600), durably.

    Raises `NotStored`, also if something stands at `path`.
    """
    with storing(str(path)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path, flags, FILE_MODE)
        try:
            os.fchmod(fd, FILE_MODE)
            write_all(fd, data)
            sync_file(fd)
        except BaseException:
            path.unlink()
            raise
        finally:
            close(fd)
        above = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_folder(above)
        finally:
            close(above)


def spell(prefix: str, key: bytes) -> str:
    """Write a key as text."""
    return prefix + b32(key + _sum(prefix, key))


def parse_public(text: str) -> bytes:
    """Read a public key. Raises `WrongKey`, which does not quote the text."""
    public = _parse(PUBLIC, text, "")
    with contextlib.suppress(ValueError):
        # A point of low order would let nobody in, and stop every new session.
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
        return public
    message = "this public key is none that a key pair has"
    raise WrongKey(message)


def _parse(prefix: str, text: str, where: str) -> bytes:
    kind = "public" if prefix == PUBLIC else "private"
    with contextlib.suppress(ValueError):
        data = unb32(text.removeprefix(prefix)) if text.startswith(prefix) else b""
        key, checksum = data[:KEY_SIZE], data[KEY_SIZE:]
        if len(key) == KEY_SIZE and checksum == _sum(prefix, key):
            return key
    message = f"{where or 'this'} is not a {kind} key of an auditor"
    hint = f"it starts with {prefix} and must be complete"
    if prefix == PUBLIC and text.startswith(PRIVATE):
        message, hint = "this is a private key", "pass the public key that stands in its file"
    raise WrongKey(message, where=where, hint=hint)


def _sum(prefix: str, key: bytes) -> bytes:
    return hashlib.sha256(prefix.encode() + key).digest()[:_SUM_SIZE]


def _load(folder: Folder) -> list[_Line]:
    """Read the file: each line, and the recipient in it."""
    where = str(folder.path / FILE)
    try:
        text = folder.load(FILE, at_most=_MAX_FILE).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            lines.append((line, Recipient.parse(line)))
        except (BadName, WrongKey) as error:
            message = f"line {number} of {where}: {error}"
            raise Damaged(message, where=where, hint="correct or remove that line") from None
    return lines


def _edit(state: Path, change: Callable[[list[_Line]], list[str]]) -> None:
    with storing(str(state / FILE)):
        make_folders(state)
        with Folder.open(state, create=True) as folder, alone(folder, LOCK, f"the keys in {state}"):
            before = _load(folder)
            after = change(before)
            if after != [line for line, _ in before]:
                folder.replace(FILE, [f"{line}\n".encode() for line in after])
