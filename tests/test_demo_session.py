"""Facts of the recorded session that the demo replays."""

import json
import re
import struct
import zlib
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[1] / "scripts" / "demo-session.jsonl"


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PATH.read_bytes().split(b"\n") if line]


def conversation() -> list[dict[str, Any]]:
    return [row for row in rows() if row["type"] in {"user", "assistant"}]


def blocks(row: dict[str, Any]) -> list[dict[str, Any]]:
    content = row["message"]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def replies() -> dict[str, list[dict[str, Any]]]:
    """The rows of each reply, by message id."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in conversation():
        if row["type"] == "assistant":
            found[row["message"]["id"]].append(row)
    return found


def results() -> list[dict[str, Any]]:
    return [
        block for row in conversation() for block in blocks(row) if block["type"] == "tool_result"
    ]


def humans() -> list[str]:
    return [
        block["text"]
        for row in conversation()
        if row["type"] == "user"
        for block in blocks(row)
        if block["type"] == "text"
    ]


def images() -> Iterator[dict[str, Any]]:
    for row in conversation():
        for block in blocks(row):
            inner = block.get("content")
            parts = inner if isinstance(inner, list) else [block]
            yield from (part for part in parts if part["type"] == "image")


def test_size_is_bounded() -> None:
    """A clone stays quick, and every stage has something to do."""
    assert 800_000 <= PATH.stat().st_size <= 2_500_000


def test_counts() -> None:
    """Long enough for several compactions in a window of 30,000 tokens."""
    parallel = [
        rows
        for rows in replies().values()
        if sum(row["message"]["content"][0]["type"] == "tool_use" for row in rows) > 1
    ]
    assert 200 <= len(replies()) <= 300
    assert 400 <= len(replies()) + sum(row["type"] == "user" for row in conversation()) <= 600
    assert len(parallel) >= 20
    assert len(humans()) >= 8
    assert sum(bool(block.get("is_error")) for block in results()) >= 5


def test_results_are_of_all_sizes() -> None:
    """Some results are far too large for a prompt, many are middling."""
    sizes = [len(b["content"]) for b in results() if isinstance(b["content"], str)]
    assert sum(size > 100_000 for size in sizes) >= 3
    assert sum(2_000 <= size <= 30_000 for size in sizes) >= 40


def test_rows_are_one_chain() -> None:
    """Each row's parent is the row of the chain before it; ids are unique and time goes on."""
    chain = [row for row in rows() if "uuid" in row]
    assert chain[0]["parentUuid"] is None
    assert all(row["parentUuid"] == before["uuid"] for before, row in pairwise(chain))
    assert len({row["uuid"] for row in chain}) == len(chain)
    assert all(before["timestamp"] <= row["timestamp"] for before, row in pairwise(chain))


def test_every_call_has_its_result_before_the_next_reply() -> None:
    """Calls and results pair up, in order, and no id is used twice."""
    open_calls: list[str] = []
    seen: set[str] = set()
    message = ""
    for row in conversation():
        if row["type"] == "assistant" and row["message"]["id"] != message:
            assert open_calls == []
            message = row["message"]["id"]
        for block in blocks(row):
            if block["type"] == "tool_use":
                assert block["id"] not in seen
                seen.add(block["id"])
                open_calls.append(block["id"])
            elif block["type"] == "tool_result":
                assert open_calls.pop(0) == block["tool_use_id"]
    assert open_calls == []
    assert len(seen) == len(results())


def test_rows_of_a_reply_hold_one_block_and_the_same_usage() -> None:
    """As Claude Code writes them: one row a block, usage repeated, not divided."""
    for parts in replies().values():
        assert all(len(row["message"]["content"]) == 1 for row in parts)
        assert all(row["message"]["usage"] == parts[0]["message"]["usage"] for row in parts)
        assert all(row["message"]["stop_reason"] is None for row in parts[:-1])
        assert parts[-1]["message"]["stop_reason"] in {"tool_use", "end_turn"}


def test_usage_grows_with_the_history() -> None:
    """The cache holds what the request before it held; the prompt only grows."""
    usages = [parts[0]["message"]["usage"] for parts in replies().values()]
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    totals = [sum(usage[name] for name in names) for usage in usages]
    assert all(before < after for before, after in pairwise(totals))
    assert all(
        usage["cache_read_input_tokens"] <= before
        for before, usage in zip(totals, usages[1:], strict=False)
    )
    assert totals[-1] > 300_000


def test_images_decode() -> None:
    """One picture was pasted by the human, one was drawn in the session; both are whole PNGs."""
    found = list(images())
    assert len(found) == 2
    sizes = []
    for image in found:
        assert image["source"]["media_type"] == "image/png"
        data = b64decode(image["source"]["data"], validate=True)
        sizes.append(len(data))
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        place, packed, kinds = 8, b"", []
        while place < len(data):
            length, kind = struct.unpack_from(">I4s", data, place)
            body = data[place + 8 : place + 8 + length]
            (checksum,) = struct.unpack_from(">I", data, place + 8 + length)
            assert zlib.crc32(kind + body) == checksum
            kinds.append(kind)
            packed += body if kind == b"IDAT" else b""
            place += 12 + length
        width, height = struct.unpack_from(">II", data, 16)
        assert kinds == [b"IHDR", b"IDAT", b"IEND"]
        assert len(zlib.decompress(packed)) == height * (1 + 3 * width)
    assert 5_000 <= max(sizes) <= 30_000


@pytest.mark.parametrize(
    "rule",
    [
        "never touch the public API of orderdesk/parser.py",
        "keep Python 3.9 compatibility",
        "- do not write to data/\n",
        "Correction: you may write to data/derived/",
        "Keep `total_cents` in the CSV file",
    ],
)
def test_constraints_are_the_humans(rule: str) -> None:
    """What a compaction must carry on stands in the human's own words."""
    assert sum(rule in text for text in humans()) == 1


def test_the_agent_quotes_an_early_output_at_the_end() -> None:
    """A late answer depends on a result that any compaction has long left out."""
    texts = [
        (number, block["text"])
        for number, row in enumerate(conversation())
        if row["type"] == "assistant"
        for block in blocks(row)
        if block["type"] == "text"
    ]
    number, answer = next(item for item in texts if item[1].startswith("The first one was:"))
    quoted = answer.split("\n")[2].strip()
    early = [
        block["content"]
        for row in conversation()[: number // 10]
        for block in blocks(row)
        if block["type"] == "tool_result"
    ]
    assert any(quoted in content for content in early)


def test_no_path_of_the_recording_machine() -> None:
    """Every folder in the file is `/project` or one that every machine has."""
    text = PATH.read_text(encoding="utf-8")
    assert {row["cwd"] for row in rows() if "cwd" in row} == {"/project"}
    assert not re.search(r"/(?:root|work|home|Users|private|var)/|\.venv|pyenv|/tmp/(?!home)", text)
