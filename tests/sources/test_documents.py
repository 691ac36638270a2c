from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from compactor.sources import scanner
from compactor.sources.documents import outline, runs
from compactor.sources.scanner import Choice, Place, Scanner

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('ab"\\\n{}[],: é\u2028')),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\{'), inner, max_size=4)
    ),
    max_leaves=12,
)


def flat(value: Any, place: Place, depth: int) -> list[tuple[Place, Any]]:
    if depth and isinstance(value, list):
        return [one for at, item in enumerate(value) for one in flat(item, (*place, at), depth - 1)]
    if depth and isinstance(value, dict):
        return [one for key, item in value.items() for one in flat(item, (*place, key), depth - 1)]
    return [(place, value)]


def scan(raw: bytes, depth: int, piece: int) -> tuple[list[tuple[Place, Any]], list[str]]:
    def choose(place: Place, first: bytes) -> Choice:
        return Choice.ENTER if len(place) <= depth and first in b"{[" else Choice.TAKE

    warnings: list[str] = []
    before, scanner.PIECE = scanner.PIECE, piece
    try:
        parts = list(Scanner(io.BytesIO(raw), choose).parts(warnings))
    finally:
        scanner.PIECE = before
    return [(part.place, part.raw) for part in parts], warnings


@given(
    st.lists(VALUES, min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([1, 2, 3, 7, 50, 65536]),
    st.sampled_from([None, 2]),
)
def test_same_as_a_parser(docs: list[Any], depth: int, piece: int, indent: int | None) -> None:
    """Values and places are those that a parser finds, wherever the pieces of the file end."""
    raw = "".join(json.dumps(doc, indent=indent, ensure_ascii=False) + "\n" for doc in docs)
    found, warnings = scan(raw.encode(), depth, piece)
    expected = [one for at, doc in enumerate(docs) for one in flat(doc, (at,), depth)]
    assert [(place, json.loads(text)) for place, text in found] == expected
    assert not warnings


@given(st.binary(max_size=60) | st.text('{}[]",:\\\n1a', max_size=60).map(str.encode))
def test_anything_ends(raw: bytes) -> None:
    """No bytes raise or loop; what is no JSON is reported."""
    scan(raw, 2, 7)


def test_damage(tmp_path: Path) -> None:
    """A torn document gives what was whole; the next line that begins one is read again."""
    path = tmp_path / "file.json"
    path.write_bytes(
        b'{"messages": [1, "a]\n{"messages": [2], "x": }\n{"messages": [3}\n'
        b'{"messages": [nul, 4]}\n{"messages": [5, "'
    )
    warnings: list[str] = []
    found = [[value for _, value in run] for run in runs(path, [("messages", "*")], warnings)]
    assert found == [[1], [2], [3], [4], [5]]
    assert [warning.split(": ")[1] for warning in warnings] == [
        *["damaged, left out up to the next line with a value"] * 3,
        "damaged, left out",
        "the file ends inside a value",
    ]


def test_outline_of_a_long_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is known by its beginning, and no more of it is read."""
    path = tmp_path / "file.json"
    path.write_text('\ufeff[{"traj": [' + "[" * 500_000)
    monkeypatch.setattr(scanner, "PIECE", 64)
    found = outline(path)
    assert found is not None
    assert (found.listed, found.rows) == (True, [{"traj": []}])
