from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.sources import load
from compactor.sources.draft import Draft
from compactor.sources.requests import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

CALL = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
CLAUDE = [
    {"type": "user", "uuid": "1", "parentUuid": None, "message": {"role": "user", "content": "a"}},
    {
        "type": "assistant",
        "uuid": "2",
        "parentUuid": "1",
        "message": {"id": "m", "content": [CALL], "usage": {"input_tokens": 1}, "model": "m"},
    },
    {"type": "user", "uuid": "3", "parentUuid": "2", "message": {"content": [RESULT]}},
    {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "4",
        "logicalParentUuid": "3",
        "compactMetadata": {"preservedMessages": {"uuids": ["3"]}},
    },
    {"type": "user", "uuid": "5", "parentUuid": "4", "message": {"content": "b"}},
]
PI = [
    {"type": "session", "id": "s", "cwd": "/", "timestamp": "t"},
    {"type": "message", "id": "1", "message": {"role": "user", "content": "a"}},
    {
        "type": "message",
        "id": "2",
        "parentId": "1",
        "message": {
            "role": "assistant",
            "content": [{"type": "toolCall", "id": "a", "name": "x", "arguments": {}}],
            "usage": {"input": 1},
        },
    },
    {
        "type": "message",
        "id": "3",
        "parentId": "2",
        "message": {"role": "toolResult", "toolCallId": "a", "content": [], "isError": True},
    },
    {"type": "compaction", "id": "4", "parentId": "3"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            found += places(item, (*path, at))
    return found


def broken(value: Any, path: tuple[Any, ...], by: object) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = by
    return copy


@pytest.mark.parametrize("rows", [CLAUDE, PI], ids=["claude_code", "pi"])
@pytest.mark.parametrize("by", [None, 7, "3", [], [7], ["3", {}], {}, {"type": []}, True])
def test_any_field_may_be_of_another_type(
    tmp_path: Path, check: Callable[[Recording], None], rows: list[Any], by: object
) -> None:
    """A field of an unexpected type is left out or taken as it is, and never raises."""
    path = tmp_path / "session.jsonl"
    marks = [{"type": "session", "cwd": "/", "timestamp": "t"}] if rows is PI else []
    for place in places(rows):
        lines = [*marks, *broken(rows, place, by), *rows[:1]]
        path.write_text("\n".join(json.dumps(line) for line in lines))
        check(load(path))


def test_odd_blocks() -> None:
    """What is no block is left out and counted; odd inputs and results are made plain."""
    drafts = [
        Draft("user", ["words", 7, {"text": "no type"}, CALL], 1),
        Draft("assistant", [RESULT, {**CALL, "input": "x"}, {**CALL, "id": 7}], 2),
        Draft("user", [{**RESULT, "content": [7, "in", {"type": "text", "text": ""}]},
                       {"type": "tool_result"}, {"type": "thinking", "signature": "s"}], 3),
        Draft("assistant", [{**CALL, "id": "b", "input": None}], 4),
        Draft("user", [{**RESULT, "tool_use_id": "b", "content": 5}], 5),
    ]  # fmt: skip
    recording = record(Path("made"), "test", drafts, [])
    contents = [message["content"] for message in recording.messages]
    text = {"type": "text", "text": "words"}
    assert contents[0] == [text]
    assert contents[1] == [{**CALL, "input": {"input": "x"}}]
    assert contents[2] == [{**RESULT, "content": [{"type": "text", "text": "in"}]}]
    assert contents[3] == [{**CALL, "id": "b", "input": {}}]
    assert contents[4] == [{**RESULT, "tool_use_id": "b", "content": "5"}]
    assert recording.warnings == [
        "line 1: 3 blocks that no provider takes left out",
        "line 2: 2 blocks that no provider takes left out",
        "line 3: 2 blocks that no provider takes left out",
    ]
