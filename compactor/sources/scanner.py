"""Find values in JSON text without parsing what stands around them.

Memory is that of one piece of the file and of the value that is being taken.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 16

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\r\n\0]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
_MARK = re.compile(rb'["\[\]{}]')
# A line feed cannot stand in a string: there the string was torn.
_INSIDE = re.compile(rb'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+')
_CLOSERS = {b"{": b"}", b"[": b"]"}
_LONGEST_KEY = 1000

# The number of the document in the file, then keys and indices.
Place = tuple[str | int, ...]


class Choice(Enum):
    """What to do with a value: pass it, look into it, yield it, or end."""

    SKIP = auto()
    ENTER = auto()
    TAKE = auto()
    STOP = auto()


@dataclass(frozen=True, slots=True)
class Part:
    """A value that was taken: where it stands, its byte offset, its bytes."""

    place: Place
    offset: int
    raw: bytes


class _DamageError(Exception):
    """The text is no JSON from here on."""


class _EndError(Exception):
    """The file ends inside a value."""


class _StopError(Exception):
    """Nobody wants more."""


class Scanner:
    """One pass over a file of JSON documents.

    `choose` is asked at each value that is reached, with its place and its
    first byte; values inside one that is passed or taken are not reached.
    """

    def __init__(self, file: BinaryIO, choose: Callable[[Place, bytes], Choice]) -> None:
        """Start at the beginning of the file."""
        self._file = file
        self._choose = choose
        self._base = 0
        self._at = 0
        self._buffer = file.read(PIECE)
        self._pieces: list[bytes] | None = None
        self._mark = 0
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)

    def parts(self, warnings: list[str]) -> Iterator[Part]:
        """Yield the values that were chosen, in the order of the file.

        After damage it goes on at the next line that begins with an object.
        """
        number = 0
        while True:
            try:
                if not self._peek(end=True):
                    return
                yield from self._value((number,))
            except _StopError:
                return
            except _EndError:
                warnings.append(f"byte {self._base + self._at}: the file ends inside a value")
                return
            except _DamageError:
                where = self._base + self._at
                warnings.append(f"byte {where}: damaged, left out up to the next line with a value")
                self._pieces = None
                if not self._resume():
                    return
            number += 1

    def _value(self, place: Place) -> Iterator[Part]:
        first = self._peek()
        choice = self._choose(place, first)
        if choice is Choice.STOP:
            raise _StopError
        if choice is Choice.ENTER and first in _CLOSERS:
            yield from self._enter(place, _CLOSERS[first])
        elif choice is Choice.TAKE:
            offset = self._base + self._at
            self._pieces, self._mark = [], self._at
            self._pass(first)
            raw = b"".join([*self._pieces, self._buffer[self._mark : self._at]])
            self._pieces = None
            yield Part(place, offset, raw)
        else:
            self._pass(first)

    def _enter(self, place: Place, closer: bytes) -> Iterator[Part]:
        self._at += 1
        if self._peek() == closer:
            self._at += 1
            return
        index = 0
        while True:
            name = index if closer == b"]" else self._key()
            yield from self._value((*place, name))
            mark = self._peek()
            if mark not in (closer, b","):
                raise _DamageError
            self._at += 1
            if mark == closer:
                return
            index += 1

    def _key(self) -> str:
        if self._peek() != b'"':
            raise _DamageError
        self._pieces, self._mark = [], self._at
        self._string()
        raw = b"".join([*self._pieces, self._buffer[self._mark : self._at]])
        self._pieces = None
        if self._peek() != b":":
            raise _DamageError
        self._at += 1
        try:
            return str(json.loads(raw)) if len(raw) <= _LONGEST_KEY else ""
        except ValueError:
            return ""

    def _pass(self, first: bytes) -> None:
        """Move behind the value that starts here."""
        if first == b'"':
            self._string()
        elif first in _CLOSERS:
            self._container()
        else:
            start = self._base + self._at
            self._at = self._match(_SCALAR)
            if self._base + self._at == start:
                raise _DamageError

    def _container(self) -> None:
        open_ = bytearray()
        while True:
            found = _MARK.search(self._buffer, self._at)
            if found is None:
                self._at = len(self._buffer)
                self._more()
                continue
            self._at = found.start()
            mark = found[0]
            if mark == b'"':
                self._string()
                continue
            if mark in _CLOSERS:
                open_ += _CLOSERS[mark]
            elif not open_ or open_.pop() != mark[0]:
                raise _DamageError
            self._at += 1
            if not open_:
                return

    def _string(self) -> None:
        self._at += 1
        while True:
            self._at = self._match(_INSIDE)
            if self._buffer[self._at : self._at + 1] == b'"':
                self._at += 1
                return
            # Else it is a line feed, or a backslash that ends the buffer or stands before one.
            if self._at + 1 < len(self._buffer) or self._buffer[self._at :] == b"\n":
                raise _DamageError
            self._more()

    def _peek(self, *, end: bool = False) -> bytes:
        """Return the next byte that is no white space; b"" at the end, if that may be."""
        try:
            self._at = self._match(_SPACE)
        except _EndError:
            if end:
                return b""
            raise
        return self._buffer[self._at : self._at + 1]

    def _match(self, pattern: re.Pattern[bytes]) -> int:
        """Return where a match that starts here ends; never at the end of the buffer."""
        while True:
            found = pattern.match(self._buffer, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._buffer):
                return self._at
            self._more()

    def _more(self) -> None:
        """Read on; what was passed is let go of, unless it is being taken."""
        piece = self._file.read(PIECE)
        if not piece:
            raise _EndError
        if self._pieces is not None:
            self._pieces.append(self._buffer[self._mark : self._at])
            self._mark = 0
        self._base += self._at
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0

    def _resume(self) -> bool:
        """Go on at the next line that begins with an object; False if there is none."""
        while True:
            found = self._buffer.find(b"\n{", self._at)
            if found >= 0:
                self._at = found + 1
                return True
            self._at = max(self._at, len(self._buffer) - 1)
            try:
                self._more()
            except _EndError:
                return False
