"""Write small sessions, load them, and judge what comes out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from compactor.sources import Recording, conversations, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _open_calls(message: dict[str, Any]) -> list[str]:
    return [block["id"] for block in _blocks(message) if block["type"] == "tool_use"]


def _check_blocks(message: dict[str, Any]) -> None:
    assert set(message) == {"role", "content"}
    blocks = _blocks(message)
    assert blocks
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    assert all(texts)
    assert len(texts) < len(blocks) or any(text.strip() for text in texts)
    kinds = [block["type"] for block in blocks]
    if message["role"] == "assistant":
        assert "tool_result" not in kinds
        assert kinds[-1] not in {"thinking", "redacted_thinking"}
        assert all(block["signature"] for block in blocks if block["type"] == "thinking")
    else:
        assert "tool_use" not in kinds
        results = kinds.count("tool_result")
        assert kinds[:results] == ["tool_result"] * results


def _check_history(messages: list[dict[str, Any]]) -> None:
    """Hold a history to the rules of the Messages API."""
    used: set[str] = set()
    waiting: set[str] = set()
    others = False
    for message in messages:
        _check_blocks(message)
        if message["role"] == "assistant":
            assert not waiting, "a call without a result"
            calls = _open_calls(message)
            assert len(set(calls)) == len(calls)
            assert used.isdisjoint(calls)
            assert all(_ID.fullmatch(call) for call in calls)
            used |= set(calls)
            waiting, others = set(calls), False
            continue
        for block in _blocks(message):
            if block["type"] == "tool_result":
                assert not others, "something stands between a call and its result"
                waiting.remove(block["tool_use_id"])
            else:
                others = True
    assert not waiting or messages[-1]["role"] == "assistant"
    json.dumps(messages, allow_nan=False).encode()


def _check(recording: Recording) -> None:
    messages = recording.messages
    assert not messages or messages[0]["role"] == "user"
    _check_history(messages)
    for point in recording.requests:
        replies = messages[point.length : point.length + 1]
        assert all(reply["role"] == "assistant" for reply in replies)
        assert replies or point is recording.requests[-1]
        assert messages[point.length - 1]["role"] == "user"
        if point.human is not None:
            assert point.human < point.length
            assert messages[point.human]["role"] == "user"


@pytest.fixture(scope="session")
def check() -> Callable[[Recording], None]:
    """Assert that a recording is legal for the provider."""
    return _check


@pytest.fixture
def document(tmp_path: Path) -> Callable[..., list[Recording]]:
    """Write JSON documents, or the bytes of a file, and read all conversations, checked."""

    def make(*values: object, indent: int | None = None) -> list[Recording]:
        path = tmp_path / "session.json"
        texts = [
            v if isinstance(v, bytes) else json.dumps(v, indent=indent).encode() for v in values
        ]
        path.write_bytes(b"\n".join(texts))
        found = list(conversations(path))
        for recording in found:
            _check(recording)
        assert [recording.part for recording in found] == list(range(1, len(found) + 1))
        return found

    return make


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Recording]:
    """Write rows (objects, or raw bytes of a line), load them, check legality."""

    def make(*rows: dict[str, Any] | bytes, end: bytes = b"\n") -> Recording:
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / "session.jsonl"
        path.write_bytes(b"\n".join(lines) + end)
        recording = load(path)
        _check(recording)
        return recording

    return make
