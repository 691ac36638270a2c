"""Recorded sessions of other programs as Anthropic wire messages and request points.

    recording = load(Path("session.jsonl"))
    for point in recording.requests:
        view = session.view(recording.messages[: point.length])

To add a format, write a module with `NAME`, `recognise` and `load`, and put it
into `_FORMATS`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from . import claude_code, pi
from .errors import SourceError, UnknownFormat
from .lines import Reader
from .recording import Recording, RequestPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Recording", "RequestPoint", "SourceError", "UnknownFormat", "formats", "load"]

# Enough to get past a header and the notices that stand before the first message.
_HEAD_ROWS = 50


def load(path: Path) -> Recording:
    """Read a recorded session, whichever known program wrote it.

    Raises `UnknownFormat` (a ValueError with a `hint`) if no importer knows the
    file, and OSError if it cannot be opened. Damage inside the file is reported
    in the recording's `warnings`.
    """
    rows = [row.value for row in islice(Reader(path), _HEAD_ROWS)]
    for known in _FORMATS:
        if known.recognise(rows):
            return known.load(path)
    message = f"{path}: not a recorded session of a known format"
    hint = f"known formats: {', '.join(formats())}" if rows else "it holds no line of JSON"
    raise UnknownFormat(message, path=path, hint=hint)


def formats() -> tuple[str, ...]:
    """Names of the formats that `load` knows, as they stand in `Recording.format`."""
    return tuple(known.NAME for known in _FORMATS)


class _Format(Protocol):
    """A module that reads one format."""

    @property
    def NAME(self) -> str: ...  # noqa: N802

    def recognise(self, rows: Sequence[Mapping[str, Any]]) -> bool: ...

    def load(self, path: Path) -> Recording: ...


# The first that recognises a file reads it: those with the clearer marks first.
_FORMATS: tuple[_Format, ...] = (pi, claude_code)
