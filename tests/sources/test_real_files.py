from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.sources import conversations, load
from compactor.sources.lines import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from compactor.sources import Recording

SESSIONS = Path(__file__).resolve().parents[2].parent / "shared" / "sessions"
KINDS = {"claude_code": "claude_code", "pi_session": "pi"}
OTHERS = {
    "claude_stream_json": {"claude_stream"},
    "codex_rollout": {"codex"},
    "messages_json": {"anthropic_messages", "openai_messages", "swe_agent"},
    "messages_jsonl": {"openai_messages"},
    "swe_agent_traj": {"swe_agent"},
    "tau_bench": {"tau_bench"},
}


def index(kinds: Collection[str] = KINDS) -> list[dict[str, str]]:
    if not (SESSIONS / "INDEX.tsv").exists():
        return []
    with (SESSIONS / "INDEX.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row for row in rows if row["kind"] in kinds and row["import"] == "yes"]


def files(kinds: Collection[str] = KINDS) -> list[Any]:
    found = [
        pytest.param(row, id=f"{at}-{Path(row['file']).stem[-40:]}")
        for at, row in enumerate(index(kinds))
    ]
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


def told(value: Any) -> Iterator[str]:
    """Texts of tool results that stand anywhere in JSON of OpenAI's forms."""
    if isinstance(value, list):
        for item in value:
            yield from told(item)
    elif isinstance(value, dict):
        content = value.get("content")
        if value.get("role") == "tool" and content:
            yield content if isinstance(content, str) else content[0]["text"]
        elif value.get("type") == "function_call_output":
            yield value["output"]
        else:
            for item in value.values():
                yield from told(item)


def text_of(block: dict[str, Any]) -> str:
    content = block.get("content")
    return content[0]["text"] if isinstance(content, list) and content else str(content)


@pytest.mark.parametrize("row", files(OTHERS))
def test_other_real_file(row: dict[str, str], check: Callable[[Recording], None]) -> None:
    """Each file of the other formats loads, is legal, and holds all results that stand in it."""
    if not row:
        pytest.skip("no recorded sessions beside the repository")
    path = SESSIONS / row["file"]
    (recording,) = conversations(path)
    check(recording)
    assert recording.format in OTHERS[row["kind"]]
    assert recording.requests
    assert len(recording.messages) <= int(row["messages"])
    held = [block for message in recording.messages for block in blocks(message["content"])]
    got = {text_of(block) for block in held if block["type"] == "tool_result"}
    calls = sum(block["type"] == "tool_use" for block in held)
    if row["kind"] == "claude_stream_json":
        assert results(recording.messages) == results(rows(path))
    else:
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        values = [json.loads(line) for line in lines]
        if recording.format == "swe_agent":  # the rest repeats it, with old results cut
            values = [value["history"] for value in values]
        assert set(told(values)) <= got
    # Old trajectories count actions in texts as calls; a log's reply is one call more; a file
    # that was cut short has calls that were never answered.
    assert calls <= int(row["tool_calls"]) + ("response" in path.read_text()[-9000:])
