from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Document = Callable[..., list[Recording]]
    Session = Callable[..., Recording]


def tool_call(name: str, arguments: object = '{"a": 1}', tool: str = "ls") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}


def use(name: str, given: object = None, tool: str = "ls") -> dict[str, Any]:
    given = {"a": 1} if given is None else given
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


def answer(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def result(name: str, content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "do"},
    {"role": "assistant", "content": None, "tool_calls": [tool_call("x"), tool_call("y", "{bad")]},
    answer("x", "one"),
    answer("y", "two"),
    {"role": "assistant", "content": "done"},
]
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "do"},
    {"role": "assistant", "content": [{"type": "text", "text": "so"}, use("x")]},
    {"role": "user", "content": [result("x", "one"), {"type": "text", "text": "and?"}]},
    {"role": "assistant", "content": "done"},
]
TEXT = {"type": "text", "text": "t"}


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


def test_openai(document: Document, session: Session) -> None:
    """Calls become blocks with their ids, results one message, broken arguments stay readable."""
    wanted = [
        "do",
        [use("x"), use("y", {"input": "{bad"})],
        [result("x", "one"), result("y", "two")],
        "done",
    ]
    for recording in (*document(OPENAI), *document(OPENAI, indent=2), session(*OPENAI)):
        assert recording.format == "openai_messages"
        assert said(recording) == wanted
        assert [point.length for point in recording.requests] == [1, 3]
        assert recording.requests[1].human == 0
        assert recording.warnings == []


def test_anthropic(document: Document, session: Session) -> None:
    """Messages in wire form stay as they are."""
    for recording in (
        *document(ANTHROPIC),
        *document({"messages": ANTHROPIC}),
        session(*ANTHROPIC),
    ):
        assert recording.format == "anthropic_messages"
        assert recording.messages == ANTHROPIC
        assert [point.length for point in recording.requests] == [1, 3]
        assert recording.requests[1].human == 2


def test_request_body(document: Document) -> None:
    """A body was sent as a whole, with the model that it names, wherever that stands."""
    body = {"system": "s", "tools": [{"name": "ls"}], "messages": ANTHROPIC[:3], "model": "m"}
    (recording,) = document(body)
    assert [(point.length, point.model) for point in recording.requests] == [(1, "m"), (3, "m")]
    (recording,) = document({"messages": ANTHROPIC[:3]})
    assert [point.length for point in recording.requests] == [1]


def test_logged_response(document: Document) -> None:
    """The reply that was logged with a request follows its messages, with its usage."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    reply = {"role": "assistant", "content": "fine"}
    log = {"messages": OPENAI[:5], "response": {"choices": [{"message": reply}], "usage": usage}}
    (recording,) = document(log)
    assert said(recording)[-1] == "fine"
    assert recording.requests[-1].usage == {
        "input_tokens": 5,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }


def test_conversation_a_line(document: Document) -> None:
    """Lines or a list of objects with messages are several conversations."""
    bodies = [{"messages": ANTHROPIC}, {"messages": OPENAI}, {"messages": []}, {"messages": []}]
    for found in (document(*bodies), document(bodies)):
        assert [recording.format for recording in found] == [
            "anthropic_messages",
            "openai_messages",
        ]
        assert [len(recording.messages) for recording in found] == [4, 4]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "input_text", "text": "t"}, TEXT),
        ({"type": "refusal", "refusal": "t"}, TEXT),
        ({"type": "file", "path": "p", "content": "c"}, {"type": "text", "text": "p\nc"}),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="},
            },
        ),
        (
            {"type": "input_image", "image_url": "https://example.org/a.png"},
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ=="}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
            },
        ),
        ({"type": "image_url", "image_url": {}}, {"type": "text", "text": "[image]"}),
        ({"type": "other", "x": 1}, {"type": "other", "x": 1}),
    ],
)
def test_parts(document: Document, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Parts of other providers become blocks; what is unknown passes."""
    (recording,) = document([{"role": "user", "content": [given]}])
    assert said(recording) == [[wanted]]


def test_other_calls(document: Document) -> None:
    """Functions of the oldest form get ids; a custom tool's input and plain objects are kept."""
    (recording,) = document(
        [
            {"role": "user", "content": "do"},
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "out"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** x"}},
                    {"id": "d", "name": "ls", "arguments": {"a": 1}},
                ],
            },
            answer("d", "two"),
            answer("c", "one"),
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "refusal": "no"},
        ]
    )
    assert said(recording) == [
        "do",
        [use("call_2", {}, "f")],
        [result("call_2", "out")],
        [use("c", {"input": "*** x"}, "patch"), use("d")],
        [result("d", "two"), result("c", "one")],
        "be brief",
        "no",
    ]
    assert recording.requests[-1].human == 0


def test_what_has_no_counterpart(document: Document) -> None:
    """A call without result and a result without call go; what is no message is counted."""
    (recording,) = document(
        [
            {"role": "user", "content": "secret"},
            {"role": "assistant", "content": "so", "tool_calls": [tool_call("x")]},
            answer("z", "secret"),
            {"role": "user", "content": "go on"},
            {"role": "narrator", "content": "secret"},
            "secret",
            {"role": "assistant", "content": "end"},
        ]
    )
    assert said(recording) == ["secret", [{"type": "text", "text": "so"}], "go on", "end"]
    assert recording.warnings == [
        "message 2: a call without a result left out",
        "message 3: a result without call left out",
        "message 5: not a message, left out",
        "message 6: not an object, left out",
    ]


def test_torn_file(document: Document) -> None:
    """Of a document that was cut short what was whole is read."""
    raw = json.dumps(ANTHROPIC).encode()
    (recording,) = document(raw[:-8])
    assert said(recording) == [message["content"] for message in ANTHROPIC[:3]]
    assert len(recording.warnings) == 1
    assert "the file ends inside a value" in recording.warnings[0]
    assert "done" not in recording.warnings[0]


def test_damaged_line(session: Session) -> None:
    """A damaged line of JSON lines is skipped, and usage after it is not trusted."""
    usage = {"input_tokens": 5}
    replies = [{"role": "assistant", "content": text, "usage": usage} for text in "ab"]
    user = {"role": "user", "content": "do"}
    recording = session(user, replies[0], user, b"{torn", replies[1])
    assert [bool(point.usage) for point in recording.requests] == [True, False]
    assert recording.warnings == ["line 4: damaged, left out"]


def test_metrics(document: Document) -> None:
    """A program's own record of usage is translated; what went into the cache is no input."""
    metrics = {"inputTokens": 9, "outputTokens": 2, "cacheReadTokens": 4, "cacheWriteTokens": 1}
    reply = {"role": "assistant", "content": "a", "metrics": metrics, "modelInfo": {"id": "m"}}
    (recording,) = document({"messages": [{"role": "user", "content": "do"}, reply]})
    assert recording.requests[0].model == "m"
    assert recording.requests[0].usage == {
        "input_tokens": 4,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 1,
        "output_tokens": 2,
    }


def test_results_without_blocks(document: Document) -> None:
    """Parts of a result that are no blocks stay readable as JSON."""
    messages = [*ANTHROPIC[:2], {"role": "user", "content": [result("x", [{"query": "q"}])]}]
    (recording,) = document(messages)
    assert said(recording)[2] == [result("x", [{"type": "text", "text": '{"query": "q"}'}])]


def test_archived_actions(document: Document) -> None:
    """Calls and results that name actions (an archive's form) are paired."""
    (recording,) = document(
        {
            "messages": [
                {"role": "user", "text": "do"},
                {
                    "role": "assistant",
                    "text": "so",
                    "tool_calls": [
                        {"action_id": "x", "tool_name": "ls", "arguments_json": '{"a": 1}'}
                    ],
                },
                {
                    "role": "tool",
                    "text": None,
                    "tool_results": [{"action_id": "x", "output_preview": "o", "is_error": True}],
                },
            ]
        }
    )
    assert said(recording) == [
        "do",
        [{"type": "text", "text": "so"}, use("x")],
        [{**result("x", "o"), "is_error": True}],
    ]
