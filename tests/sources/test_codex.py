from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Session = Callable[..., Recording]

META = {"type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "be"}}}
TURN = {"type": "turn_context", "payload": {"model": "m"}}
COMPACTED = {"type": "compacted", "payload": {"message": "sum", "replacement_history": []}}


def item(**payload: object) -> dict[str, Any]:
    return {"timestamp": "t", "type": "response_item", "payload": payload}


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(type="message", role=role, content=[{"type": kind, "text": text}])


def event(kind: str, **payload: object) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": kind, **payload}}


def tokens(count: int, total: int) -> dict[str, Any]:
    last = {"input_tokens": count, "cached_input_tokens": 3, "output_tokens": 1}
    info = {"last_token_usage": last, "total_token_usage": {"input_tokens": total}}
    return event("token_count", info=info)


def call(name: str) -> dict[str, Any]:
    return item(type="function_call", name="shell", arguments='{"c": "ls"}', call_id=name)


def output(name: str, text: object) -> dict[str, Any]:
    return item(type="function_call_output", call_id=name, output=text)


def use(name: str, given: object, tool: str = "shell") -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


def result(name: str, content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


def test_rollout(session: Session) -> None:
    """All items of a reply are one message, all results one; what repeats them is passed over."""
    recording = session(
        META,
        message("developer", "rules"),
        message("user", "<environment_context>x</environment_context>"),
        TURN,
        message("user", "do"),
        event("user_message", message="do"),
        event("token_count", info=None),
        item(type="reasoning", summary=[], encrypted_content="e"),
        message("assistant", "so"),
        call("x"),
        call("y"),
        tokens(9, 9),
        event("exec_command_end", call_id="x"),
        output("y", "two"),
        output("x", {"content": "one", "success": True}),
        message("assistant", "done"),
        tokens(9, 9),
    )
    assert recording.format == "codex"
    assert said(recording) == [
        [text("<environment_context>x</environment_context>")],
        [text("do")],
        [text("so"), use("x", {"c": "ls"}), use("y", {"c": "ls"})],
        [result("y", "two"), result("x", "one")],
        [text("done")],
    ]
    assert [(p.length, p.model, p.human) for p in recording.requests] == [(2, "m", 1), (4, "m", 1)]
    # The second count is of the same request: its total did not grow.
    assert recording.requests[0].usage == {
        "input_tokens": 6,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    assert recording.requests[1].usage is None
    assert recording.warnings == []


def test_other_calls(session: Session) -> None:
    """Custom tools take text, a local shell takes an action, arguments may be broken."""
    recording = session(
        message("user", "do"),
        item(type="custom_tool_call", name="patch", input='{"x"', call_id="a"),
        item(type="local_shell_call", action={"command": ["ls"]}, call_id="b"),
        item(type="function_call", name="f", arguments="{torn", call_id="c"),
        item(type="web_search_call", action={}),
        item(type="custom_tool_call_output", call_id="a", output="1"),
        output("b", "2"),
        output("c", [{"type": "input_text", "text": "3"}]),
    )
    assert said(recording)[1:] == [
        [
            use("a", {"input": '{"x"'}, "patch"),
            use("b", {"command": ["ls"]}, "local_shell"),
            use("c", {"input": "{torn"}, "f"),
        ],
        [result("a", "1"), result("b", "2"), result("c", [text("3")])],
    ]


def test_compaction(session: Session) -> None:
    """The full history goes on over a compaction, usage after it is of something else."""
    recording = session(
        *(message("user", "a"), message("assistant", "b"), tokens(9, 9)),
        *(COMPACTED, message("user", "c"), message("assistant", "d"), tokens(9, 18)),
    )
    assert said(recording) == [[text(word)] for word in "abcd"]
    assert [bool(point.usage) for point in recording.requests] == [True, False]


def test_turns_taken_back(session: Session) -> None:
    """What the human took back is not in the history."""
    recording = session(
        *(message("user", "a"), message("assistant", "b")),
        *(message("user", "c"), call("x"), output("x", "1"), message("assistant", "d")),
        event("thread_rolled_back", num_turns=1),
        *(message("user", "e"), message("assistant", "f")),
    )
    assert said(recording) == [[text(word)] for word in "abef"]


def test_items_without_rows(session: Session) -> None:
    """Older files hold the items themselves; damage and unknown rows are skipped."""
    items = [row["payload"] for row in (message("user", "a"), call("x"), output("x", "1"))]
    recording = session({"id": "s"}, items[0], b"{torn", {"record_type": "state"}, *items[1:])
    assert recording.format == "codex"
    assert len(recording.messages) == 3
    assert recording.warnings == ["line 3: damaged, left out"]
