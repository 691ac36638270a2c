"""What one wire message holds: its blocks, its digest, and the doorway that only JSON passes.

Digests answer one question, "is this the same message?", and so leave out what a client moves
about without meaning anything by it: cache marks, keys whose value is null, and whether a lone
text is written as a string or as a list of one block. What is stored is never rewritten so.
"""

import hashlib
import json
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import orjson

from .errors import BadMessage

JsonObject = dict[str, Any]
Path = tuple[str | int, ...]
Numbers = tuple[tuple[Path, int | float], ...]

EMPTY_CHAIN = bytes(32)
_SORTED = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_SCALARS = frozenset({str, int, bool, type(None)})
_MANY = 100  # numbers in a message
MAX_DEPTH = 150  # the vault's records go down to 200
_UNSEEN = ("cache_control",)


class Kind(StrEnum):
    """What a content block is to the engine, whatever the wire format calls it."""

    TEXT = "text"
    MEDIA = "media"
    CALL = "call"
    RESULT = "result"
    THINKING = "thinking"
    OPAQUE = "opaque"
    BOUNDARY = "boundary"  # what stands before it, the provider does not read


@dataclass(frozen=True, slots=True)
class Block:
    """Facts about one content block.

    `chars` counts the characters of text that the model reads in it, `tokens` is an estimate.
    `size` is in bytes of JSON and `images` counts images, as providers limit them.
    `call_id` joins a call and its result; `media` is the part of `tokens` that images and
    documents take. `alterable` is false for what must pass unchanged.
    """

    kind: Kind
    digest: bytes
    chars: int
    tokens: int
    size: int = 0
    call_id: str | None = None
    tool: str | None = None
    media: int = 0
    images: int = 0
    alterable: bool = False
    human: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """Facts about one wire message; they depend on the message alone, not on its place.

    `numbers` are its numbers and booleans, each with its path (None: too many to name).
    """

    role: str
    digest: bytes
    blocks: tuple[Block, ...]
    tokens: int
    chars: int
    numbers: Numbers | None
    size: int = 0
    images: int = 0

    @property
    def human(self) -> bool:
        """Whether the human speaks in it."""
        return any(block.human for block in self.blocks)


class Note(NamedTuple):
    """What a block gives way to.

    `keep_media`: a result's images and documents stay beside the text. `keys`: of a call, the
    arguments whose values give way. `drop`: the block goes, and the text stands only where nothing
    else is left of its message.
    """

    text: str
    keep_media: bool = False
    keys: tuple[str, ...] = ()
    drop: bool = False


def plain(value: object, where: str = "message") -> Any:
    """Return `value` as plain JSON: itself where it is already, SDK objects by their own words.

    Raises:
        BadMessage: for anything that JSON cannot hold exactly (NaN, bytes, sets, cycles, …).

    """
    return _plain(value, where, MAX_DEPTH)


def _plain(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if depth == 0:
        _refuse(where, "is nested too deeply", "Pass at most 150 levels.")
    made: Any = None
    if kind is dict:
        made = _plain_dict(value, where, depth - 1)
    elif kind is list or kind is tuple:
        made = _plain_list(value, where, depth - 1)
    elif kind is float:
        if not math.isfinite(value):
            _refuse(where, "holds NaN or infinity", "Replace it by null or by a string.")
        made = value
    elif isinstance(value, str):
        made = str.__str__(value)
    else:
        made = _plain(_own_words(value, where), where, depth - 1)
    return made


def _own_words(value: Any, where: str) -> Any:
    """Ask an SDK's object, or a mapping, for its content."""
    for word in ("to_dict", "model_dump"):
        if callable(own := getattr(value, word, None)) and not isinstance(value, type):
            return own()
    if not isinstance(value, Mapping):
        what = f"holds a {type(value).__name__}, which is not JSON"
        _refuse(where, what, "Pass strings, numbers, lists, dictionaries or SDK objects.")
    return dict(value)


def _plain_dict(value: JsonObject, where: str, depth: int) -> JsonObject:
    changed: JsonObject = {}
    for key, item in value.items():
        if type(key) is not str:
            _refuse(where, "holds a key that is not a string", "JSON keys are strings.")
        if type(item) in _SCALARS:
            continue
        made = _plain(item, where, depth)
        if made is not item:
            changed[key] = made
    return {**value, **changed} if changed else value


def _plain_list(value: list[Any] | tuple[Any, ...], where: str, depth: int) -> Any:
    made = [_plain(item, where, depth) for item in value]
    same = type(value) is list and all(map(operator.is_, made, value))
    return value if same else made


def _refuse(where: str, what: str, hint: str) -> NoReturn:
    message = f"{where}: {what}"
    raise BadMessage(message, hint=hint)


def canonical(value: object) -> bytes:
    """Encode plain JSON in one way only: sorted keys, no spaces, UTF-8, floats as Python's repr."""
    if not _has_float(value):
        try:
            return orjson.dumps(value, option=_SORTED)
        except TypeError:  # integers above 64 bit, lone surrogates
            pass
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        _refuse("an integer", "has more digits than can be written", "Pass it as a string.")
    return text.encode("utf-8", "surrogatepass")


def numbers_in(value: object) -> Numbers | None:
    """Return all numbers and booleans in plain JSON with their paths; None for too many of them."""
    found = tuple(islice(_numbers_in(value, ()), _MANY + 1))
    return None if len(found) > _MANY else found


def _numbers_in(value: object, path: Path) -> Iterator[tuple[Path, int | float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if type(item) is not str:
                yield from _numbers_in(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            if type(item) is not str:
                yield from _numbers_in(item, (*path, position))
    elif isinstance(value, int | float):
        yield path, value


def alike(one: Any, other: Any, numbers: Numbers | None) -> bool:
    """Tell whether two equal messages are exactly the same JSON: 1, true and 1.0 are equal, too.

    `numbers` are those of `one`. What is no plain JSON is not compared: False.
    """
    try:
        if numbers is None:
            return canonical(one) == canonical(other)
        for path, number in numbers:
            if one[path[0]] is other[path[0]]:  # made anew around the same content
                continue
            found = other
            for key in path:
                found = found[key]
            if found is number:
                continue
            if type(found) is not type(number):
                return False
            if isinstance(found, float) and found.hex() != float(number).hex():  # 0.0 and -0.0
                return False
    except (LookupError, TypeError, AttributeError):
        return False
    return True


def _has_float(value: object) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:  # a loop: this is asked of every block
        kind = type(part)
        if kind is float or ((kind is dict or kind is list) and _has_float(part)):
            return True
    return type(value) is float


def seen(block: JsonObject) -> JsonObject:
    """Return a block as digests see it: no cache mark, no null, lone texts as one block."""
    if any(value is None or key in _UNSEEN for key, value in block.items()):
        block = {k: v for k, v in block.items() if v is not None and k not in _UNSEEN}
    content = block.get("content")
    if isinstance(content, str):
        block = {**block, "content": [{"type": "text", "text": content}]}
    elif isinstance(content, list):
        block = {**block, "content": [seen(b) if isinstance(b, dict) else b for b in content]}
    return block


def digest_of(block: JsonObject) -> bytes:
    """SHA-256 of a block's canonical JSON."""
    return digest_and_size(block)[0]


def digest_and_size(block: JsonObject) -> tuple[bytes, int]:
    """SHA-256 of a block's canonical JSON, and its size in bytes."""
    data = canonical(seen(block))
    return hashlib.sha256(data).digest(), len(data)


def message_digest(message: JsonObject, blocks: list[bytes]) -> bytes:
    """SHA-256 of a message's canonical JSON in which its blocks stand as hexadecimal digests."""
    fields = {k: v for k, v in message.items() if v is not None and k not in _UNSEEN}
    fields["content"] = [digest.hex() for digest in blocks]
    return hashlib.sha256(canonical(fields)).digest()


def link(chain: bytes, digest: bytes) -> bytes:
    """Extend a chain digest by one message: SHA-256 of the chain so far and the message's."""
    return hashlib.sha256(chain + digest).digest()
