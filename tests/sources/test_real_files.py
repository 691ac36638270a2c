from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.sources import load
from compactor.sources.lines import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compactor.sources import Recording

SESSIONS = Path(__file__).resolve().parents[2].parent / "shared" / "sessions"
KINDS = {"claude_code": "claude_code", "pi_session": "pi"}


def index() -> list[dict[str, str]]:
    if not (SESSIONS / "INDEX.tsv").exists():
        return []
    with (SESSIONS / "INDEX.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row for row in rows if row["kind"] in KINDS and row["import"] == "yes"]


def files() -> list[Any]:
    found = [pytest.param(row, id=Path(row["file"]).stem[-40:]) for row in index()]
    return found or [pytest.param({}, id="none")]


def blocks(content: object) -> Iterator[dict[str, Any]]:
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict):
            yield block


def results(messages: list[Any]) -> list[str]:
    """Text of all results, in wire form or in pi's."""
    found = []
    for message in messages:
        if message.get("role") == "toolResult":
            found.append(str(message["content"]))
        found += [
            str(block.get("content"))
            for block in blocks(message.get("content"))
            if block.get("type") == "tool_result"
        ]
    return sorted(found)


def texts(messages: list[Any]) -> list[str]:
    """All texts of users and models outside results, but white space."""
    found = []
    for message in messages:
        content = message.get("content")
        if message.get("role") not in {"user", "assistant"}:
            continue
        found += [content] if isinstance(content, str) else []
        found += [block["text"] for block in blocks(content) if block.get("type") == "text"]
    return sorted(text for text in found if text.strip())


def rows(path: Path) -> list[dict[str, Any]]:
    """Messages of a file's own conversation as they stand in the file."""
    values = [row.value for row in Reader(path)]
    values = [value for value in values if isinstance(value.get("message"), dict)]
    values = [value for value in values if not value.get("isCompactSummary")]
    if any(not value.get("isSidechain") for value in values):
        values = [value for value in values if not value.get("isSidechain")]
    return [v["message"] for v in values if v["type"] in {"user", "assistant", "message"}]


@pytest.mark.parametrize("row", files())
def test_real_file(row: dict[str, str], check: Callable[[Recording], None]) -> None:
    """Each recorded file loads, is legal, and holds all results of its conversation."""
    if not row:
        pytest.skip("no recorded sessions beside the repository")
    path = SESSIONS / row["file"]
    recording = load(path)
    check(recording)
    assert recording.format == KINDS[row["kind"]]
    recorded = rows(path)
    if row["note"] != "synthetic":  # those are made of broken links on purpose
        assert results(recording.messages) == results(recorded)
        assert set(texts(recorded)) <= set(texts(recording.messages))
        assert recording.requests
    # One reply stands on several rows, so that at least a third remains.
    assert len(recording.messages) <= int(row["messages"])
    if row["note"] != "synthetic":
        assert len(recording.messages) * 3 >= len(recorded)
    replies = {m.get("id") or n for n, m in enumerate(recorded) if m.get("role") == "assistant"}
    assert len(recording.requests) <= len(replies)
