from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compactor.sources.legal import NO_BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Document = Callable[..., list[Recording]]
    Session = Callable[..., Recording]

INIT = {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"], "model": "m"}
BOUNDARY = {"type": "system", "subtype": "compact_boundary", "session_id": "s"}
DONE = {"type": "result", "subtype": "success", "session_id": "s", "usage": {}}
USAGE = {"input_tokens": 4, "output_tokens": 1}


def row(kind: str, content: object, **more: object) -> dict[str, Any]:
    message = {"role": kind, "content": content}
    return {"type": kind, "message": message, "session_id": "s", "parent_tool_use_id": None, **more}


def reply(name: str, *blocks: dict[str, Any], **more: object) -> dict[str, Any]:
    found = row("assistant", list(blocks), **more)
    found["message"] |= {"id": name, "model": "m", "usage": USAGE}
    return found


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {}}


def result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": f"out {name}"}


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


ROWS = [
    INIT,
    row("user", "do"),
    reply("1", text("so")),
    reply("1", call("x")),
    {"type": "stream_event", "session_id": "s", "event": {"type": "ping"}},
    row("user", "aside", parent_tool_use_id="x"),
    reply("9", text("aside"), parent_tool_use_id="x"),
    row("user", [result("x")], uuid="u"),
    row("user", [result("x")], uuid="u"),
    row("user", [text("note")], isSynthetic=True),
    reply("2", text("done")),
    DONE,
]


def test_stream(session: Session, document: Document) -> None:
    """Rows of a reply are one message; a sub-agent's rows and repeated ones are passed over."""
    for recording in (session(*ROWS), *document(ROWS)):
        assert recording.format == "claude_stream"
        assert said(recording) == [
            "do",
            [text("so"), call("x")],
            [result("x")],
            [text("note")],
            [text("done")],
        ]
        assert [(p.length, p.model, p.human) for p in recording.requests] == [
            (1, "m", 0),
            (4, "m", 0),
        ]
        assert all(point.usage for point in recording.requests)
        assert recording.warnings == []


def test_no_prompt(session: Session) -> None:
    """Where the prompt came from the command line a note stands first; usage is of more."""
    recording = session(INIT, reply("1", call("x")), row("user", [result("x")]))
    assert said(recording) == [NO_BEGINNING, [call("x")], [result("x")]]
    assert recording.requests[0].usage is None


def test_compaction(session: Session) -> None:
    """A summary is not the human's, and usage after it is of something else."""
    recording = session(
        *(row("user", "do"), reply("1", text("a")), BOUNDARY),
        *(row("user", "This session is being continued", isSynthetic=True), row("user", "on")),
        reply("2", text("b")),
    )
    assert said(recording) == ["do", [text("a")], "on", [text("b")]]
    assert [bool(point.usage) for point in recording.requests] == [True, False]


def test_several_sessions(document: Document) -> None:
    """Each session of a stream is a conversation of its own; a damaged line is reported."""
    other = {**row("user", "two"), "session_id": "t"}
    one, two = document(INIT, row("user", "one"), reply("1", text("a")), b"{torn", other)
    assert said(one) == ["one", [text("a")]]
    assert said(two) == ["two"]
    assert one.warnings + two.warnings == ["line 4: damaged, left out"]
