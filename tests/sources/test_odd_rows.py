from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.sources import UnknownFormat, conversations, load
from compactor.sources.draft import Draft
from compactor.sources.requests import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

CALL = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
CLAUDE: list[dict[str, Any]] = [
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


ASKED: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "a"}]}
TOOL = {"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}
CHAT: list[Any] = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [TOOL], "usage": {"prompt_tokens": 1}},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "b"}]},
    {"role": "tool", "tool_call_ids": ["a"], "content": "b"},
    {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
]
CODEX: list[Any] = [
    {"type": "turn_context", "payload": {"model": "m"}},
    {"type": "response_item", "payload": {"type": "message", **ASKED}},
    {
        "type": "response_item",
        "payload": {"type": "function_call", "name": "x", "arguments": "{}", "call_id": "a"},
    },
    {
        "type": "event_msg",
        "payload": {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 1}}},
    },
    {
        "type": "response_item",
        "payload": {"type": "function_call_output", "call_id": "a", "output": {"content": "b"}},
    },
    {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
]
STREAM: list[Any] = [
    {"type": "system", "subtype": "compact_boundary", "session_id": "s", "uuid": "0"},
    {"type": "user", "message": ASKED, "session_id": "s", "parent_tool_use_id": None},
    {**CLAUDE[1], "session_id": "s", "uuid": "1"},
    {"type": "user", "message": {"content": [RESULT]}, "session_id": "s", "uuid": "2"},
]
del STREAM[2]["parentUuid"]
BODY = {"model": "m", "max_tokens": 1, "messages": CHAT, "response": {"choices": [{"message": {}}]}}
STEP = {"action": "a", "observation": "b", "thought": "c", "response": "d"}
DOCUMENTS: dict[str, Any] = {
    "list": CHAT,
    "body": BODY,
    "bodies": [BODY],
    "tau": [{"traj": CHAT}],
    "history": {"history": CHAT},
    "steps": {"trajectory": [STEP]},
    "stream": STREAM,
}
BY: list[Any] = [None, 7, "3", [], [7], ["3", {}], {}, {"type": []}]


@pytest.mark.parametrize("rows", [CHAT, CODEX, STREAM], ids=["chat", "codex", "stream"])
def test_any_field_of_a_line(
    tmp_path: Path, check: Callable[[Recording], None], rows: list[Any]
) -> None:
    """The same holds for the other formats of JSON lines."""
    path = tmp_path / "session.jsonl"
    for place in places(rows):
        for by in BY:
            path.write_text(
                "\n".join(json.dumps(line) for line in [*broken(rows, place, by), *rows])
            )
            for recording in conversations(path):
                check(recording)


@pytest.mark.parametrize("value", DOCUMENTS.values(), ids=DOCUMENTS)
def test_any_field_of_a_document(
    tmp_path: Path, check: Callable[[Recording], None], value: object
) -> None:
    """A document is read, or refused because it is none of the known ones any more."""
    path = tmp_path / "session.json"
    for place in places(value):
        for by in BY:
            path.write_text(json.dumps(broken(value, place, by)))
            with contextlib.suppress(UnknownFormat):
                for recording in conversations(path):
                    check(recording)


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
