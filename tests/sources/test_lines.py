from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compactor.sources.lines import PIECE, Reader, parse, values_at

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, data: bytes) -> tuple[list[tuple[int, object]], list[str]]:
    path.write_bytes(data)
    reader = Reader(path)
    return [(row.line, row.value) for row in reader], reader.warnings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_only_line_feeds_end_a_line(path: Path) -> None:
    """U+2028, U+0085 and carriage returns inside a string do not split a row."""
    text = "a\u2028b\u0085c\x0bd"
    rows, warnings = read(path, f'{{"t": "{text}"}}\r\n{{"n": 2}}\n'.encode())
    assert [value for _, value in rows] == [parse(f'{{"t": "{text}"}}'.encode())[0], {"n": 2}]
    assert len(warnings) <= 1


def test_empty_lines_and_mark_at_the_start(path: Path) -> None:
    """A byte order mark and empty lines are no damage, and line numbers count them."""
    rows, warnings = read(path, b'\xef\xbb\xbf{"n": 1}\n\n  \r\n{"n": 2}\n')
    assert rows == [(1, {"n": 1}), (4, {"n": 2})]
    assert warnings == []


def test_last_line_without_line_feed(path: Path) -> None:
    """A whole last line counts although its line feed is missing."""
    assert read(path, b'{"n": 1}\n{"n": 2}') == ([(1, {"n": 1}), (2, {"n": 2})], [])


def test_torn_last_line(path: Path) -> None:
    """A torn last line is skipped with a warning and is no damage."""
    path.write_bytes(b'{"n": 1}\n{"n": 2, "text": "abc')
    reader = Reader(path)
    assert [row.value for row in reader] == [{"n": 1}]
    assert reader.warnings == ["line 2: the last line is torn, left out"]
    assert reader.damaged == []


def test_damage_in_the_middle(path: Path) -> None:
    """Damage in the middle is named by its line, and the rest is read."""
    path.write_bytes(b'{"n": 1}\n{"n": \n[3]\n{"n": 4}\n')
    reader = Reader(path)
    assert [row.line for row in reader] == [1, 4]
    assert reader.damaged == [2]
    assert reader.warnings == ["line 2: damaged, left out", "line 3: not an object, left out"]


def test_nul_run(path: Path) -> None:
    """A run of NULs is left out with its count, and the row beside it is read."""
    rows, warnings = read(path, b'{"n": 1}\n' + b"\0" * 300 + b'{"n": 2}\n' + b"\0" * 5)
    assert rows == [(1, {"n": 1}), (2, {"n": 2})]
    assert warnings == ["line 2: 300 NUL bytes left out", "line 3: 5 NUL bytes left out"]


def test_torn_row_before_nuls(path: Path) -> None:
    """A row that was torn before a hole does not take the next one with it."""
    rows, warnings = read(path, b'{"n": 1, "t": "ab\0\0\0{"n": 2}\n{"n": 3}\n')
    assert [value for _, value in rows] == [{"n": 2}, {"n": 3}]
    assert warnings == ["line 1: 3 NUL bytes left out", "line 1: damaged, left out"]


@pytest.mark.parametrize("length", [PIECE - 30, PIECE - 9, PIECE, PIECE + 1, 20_000_000])
def test_long_line(path: Path, length: int) -> None:
    """A line may be longer than what is read at once."""
    rows, warnings = read(path, b'{"t": "' + b"x" * length + b'"}\n{"n": 2}\n')
    assert rows == [(1, {"t": "x" * length}), (2, {"n": 2})]
    assert warnings == []


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (rb'{"t": "a\ud83d"}', {"t": "a\ufffd"}),
        (rb'{"t": "\ud83d\ude00 \udc00"}', {"t": "\U0001f600 \ufffd"}),
        (b'{"n": [NaN, -Infinity, 1]}', {"n": [None, None, 1]}),
        (b'{"t": "a\tb\xff"}', {"t": "a\tb\ufffd"}),
    ],
)
def test_what_strict_json_refuses(path: Path, raw: bytes, value: object) -> None:
    """What only the standard library reads comes as sendable JSON, with a warning."""
    rows, warnings = read(path, raw + b"\n")
    assert rows == [(1, value)]
    assert warnings == ["line 1: not strict JSON, read with replacements"]


def test_deep_nesting_is_damage(path: Path) -> None:
    """Nesting too deep to hold is reported as damage, not raised."""
    rows, warnings = read(path, b"[" * 200_000 + b"\n" + b'{"n": 1}\n')
    assert rows == [(2, {"n": 1})]
    assert warnings == ["line 1: damaged, left out"]


def test_rows_again(path: Path) -> None:
    """Rows can be read again by offset, also one that stands after a hole."""
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\n{"t":"x\0\0{"n": 2}\n{"n": 3}\n')
    offsets = [row.offset for row in Reader(path)]
    again = list(values_at(path, reversed(offsets)))
    assert again == [{"n": 3}, {"n": 2}, {"n": 1}]
