"""Events become plain text in a fence, in pieces that a model can read one at a time.

The fence and the header of each event carry a tag that is made of the digest of what they hold and
does not occur in it: nothing inside can end the fence or pass for an event that never was.

Sizes are bytes of UTF-8, not characters: a token has about as many of them in any script.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .events import Event, What

Piece = tuple["Part", ...]

_LABELS = {
    What.HUMAN: "human",
    What.HOST: "host",
    What.SYSTEM: "system",
    What.SAID: "assistant",
    What.CALLED: "tool call",
    What.RETURNED: "tool result",
}
_LONGEST_NAME = 80  # characters of a tool's name
_SHORTEST_TAG = 6
_ENDS = len("[ · ]\n\n".encode()) + _SHORTEST_TAG  # what stands around a header and a text
_HEADER = 520  # bytes of a header with a tag, at most: the name takes four a character
_OVERLAP = 200  # bytes that two parts share where a line had to be cut
_ROOM = 4 * _HEADER  # the smallest piece


@dataclass(frozen=True, slots=True)
class Part:
    """An event, or a part of one that is larger than a piece; `header` is its first line."""

    header: str
    text: str

    @property
    def size(self) -> int:
        """Bytes of `text_of`, with a tag of the usual length."""
        return len(self.header.encode()) + len(self.text.encode()) + _ENDS


def cut(events: Iterable[Event], most: int) -> tuple[Piece, ...]:
    """Cut events into pieces of at most `most` bytes; nothing is left out.

    The cut goes by what has come before, so all pieces but the last stay the same when events are
    added. There are at most twice as many as the size asks for. An event that is larger than a
    piece is split, at the end of a line where one is near; where a line has to be cut, both
    parts hold the 200 bytes around the cut, so that no name or value is torn.

    Raises:
        ValueError: for pieces of less than 2,080 bytes.

    """
    if most < _ROOM:
        message = f"a piece needs {_ROOM} bytes, not {most}"
        raise ValueError(message)
    pieces: list[Piece] = []
    piece: list[Part] = []
    size = 0
    for part in (part for event in events for part in _parts(event, most)):
        if piece and size + part.size > most:
            pieces.append(tuple(piece))
            piece, size = [], 0
        piece.append(part)
        size += part.size
    return (*pieces, tuple(piece)) if piece else tuple(pieces)


def text_of(parts: Sequence[Part], tag: str) -> str:
    """Return parts as text: each under a line such as `[12 tool result · Bash · failed · TAG]`."""
    return "".join(f"[{part.header} · {tag}]\n{part.text}\n" for part in parts)


def tag_for(*texts: str) -> str:
    """Return a tag (a-z, 2-7) that occurs in none of the texts; the same texts give the same.

    It is as long as it must be, at least 6 characters. Only a text that holds its own SHA-256
    would have none.
    """
    digest = hashlib.sha256("\0".join(texts).encode()).digest()
    whole = base64.b32encode(digest).decode().rstrip("=").lower()
    tags = (whole[:length] for length in range(_SHORTEST_TAG, len(whole) + 1))
    return next(tag for tag in tags if not any(tag in text for text in texts))


def fenced(name: str, text: str, tag: str) -> str:
    """Return a text between `<name-tag>` and `</name-tag>`, each in a line of its own."""
    end = "" if text.endswith("\n") else "\n"
    return f"<{name}-{tag}>\n{text}{end}</{name}-{tag}>\n"


def sampled(text: str, chars: int) -> str:
    """Return the first quarter of `chars` characters and the last three; the gap says its size.

    The line that says so comes on top of `chars`. Shorter text comes back as it is.
    """
    gap = len(text) - chars
    if gap <= 0:
        return text
    head = chars // 4
    return f"{text[:head]}\n[… {gap} characters are left out here …]\n{text[head + gap :]}"


def _parts(event: Event, most: int) -> Iterator[Part]:
    header, text = _header(event), _clean(event.text)
    texts = _split(text, most - _HEADER)
    for number, part in enumerate(texts, 1):
        yield Part(f"{header} · part {number} of {len(texts)}" if texts[1:] else header, part)


def _header(event: Event) -> str:
    """Return `12 tool result · Bash · failed`; a name is foreign text and stays in its line."""
    named = [f"{event.message} {_LABELS[event.what]}"]
    if event.tool:
        named.append(" ".join(_clean(event.tool[:_LONGEST_NAME]).split()))
    return " · ".join([*named, "failed"] if event.failed else named)


def _clean(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _split(text: str, most: int) -> list[str]:
    data = text.encode()
    parts: list[str] = []
    at = 0
    while len(data) - at > most:
        end = at + most
        line = data.rfind(b"\n", end - most // 4, end) + 1
        last = line or _character(data, end)
        parts.append(data[at:last].decode())
        at = line or _character(data, last - _OVERLAP)
    return [*parts, data[at:].decode()]


def _character(data: bytes, at: int) -> int:
    """Return where the character begins whose bytes hold position `at`."""
    while data[at] & 0b1100_0000 == 0b1000_0000:  # noqa: PLR2004 - a byte that goes on with one
        at -= 1
    return at
