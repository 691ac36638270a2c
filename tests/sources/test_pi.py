from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Session = Callable[..., Recording]

HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}
USAGE = {"input": 4, "output": 3, "cacheRead": 2, "cacheWrite": 1}


def entry(name: str | None, parent: str | None, role: str, **message: object) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "message", "message": {"role": role, **message}}
    return {**found, "id": name, "parentId": parent} if name is not None else found


def user(name: str | None, parent: str | None, text: str) -> dict[str, Any]:
    return entry(name, parent, "user", content=text)


def reply(name: str | None, parent: str | None, *content: dict[str, Any]) -> dict[str, Any]:
    return entry(
        name, parent, "assistant", content=list(content), usage=USAGE, model="m",
        api="anthropic-messages",
    )  # fmt: skip


def call(name: str) -> dict[str, Any]:
    return {"type": "toolCall", "id": name, "name": "bash", "arguments": {"a": 1}}


def result(name: str | None, parent: str | None, of: str, **more: object) -> dict[str, Any]:
    content = [{"type": "text", "text": f"out {of}"}]
    return entry(name, parent, "toolResult", toolCallId=of, content=content, **more)


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


TEXT = {"type": "text", "text": "t"}


def test_calls_and_results(session: Session) -> None:
    """Calls become tool_use, results in a row one user message, errors stay errors."""
    recording = session(
        HEADER,
        user("1", None, "a"),
        reply("2", "1", call("x"), call("y")),
        result("3", "2", "x", isError=False),
        result("4", "3", "y", isError=True),
        reply("5", "4", TEXT),
    )
    assert recording.format == "pi"
    assert said(recording)[1:3] == [
        [
            {"type": "tool_use", "id": "x", "name": "bash", "input": {"a": 1}},
            {"type": "tool_use", "id": "y", "name": "bash", "input": {"a": 1}},
        ],
        [
            {
                "type": "tool_result",
                "tool_use_id": "x",
                "content": [{"type": "text", "text": "out x"}],
            },
            {
                "type": "tool_result",
                "tool_use_id": "y",
                "content": [{"type": "text", "text": "out y"}],
                "is_error": True,
            },
        ],
    ]
    assert [(p.length, p.model, p.human) for p in recording.requests] == [(1, "m", 0), (3, "m", 0)]
    assert recording.requests[0].usage == {
        "input_tokens": 4,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 1,
        "output_tokens": 3,
    }


def test_tree(session: Session) -> None:
    """The chain of the last entry counts, over entries that carry no message."""
    recording = session(
        HEADER,
        {"type": "model_change", "id": "0", "parentId": None},
        user("1", "0", "a"),
        reply("2", "1", TEXT),
        user("3", "2", "left"),
        {"type": "branch_summary", "id": "4", "parentId": "2", "summary": "x", "fromId": "3"},
        {"type": "custom", "id": "5", "parentId": "4", "customType": "x", "data": {}},
        user("6", "5", "b"),
        {"type": "label", "id": "7", "parentId": "6", "targetId": "1"},
    )
    assert said(recording) == ["a", [TEXT], "b"]
    assert recording.warnings == []


def test_stands_on_an_older_entry(session: Session) -> None:
    """If the last entry hangs on an earlier branch point, the history ends there."""
    recording = session(
        HEADER,
        user("1", None, "a"),
        reply("2", "1", TEXT),
        user("3", "2", "left"),
        {"type": "branch_summary", "id": "4", "parentId": "2", "summary": "x", "fromId": "3"},
    )
    assert said(recording) == ["a", [TEXT]]


def test_dangling_last_entry(session: Session) -> None:
    """If the last entry leads nowhere, the newest message is the end."""
    recording = session(
        HEADER,
        user("1", None, "a"),
        reply("2", "1", TEXT),
        {"type": "label", "id": "3", "parentId": "lost"},
    )
    assert said(recording) == ["a", [TEXT]]


def test_older_files_in_file_order(session: Session) -> None:
    """Entries without ids are read in file order; damage ends usage."""
    recording = session(
        {"type": "session", "id": "s", "timestamp": "t", "cwd": "/"},
        user(None, None, "a"),
        reply(None, None, call("x")),
        result(None, None, "x"),
        reply(None, None, TEXT),
        b'{"type": "mess',
        user(None, None, "b"),
        reply(None, None, TEXT),
    )
    assert [message["role"] for message in recording.messages] == ["user", "assistant"] * 3
    assert [point.usage is not None for point in recording.requests] == [True, True, False]


@pytest.mark.parametrize("ids", [True, False])
def test_compaction(session: Session, *, ids: bool) -> None:
    """A compaction is no message of the full history; usage ends with it."""
    names = ["1", "2", "3", "4", "5"] if ids else [None] * 5
    parents = [None, *names[:4]]
    recording = session(
        HEADER,
        user(names[0], parents[0], "a"),
        reply(names[1], parents[1], TEXT),
        {"type": "compaction", "summary": "x", "tokensBefore": 9, "firstKeptEntryId": "2",
         **({"id": names[2], "parentId": parents[2]} if ids else {})},
        user(names[3], parents[3], "b"),
        reply(names[4], parents[4], TEXT),
    )  # fmt: skip
    assert said(recording) == ["a", [TEXT], "b", [TEXT]]
    assert [point.usage is not None for point in recording.requests] == [True, False]


def test_thinking(session: Session) -> None:
    """Signed thinking stays, unsigned and foreign thinking does not."""
    signed = {"type": "thinking", "thinking": "a", "thinkingSignature": "sig"}
    hidden = {"type": "thinking", "thinking": "", "thinkingSignature": "data", "redacted": True}
    unsigned = {"type": "thinking", "thinking": "b"}
    foreign = reply("4", "3", signed, TEXT)
    foreign["message"]["api"] = "openai-responses"
    recording = session(
        HEADER,
        user("1", None, "a"),
        reply("2", "1", signed, hidden, unsigned, TEXT),
        user("3", "2", "b"),
        foreign,
    )
    assert said(recording)[1] == [
        {"type": "thinking", "thinking": "a", "signature": "sig"},
        {"type": "redacted_thinking", "data": "data"},
        TEXT,
    ]
    assert said(recording)[3] == [TEXT]


def test_images(session: Session) -> None:
    """Images become base64 blocks, in messages and in results."""
    image = {"type": "image", "data": "QQ==", "mimeType": "image/png"}
    wire = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="},
    }
    recording = session(
        HEADER,
        entry("1", None, "user", content=[image]),
        reply("2", "1", call("x")),
        entry("3", "2", "toolResult", toolCallId="x", content=[image]),
    )
    assert said(recording)[0] == [wire]
    assert said(recording)[2][0]["content"] == [wire]


def test_commands_of_the_human(session: Session) -> None:
    """A command run by the human is a user text, not the request; a hidden one is left out."""
    run = {"command": "ls", "output": "README", "exitCode": 1, "cancelled": False}
    recording = session(
        HEADER,
        user("1", None, "a"),
        entry("2", "1", "bashExecution", **run),
        entry("3", "2", "bashExecution", **run, excludeFromContext=True),
        reply("4", "3", TEXT),
    )
    assert len(recording.messages) == 3
    assert all(part in said(recording)[1] for part in ("ls", "README", "code 1"))
    assert recording.requests[0].human == 0


def test_messages_of_extensions(session: Session) -> None:
    """Custom entries that carry a message are messages, but not the human's."""
    recording = session(
        HEADER,
        user("1", None, "a"),
        {"type": "custom_message", "id": "2", "parentId": "1", "content": "note", "display": True},
        reply("3", "2", TEXT),
    )
    assert said(recording) == ["a", "note", [TEXT]]
    assert recording.requests[0].human == 0


def test_aborted_replies(session: Session) -> None:
    """An aborted reply without content is left out, its open calls go."""
    recording = session(
        HEADER,
        user("1", None, "a"),
        reply("2", "1"),
        result("3", "2", "lost"),
        reply("4", "3", TEXT, call("x")),
        user("5", "4", "b"),
    )
    assert said(recording) == ["a", [TEXT], "b"]


def test_foreign_ids(session: Session) -> None:
    """Ids of other providers are replaced in call and result alike."""
    name = "call_1|fc_" + "z" * 400
    recording = session(
        HEADER, user("1", None, "a"), reply("2", "1", call(name)), result("3", "2", name)
    )
    assert said(recording)[1][0]["id"] == said(recording)[2][0]["tool_use_id"] != name
