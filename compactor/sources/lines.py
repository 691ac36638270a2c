"""Read a file of JSON lines that a crash, an editor or a disk may have damaged."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Long lines come in pieces, so that a hole of NULs is never held as a whole.
PIECE = 1 << 20

_BOM = b"\xef\xbb\xbf"
_NULS = re.compile(rb"\0+")


def parse(raw: bytes) -> tuple[Any, bool]:
    """One JSON value, and whether it had to be altered to be read.

    What orjson refuses (lone surrogates, NaN, raw control characters, bytes
    that are not UTF-8) is read by the standard library; the characters become
    U+FFFD and the numbers null, as no later step could send or store them.
    Raises ValueError for what is no JSON at all.
    """
    try:
        return orjson.loads(raw), False
    except orjson.JSONDecodeError:
        text = raw.decode("utf-8", "replace")
    try:
        value = json.loads(text, strict=False, parse_constant=_null)
        return _encodable(value), True
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None


def _null(_: str) -> None:
    """Stand in for NaN and the infinities, as JavaScript writes them."""


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object, its line (from 1) and the byte offset of that line."""

    line: int
    offset: int
    value: dict[str, Any]


@dataclass(slots=True)
class Reader:
    """The rows of a file in order, read as a stream, and what was wrong with it.

    Iterating appends to `warnings` and to `damaged`, the lines in the middle
    that could not be read; a torn last line is only a warning.
    """

    path: Path
    warnings: list[str] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        """Yield what can be read, line by line; lines end at a line feed only."""
        with self.path.open("rb") as file:
            for number, (offset, raw, nuls) in enumerate(_raw_lines(file), 1):
                if nuls:
                    self.warnings.append(f"line {number}: {nuls} NUL bytes left out")
                for value in self._values(number, raw):
                    yield Row(number, offset, value)

    def _values(self, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
        try:
            values = [parse(raw.replace(b"\0", b""))] if raw.strip(b"\0 \t\r\n") else []
        except ValueError:
            # A record torn by a hole of NULs and the next whole one share a line.
            values = list(_readable(raw.split(b"\0"))) if b"\0" in raw else []
            if raw.endswith(b"\n"):
                self.damaged.append(number)
                self.warnings.append(f"line {number}: damaged, left out")
            else:
                self.warnings.append(f"line {number}: the last line is torn, left out")
        for value, altered in values:
            if altered:
                self.warnings.append(f"line {number}: not strict JSON, read with replacements")
            if isinstance(value, dict):
                yield value
            else:
                self.warnings.append(f"line {number}: not an object, left out")


def values_at(path: Path, offsets: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Read the rows of a first pass again, in any order of their offsets."""
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            _, raw, _ = next(_raw_lines(file))
            for value, _altered in _readable(reversed(raw.split(b"\0"))):
                if isinstance(value, dict):
                    yield value


def _readable(pieces: Any) -> Iterator[tuple[Any, bool]]:
    for piece in pieces:
        if piece.strip():
            try:
                yield parse(piece)
            except ValueError:
                continue


def _raw_lines(file: BinaryIO) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, bytes (each run of NULs as one NUL) and number of NULs."""
    offset = start = file.tell()
    pieces: list[bytes] = []
    nuls = 0
    while piece := file.readline(PIECE):
        if offset == 0:
            size, piece = len(piece), piece.removeprefix(_BOM)
        else:
            size = len(piece)
        offset += size
        if b"\0" in piece:
            nuls += piece.count(b"\0")
            piece = _NULS.sub(b"\0", piece)
        pieces.append(piece)
        if piece.endswith(b"\n"):
            yield start, b"".join(pieces), nuls
            start, pieces, nuls = offset, [], 0
    if pieces:
        yield start, b"".join(pieces), nuls
