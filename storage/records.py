"""A JSON value to the body of a record and back, exactly.

Long strings are lifted out into blobs. The record keeps null in their place and
names them in a list beside the value, never by a marker inside it.
"""

import enum
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeAlias, cast

import orjson

from .compression import Compressor, expand
from .errors import Damaged, NotJson

# dict, list, str, int, float, bool or None; what is inside is known to whoever wrote the record.
JSON: TypeAlias = Any
Path = list[str | int]

LONG_STRING: Final = 16 * 1024  # bytes of UTF-8; a longer string is lifted out
LARGE_RECORD: Final = 256 * 1024  # bytes of JSON; a larger record becomes a blob as a whole
MAX_BODY: Final = 2 * 1024 * 1024  # bytes of JSON that a reader accepts
# orjson stops at 254; deeper values would be written by one library only.
MAX_DEPTH: Final = 200

_ZSTD, _BLOBS, _WIDE = 1, 2, 4
_CONTAINERS: Final = frozenset({dict, list, tuple})
_PLAIN: Final = frozenset({int, bool, type(None)})
_STRICT = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_compressor = Compressor()


class Kind(enum.IntEnum):
    """What a record is; stands in clear in its frame."""

    OPEN = 1
    MESSAGES = 2
    SET = 3
    REQUEST = 4
    REVERT = 5
    CLOSE = 6


def encode(value: object, put: Callable[[bytes], str]) -> bytes:
    """Encode a JSON value; `put` stores the content of a blob and returns its name.

    Tuples read back as lists, all else equal and in the same order. Raises
    `NotJson`, before anything is put, for what would not.
    """
    long: list[tuple[Path, bytes]] = []
    _check(value, [], long)
    text, wide = _dump(_without(value, [path for path, _ in long]) if long else value)
    flags = _WIDE if wide else 0
    if len(text) + _list_size(long) > LARGE_RECORD:
        whole = _dump(value)[0] if long else text
        text, flags = _dump([None, [[[], put(whole), "json"]]])[0], _BLOBS
    elif long:
        blobs, wide = _dump([[path, put(content), "text"] for path, content in long])
        flags |= _BLOBS | (_WIDE if wide else 0)
        text = b"[%b,%b]" % (text, blobs)
    packed = _compressor.frame(text)
    if len(packed) < len(text):
        return bytes([flags | _ZSTD]) + packed
    return bytes([flags]) + text


def decode(body: bytes, get: Callable[[str], bytes], *, where: str, bare: bool = False) -> JSON:
    """Decode what `encode` made; `get` returns the content of a blob by its name.

    `bare` leaves the lifted strings empty and asks for no blob that holds one.
    Raises `Damaged`, naming `where`.
    """
    flags, text = (body[0], body[1:]) if body else (0, b"")
    if flags & ~(_ZSTD | _BLOBS | _WIDE):
        message = f"{where} is in a form that this version does not know"
        raise Damaged(message, where=where, hint="read it with a newer version")
    if flags & _ZSTD:
        text = expand(text, at_most=MAX_BODY, where=where)
    try:
        value = _load(text, wide=bool(flags & _WIDE))
        return _resolve(value, get, bare=bare) if flags & _BLOBS else value
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        message = f"{where} does not hold what a record holds"
        raise Damaged(message, where=where) from None


def _check(value: object, path: Path, long: list[tuple[Path, bytes]]) -> None:
    """Refuse what JSON cannot hold, and collect the long strings with their paths.

    Exact types only: an instance of a subclass would read back as its base.
    """
    kind = type(value)
    if kind is str:
        if (content := _long_content(cast("str", value))) is not None:
            long.append((path.copy(), content))
    elif kind in _CONTAINERS:
        if len(path) >= MAX_DEPTH:
            _refuse(path[:3], f"is nested deeper than {MAX_DEPTH} levels")
        for step, item in _items(value, path):
            path.append(step)
            _check(item, path, long)
            path.pop()
    elif kind is float:
        if not math.isfinite(cast("float", value)):
            _refuse(path, "is not a finite number")
    elif kind not in _PLAIN:
        _refuse(path, f"is a {kind.__name__}")


def _items(value: object, path: Path) -> Iterator[tuple[str | int, object]]:
    if not isinstance(value, dict):
        yield from enumerate(cast("list[object]", value))
        return
    for key, item in value.items():
        if type(key) is not str:
            _refuse(path, f"has a key that is a {type(key).__name__}")
        yield key, item


def _refuse(path: Path, what: str) -> NoReturn:
    # Keys may be content: only indexes are named, and how deep they stand.
    where = "".join(f"[{step}]" if isinstance(step, int) else ".*" for step in path)
    message = f"the value{' at ' + where if where else ''} {what}"
    raise NotJson(message, where=where, hint="pass plain JSON values; SDK objects by to_dict()")


def _long_content(text: str) -> bytes | None:
    """Return a long string's UTF-8, None for any other. Lone surrogates pass as they are."""
    if len(text) * 4 <= LONG_STRING:
        return None
    content = text.encode("utf-8", "surrogatepass")
    return content if len(content) > LONG_STRING else None


def _without(value: object, paths: list[Path]) -> object:
    """Copy `value` with null at each path; what no path touches is shared, not copied."""
    inner: dict[str | int, list[Path]] = {}
    for path in paths:
        if not path:
            return None
        inner.setdefault(path[0], []).append(path[1:])
    copy: Any = value.copy() if isinstance(value, dict) else list(cast("list[object]", value))
    for step, rest in inner.items():
        copy[step] = _without(copy[step], rest)
    return copy


def _list_size(long: list[tuple[Path, bytes]]) -> int:
    """Estimate, from above, the JSON of the list that will name the blobs."""
    return sum(len(_dump(path)[0]) + 50 for path, _ in long)


def _dump(value: object) -> tuple[bytes, bool]:
    """Write JSON; tell whether it is wide: ints over 64 bits or surrogates, as raw UTF-8.

    Escapes would not do for surrogates: a parser joins two of them into one character.
    """
    try:
        return orjson.dumps(value, option=_STRICT), False
    except orjson.JSONEncodeError:
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # an int of more digits than Python converts
        _refuse([], "holds a number of too many digits")
    return text.encode("utf-8", "surrogatepass"), True


def _load(text: bytes, *, wide: bool) -> JSON:
    if wide:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    return orjson.loads(text)


def _resolve(record: JSON, get: Callable[[str], bytes], *, bare: bool) -> JSON:
    """Put the content of the blobs back where the list beside the value says."""
    value, blobs = record
    holder = [value]
    for path, name, form in blobs:
        content = b"" if bare and form == "text" else get(name)
        # A path that does not fit raises, and `decode` says what that means.
        place: JSON = holder
        steps: Path = [0, *path]
        for step in steps[:-1]:
            place = place[step]
        place[steps[-1]] = _FORMS[form](content)
    return holder[0]


_FORMS: Final[dict[str, Callable[[bytes], JSON]]] = {
    "text": lambda content: content.decode("utf-8", "surrogatepass"),
    "json": lambda content: _load(content, wide=True),
}
