"""JSON values come back as they went in."""

import json
import math
import uuid
from collections import OrderedDict
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.storage import Damaged, NotJson
from compactor.storage.compression import Compressor
from compactor.storage.records import (
    JSON,
    LARGE_RECORD,
    LONG_STRING,
    MAX_BODY,
    MAX_DEPTH,
    decode,
    encode,
)

# All code points, lone surrogates too.
TEXT = st.text(st.characters(exclude_categories=[]), max_size=30)
LONG = st.builds(lambda text, n: text * n, TEXT.filter(len), st.integers(1, 60)).map(
    lambda text: text * (LONG_STRING // len(text) // 20)
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    LONG,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


class Word(StrEnum):
    A = "a"


class Shelf:
    """Blobs in memory."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def put(self, content: bytes) -> str:
        name = f"blob{len(self.contents)}"
        self.contents[name] = content
        return name


def there_and_back(value: object) -> tuple[JSON, bytes, Shelf]:
    shelf = Shelf()
    body = encode(value, shelf.put)
    return decode(body, shelf.contents.__getitem__, where="here"), body, shelf


def exact(value: object) -> str:
    """Tell apart what == does not: 1, 1.0 and True; 0.0 and -0.0; the order of keys."""
    return repr(value)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_every_json_value_comes_back_exactly(value: object) -> None:
    """Types, key order, big integers, floats and any code point survive."""
    assert exact(there_and_back(value)[0]) == exact(value)


@pytest.mark.parametrize(
    "value",
    [
        *(0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 2**63, 2**64, -(2**63) - 1, 10**400),
        *("\ud800", "\ud83d\ude00", "😀", "\u2028\u2029\0\x7f\ufeff", "\\ud800", ""),
        *({"\udfff": 1}, {"b": 1, "a": 2}, {"": {"": []}}, [], {}, [[]], [True, 1, 1.0, None]),
    ],
)
def test_corner_values_come_back_exactly(value: object) -> None:
    """The values on which JSON libraries differ survive, also beside a long string."""
    assert exact(there_and_back(value)[0]) == exact(value)
    beside = [value, "x" * (LONG_STRING + 1)]
    assert exact(there_and_back(beside)[0]) == exact(beside)


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, [-math.inf], b"x", {1}, {1: 2}, {None: 1}, {True: 1}, object(), 1j),
        *(uuid.UUID(int=1), Word.A, OrderedDict(a=1), [10**5000], {"a": [(b"",)]}),
    ],
)
def test_what_is_not_json_is_refused_and_nothing_is_stored(value: object) -> None:
    """No value is turned into a string, NaN does not become null, no blob is left behind."""
    shelf = Shelf()
    with pytest.raises(NotJson) as caught:
        encode(["x" * 20_000, value], shelf.put)
    assert isinstance(caught.value, TypeError)
    assert not shelf.contents


def test_a_refusal_says_where_but_quotes_no_content() -> None:
    """The path in the error has indexes only: keys may be content."""
    with pytest.raises(NotJson, match=r"^the value at \[1\]\.\*\[0\] is a bytes$") as caught:
        encode([1, {"secret": [b"secret"]}], Shelf().put)
    assert caught.value.where == "[1].*[0]"
    assert "secret" not in repr(caught.value)


def test_too_deep_is_refused_and_deep_enough_is_not() -> None:
    """Depth has one limit for all libraries, which a cyclic value meets too."""
    value: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert there_and_back(value)[0] == value
    with pytest.raises(NotJson, match="deeper"):
        encode([value], Shelf().put)
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(NotJson, match="deeper"):
        encode(cycle, Shelf().put)


def test_tuples_come_back_as_lists() -> None:
    """JSON has one kind of sequence."""
    assert there_and_back({"a": (1, ("x" * 20_000,))})[0] == {"a": [1, ["x" * 20_000]]}


@pytest.mark.parametrize(("char", "width"), [("a", 1), ("é", 2), ("\ud800", 3), ("😀", 4)])
def test_strings_above_the_limit_are_lifted_and_others_are_not(char: str, width: int) -> None:
    """The limit is in bytes of UTF-8."""
    at_limit = char * (LONG_STRING // width)
    assert there_and_back([at_limit])[2].contents == {}
    value, _, shelf = there_and_back([at_limit + char])
    assert value == [at_limit + char]
    assert list(shelf.contents.values()) == [(at_limit + char).encode("utf-8", "surrogatepass")]


def test_lifting_changes_no_value_of_the_caller() -> None:
    """The caller's containers keep their strings."""
    value = {"a": [{"b": "x" * 20_000, "c": 1}]}
    encode(value, Shelf().put)
    assert value == {"a": [{"b": "x" * 20_000, "c": 1}]}


def test_a_large_record_becomes_one_blob() -> None:
    """Above the limit the whole value is a blob, long strings included, and the record is small."""
    value = {"many": ["word " * 20] * 4000, "long": "x" * 20_000, "wide": "\ud800"}
    back, body, shelf = there_and_back(value)
    assert back == value
    assert len(shelf.contents) == 1
    assert len(body) < 100 < LARGE_RECORD


def test_a_small_record_costs_one_byte() -> None:
    """A record without blobs has no envelope."""
    value = {"at": 1765432100123, "chain": "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF"}
    assert len(there_and_back(value)[1]) <= 1 + len(json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\0", b"\x08{}", b"\0{", b"\1xx", b"\2[]", b"\2{}", b'\2[1,[[[0],"n","text"]]]'),
        *(b"\2[1,2]", b'\2[[],[[[7],"n","text"]]]', b'\2[[1],[[[0],"n","odd"]]]', b"\4\xff"),
        b"\4" + b"[" * 5000,
    ],
)
def test_a_body_that_is_none_is_damage(body: bytes) -> None:
    """Whatever the bytes are, the error is `Damaged`."""
    with pytest.raises(Damaged, match="here"):
        decode(body, {"n": b"text"}.__getitem__, where="here")


def test_a_body_does_not_expand_without_bound() -> None:
    """A frame that states more than a record may hold is not expanded."""
    bomb = Compressor().frame(bytes(MAX_BODY + 1))
    with pytest.raises(Damaged):
        decode(b"\1" + bomb, Shelf().contents.__getitem__, where="here")
