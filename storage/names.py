"""Names of sessions, and the one spelling of binary ids."""

import base64
import hashlib
import re
import secrets

from .errors import BadName

MAX_NAME = 64  # characters
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_UNCLEAN = re.compile(r"[^a-z0-9-]+")
_DIGEST_SIZE = 20  # bytes
# Windows opens the device whatever stands after the first dot.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))]
)
_RULE = "use 1 to 64 of a-z 0-9 . _ -, starting and ending with a letter or digit"


def check_name(name: str) -> str:
    """Return `name` if it can name a session; it is the only caller text in any path.

    Raises `BadName` with a hint.
    """
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        hint = _RULE
    elif ".." in name:
        hint = "two dots in a row are not allowed"
    elif name.split(".", 1)[0] in _DEVICES:
        hint = "Windows keeps this name for a device; choose another"
    else:
        return name
    message = f"not a session name: {name[:MAX_NAME]!a}"
    raise BadName(message, where=name[:MAX_NAME], hint=hint)


def export_name(text: str) -> str:
    """Make a file name (at most 100 bytes of a-z 0-9 . _ - ~) for an export of anything called so.

    A session's name is its own file name. Anything else is cleaned and gets a digest
    of `text` behind a `~`, so two texts never share a name, also where case is ignored.
    """
    try:
        return check_name(text)
    except BadName:
        cleaned = _UNCLEAN.sub("_", text.lower()).strip("_")[:MAX_NAME] or "x"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return f"{cleaned}~{b32(digest[:_DIGEST_SIZE])}"


def new_name() -> str:
    """Make a session name that nobody else has: 80 random bits in 16 characters."""
    return b32(secrets.token_bytes(10))


def b32(data: bytes) -> str:
    """Spell bytes in lower-case base32 (a-z, 2-7) without padding."""
    return base64.b32encode(data).decode().rstrip("=").lower()


def unb32(text: str) -> bytes:
    """Read back what `b32` spelled. Raises `ValueError` for any other spelling."""
    data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    if b32(data) != text:
        message = "not in lower-case base32"
        raise ValueError(message)
    return data
