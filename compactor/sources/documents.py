"""Read parts of JSON documents of any size; what nobody asked for is never held.

A file may hold one document (a list, an object with a list in it) or several,
one after another, as in a file with a document a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .lines import parse
from .scanner import Choice, Scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .scanner import Place

# Lists under these names, at the top or one list below, say what a document is.
_LISTS = ("messages", "history", "trajectory", "traj")
# Of an item of a list these are looked at, of all others only the type.
_WORDS = ("role", "type", "subtype", "session_id")
_ITEMS = 50

Field = tuple[tuple[str | int, ...], Any]


@dataclass(frozen=True, slots=True)
class Outline:
    """The first objects of a document, with their values left out.

    `rows` maps their keys to `{}`, `[]`, "" or None, short words are kept.
    `listed` says that the document is a list of such objects; it is an object
    itself otherwise.
    """

    listed: bool
    rows: list[dict[str, Any]]


def outline(path: Path) -> Outline | None:
    """Look at the beginning of a file; None if it is no document but JSON lines.

    Raises OSError if the file cannot be opened.
    """
    look = _Look()
    with path.open("rb") as file:
        for part in Scanner(file, look.choose).parts([]):
            look.rows[-1][str(part.place[-1])] = _word(part.raw)
    if not any(
        look.listed or isinstance(row.get(name), list) for row in look.rows for name in _LISTS
    ):
        return None
    return Outline(look.listed, look.rows)


def runs(
    path: Path, fields: Sequence[tuple[str, ...]], warnings: list[str]
) -> Iterator[Iterator[Field]]:
    """Yield the conversations of a file, each as the wanted fields that it has.

    `fields` are places below the object (or the list) of one conversation, "*"
    stands for each item of a list. A field is a place and its value. Each
    iterator has to be used up before the next one is taken. Damage is
    reported in `warnings`.
    """
    found = outline(path)
    deep = int(found is not None and found.listed and fields[0] != ("*",))
    patterns = [("*",) * deep + field for field in fields]
    for _, group in groupby(_values(path, patterns, warnings), key=lambda it: it[0][: 1 + deep]):
        yield ((place[1 + deep :], value) for place, value in group)


def _values(
    path: Path, patterns: Sequence[tuple[str, ...]], warnings: list[str]
) -> Iterator[tuple[Place, Any]]:
    def choose(place: Place, _first: bytes) -> Choice:
        choice = Choice.SKIP
        for pattern in patterns:
            if all(map(_fits, pattern, place[1:])):
                if len(pattern) == len(place) - 1:
                    return Choice.TAKE
                if len(pattern) >= len(place):
                    choice = Choice.ENTER
        return choice

    with path.open("rb") as file:
        for part in Scanner(file, choose).parts(warnings):
            try:
                value, altered = parse(part.raw)
            except ValueError:
                warnings.append(f"byte {part.offset}: damaged, left out")
                continue
            if altered:
                warnings.append(f"byte {part.offset}: not strict JSON, read with replacements")
            yield part.place, value


def _fits(wanted: str, name: str | int) -> bool:
    return isinstance(name, int) if wanted == "*" else wanted == name


class _Look:
    """Choose what an outline needs, and stop as soon as it is plain what the document is."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.listed = False
        self._whole = False

    def choose(self, place: Place, first: bytes) -> Choice:
        depth = len(place) - self.listed
        if place[0] != 0 or self._whole:
            return Choice.STOP
        if len(place) == 1:
            self.listed = first == b"["
            if first == b"{":
                self.rows.append({})
            return Choice.ENTER if first in b"[{" else Choice.STOP
        if depth == 1:
            if first != b"{":
                return Choice.SKIP
            if len(self.rows) == _ITEMS:
                return Choice.STOP
            self.rows.append({})
            return Choice.ENTER
        name = str(place[-1])
        self.rows[-1][name] = {b"{": {}, b"[": [], b'"': ""}.get(first)
        self._whole = first == b"[" and name in _LISTS
        return Choice.TAKE if first == b'"' and name in _WORDS else Choice.SKIP


def _word(raw: bytes) -> Any:
    try:
        return parse(raw)[0]
    except ValueError:
        return ""
