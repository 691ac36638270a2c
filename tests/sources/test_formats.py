from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from compactor.sources import SourceError, UnknownFormat, conversations, formats, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "no json\n",
        '{"a": 1}\n',
        "[1, 2]\n",
        '[{"a": 1}, {"b": []}]',
        '{"messages": "none"}',
        '{"type": "init", "session_id": "s", "uuid": "u"}\n',
        '{"type": "assistant", "message": "none", "session_id": "s", "uuid": "u"}\n',
        '{"timestamp": "t", "type": "else", "payload": {"type": "message"}}\n',
        '{"role": "narrator", "content": "hi"}\n',
    ],
)
def test_unknown(tmp_path: Path, text: str) -> None:
    """A file of no known format is a ValueError that says what is known."""
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(UnknownFormat) as caught:
        load(path)
    assert isinstance(caught.value, SourceError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.path == path
    assert caught.value.hint


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there raises what opening it raises."""
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.jsonl")


def test_the_first_message_may_stand_late(tmp_path: Path) -> None:
    """Notices and damage in front do not hide the format."""
    rows = ["{torn", *[json.dumps({"type": "progress", "uuid": "p", "parentUuid": None})] * 60]
    rows.append(json.dumps({"type": "user", "uuid": "u", "message": {"content": "hi"}}))
    path = tmp_path / "file.jsonl"
    path.write_text("\n".join(rows))
    recording = load(path)
    assert (recording.format, recording.path, len(recording.messages)) == ("claude_code", path, 1)


def test_names() -> None:
    """The known formats can be listed."""
    assert set(formats()) == {
        "anthropic_messages",
        "claude_code",
        "claude_stream",
        "codex",
        "openai_messages",
        "pi",
        "swe_agent",
        "tau_bench",
    }


def test_the_content_decides(tmp_path: Path) -> None:
    """A name says nothing; a first line that looks like a document does not hide JSON lines."""
    path = tmp_path / "rollout-1.traj"
    row = {"type": "user", "uuid": "u", "parentUuid": None, "message": {"content": "hi"}}
    path.write_text('["3", {}]\n' + json.dumps(row))
    assert load(path).format == "claude_code"
    path.write_text('[{"role": "user", "content": "hi"}]')
    assert load(path).format == "anthropic_messages"


def test_several_conversations(tmp_path: Path) -> None:
    """`load` takes the first conversation and says that there are more."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps([{"traj": [{"role": "user", "content": name}]} for name in "ab"]))
    recording = load(path)
    assert recording.messages == [{"role": "user", "content": "a"}]
    assert recording.warnings == ["the file holds more conversations; this is the first one"]
    assert [(each.part, each.messages[0]["content"]) for each in conversations(path)] == [
        (1, "a"),
        (2, "b"),
    ]


def test_no_message(tmp_path: Path) -> None:
    """A file of a known format without messages is an empty recording with a warning."""
    path = tmp_path / "file.json"
    path.write_text('{"messages": []}')
    recording = load(path)
    assert (recording.messages, recording.requests) == ([], [])
    assert recording.warnings == ["no message in it"]
