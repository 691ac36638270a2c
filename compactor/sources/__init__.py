"""Recorded sessions of other programs as Anthropic wire messages and request points.

    recording = load(Path("session.jsonl"))
    for point in recording.requests:
        view = session.view(recording.messages[: point.length])

To add a format, write a module with `NAMES`, `recognise` and `load`, and put it
into `_LINES` (a JSON object a line), `_DOCUMENTS` (JSON of any size), or both.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from . import claude_code, claude_stream, codex, messages, pi, swe_agent, tau_bench
from .documents import outline
from .errors import SourceError, UnknownFormat
from .lines import Reader
from .recording import Recording, RequestPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    _Load = Callable[[Path], Iterator[Recording]]

__all__ = [
    "Recording",
    "RequestPoint",
    "SourceError",
    "UnknownFormat",
    "conversations",
    "formats",
    "load",
]

# Enough to get past a header and the notices that stand before the first message.
_HEAD_ROWS = 50


def load(path: Path) -> Recording:
    """Read a recorded session, whichever known program wrote it.

    Of a file that holds several conversations this is the first one, with a
    warning; see `conversations`.

    Raises `UnknownFormat` (a ValueError with a `hint`) if no importer knows the
    file, and OSError if it cannot be opened. Damage inside the file is reported
    in the recording's `warnings`.
    """
    found = conversations(path)
    first = next(found)
    if next(found, None) is not None:
        first.warnings.append("the file holds more conversations; this is the first one")
    return first


def conversations(path: Path) -> Iterator[Recording]:
    """Yield each conversation of a file, at least one; `part` counts them.

    Only the one that is being read is held in memory. Raises what `load`
    raises, when the first one is asked for.
    """
    known, read, rows = _recognised(path)
    if known is None or read is None:
        message = f"{path}: not a recorded session of a known format"
        hint = f"known formats: {', '.join(formats())}" if rows else "it holds no line of JSON"
        raise UnknownFormat(message, path=path, hint=hint)
    found = read(path)
    yield next(found, None) or Recording(path, known.NAMES[0], [], [], ["no message in it"])
    yield from found


def _recognised(path: Path) -> tuple[_Format | None, _Load | None, list[dict[str, Any]]]:
    """Return which format the file has, what reads it, and what was seen of it."""
    found = outline(path)
    if found is not None:
        for known, read in _DOCUMENTS:
            if known.recognise(found.rows):
                return known, read, found.rows
    rows = [row.value for row in islice(Reader(path), _HEAD_ROWS)]
    for known, read in _LINES:
        if known.recognise(rows):
            return known, read, rows
    return None, None, rows


def formats() -> tuple[str, ...]:
    """Names of the formats that `load` knows, as they stand in `Recording.format`."""
    known = [*_LINES, *_DOCUMENTS]
    return tuple(dict.fromkeys(name for module, _ in known for name in module.NAMES))


class _Format(Protocol):
    """A module that knows one format, or two that share a file's form."""

    @property
    def NAMES(self) -> tuple[str, ...]: ...  # noqa: N802

    def recognise(self, rows: Sequence[Mapping[str, Any]]) -> bool: ...


# The first that recognises a file reads it: those with the clearer marks first.
_LINES: tuple[tuple[_Format, _Load], ...] = (
    (pi, pi.load),
    (claude_code, claude_code.load),
    (codex, codex.load),
    (claude_stream, claude_stream.load),
    (messages, messages.load_lines),
)
_DOCUMENTS: tuple[tuple[_Format, _Load], ...] = (
    (tau_bench, tau_bench.load),
    (swe_agent, swe_agent.load),
    (claude_stream, claude_stream.load_list),
    (messages, messages.load),
)
