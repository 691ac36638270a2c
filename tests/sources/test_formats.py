from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from compactor.sources import SourceError, UnknownFormat, formats, load

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
        '{"type": "system", "subtype": "init", "session_id": "s", "uuid": "u"}\n',
        '{"type": "assistant", "message": {"role": "assistant"}, "session_id": "s", "uuid": "u"}\n',
        '{"timestamp": "t", "type": "response_item", "payload": {"type": "message"}}\n',
        '{"role": "user", "content": "hi"}\n',
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
    assert set(formats()) == {"claude_code", "pi"}
