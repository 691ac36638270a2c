from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Session = Callable[..., Recording]


def row(
    kind: str, name: str, parent: str | None, content: object = "", **more: object
) -> dict[str, Any]:
    """One row; what belongs into `message` is given with an underscore in front."""
    inner = {key[1:]: value for key, value in more.items() if key.startswith("_")}
    outer = {key: value for key, value in more.items() if not key.startswith("_")}
    message = {"role": kind, "content": content, **inner}
    return {"type": kind, "uuid": name, "parentUuid": parent, "message": message, **outer}


def call(name: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": name, "name": "Bash", "input": {}}]


def result(name: str, text: str = "ok") -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": name, "content": text}]


def usage(tokens: int) -> dict[str, int]:
    return {
        "input_tokens": tokens,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


def test_only_the_live_chain(session: Session) -> None:
    """A branch that was rewound is not part of the history."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", "b"),
        row("user", "3", "2", "rewound"),
        row("assistant", "4", "3", "gone"),
        row("user", "5", "2", "c"),
        row("assistant", "6", "5", "d"),
    )
    assert said(recording) == ["a", "b", "c", "d"]
    assert [(p.length, p.human) for p in recording.requests] == [(1, 0), (3, 2)]
    assert recording.warnings == []


def test_metadata_stands_in_the_chain(session: Session) -> None:
    """Rows without messages link messages, however many stand in a row."""
    notices: list[dict[str, Any]] = [
        {"type": "progress", "uuid": f"p{n}", "parentUuid": f"p{n - 1}" if n else "1"}
        for n in range(20)
    ]
    recording = session(
        {"type": "file-history-snapshot", "messageId": "x"},
        {"type": "progress", "uuid": "p", "parentUuid": None},
        row("user", "1", "p", "a"),
        *notices,
        {"type": "attachment", "uuid": "t", "parentUuid": "p19", "attachment": {}},
        row("assistant", "2", "t", "b"),
        row("assistant", "3", "p7", "side"),
        row("user", "4", "2", "c"),
    )
    assert said(recording) == ["a", "b", "c"]
    assert recording.warnings == []


def test_only_role_and_content(session: Session) -> None:
    """Messages carry what the wire has, blocks as recorded."""
    blocks = [{"type": "text", "text": "x", "citations": None}, {"type": "odd", "n": 1}]
    recording = session(
        row("user", "1", None, "a", toolUseResult={"x": 1}, cwd="/"),
        row("assistant", "2", "1", blocks, _id="m", _model="claude", _stop_reason="end_turn"),
    )
    assert recording.messages[1] == {"role": "assistant", "content": blocks}
    assert recording.requests[0].model == "claude"


def test_rows_of_one_reply_merge(session: Session) -> None:
    """One reply on several rows is one message; results between come after; last usage wins."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", [{"type": "text", "text": "t"}], _id="m", _usage=usage(7)),
        row("assistant", "3", "2", call("x"), _id="m", _usage=usage(7)),
        row("user", "4", "3", result("x")),
        row("assistant", "5", "4", call("y"), _id="m", _usage=usage(8)),
        row("user", "6", "5", result("y")),
        row("assistant", "7", "6", "end", _id="n", _usage=usage(9)),
    )
    assert said(recording) == [
        "a",
        [{"type": "text", "text": "t"}, *call("x"), *call("y")],
        result("x"),
        result("y"),
        "end",
    ]
    assert [(p.length, p.usage) for p in recording.requests] == [(1, usage(8)), (4, usage(9))]


def test_same_reply_id_later_is_another_reply(session: Session) -> None:
    """Rows of one id are one reply only while no other reply stands between."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", "b", _id="m"),
        row("assistant", "3", "2", "c", _id="n"),
        row("assistant", "4", "3", "d", _id="m"),
    )
    assert said(recording) == ["a", "b", "c", "d"]


def test_reply_written_as_it_grows(session: Session) -> None:
    """A row that repeats the reply so far and adds to it does not double it."""
    text = [{"type": "text", "text": "t"}]
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", text, _id="m"),
        row("assistant", "3", "2", text + call("x"), _id="m"),
        row("user", "4", "3", result("x")),
    )
    assert said(recording)[1] == text + call("x")


def test_parallel_calls_beside_the_chain(session: Session) -> None:
    """Calls and results that hang beside the chain of parents are not lost."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", call("x"), _id="m"),
        row("assistant", "3", "2", call("y"), _id="m"),
        row("assistant", "4", "3", call("z"), _id="m"),
        row("user", "5", "3", result("y", "Y")),
        row("user", "6", "2", result("x", "X")),
        row("user", "7", "4", result("z", "Z")),
        row("assistant", "8", "6", "end", _id="n"),
    )
    assert said(recording) == [
        "a",
        [*call("x"), *call("y"), *call("z")],
        result("y", "Y"),
        result("x", "X"),
        result("z", "Z"),
        "end",
    ]
    assert recording.warnings == []


def test_row_written_again(session: Session) -> None:
    """Of rows with the same uuid the last one counts."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", "half"),
        row("assistant", "2", "1", "whole"),
        row("user", "3", "2", "b"),
    )
    assert said(recording) == ["a", "whole", "b"]


def test_missing_parent(session: Session) -> None:
    """Where a parent is missing the row before it in the file stands in; usage ends."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", "b", _usage=usage(1)),
        row("user", "4", "lost", "c"),
        row("assistant", "5", "4", "d", _usage=usage(2)),
    )
    assert said(recording) == ["a", "b", "c", "d"]
    assert recording.warnings == ["line 3: the row before it is missing, file order used"]
    assert [point.usage for point in recording.requests] == [usage(1), None]


def test_damaged_row_of_the_chain(session: Session) -> None:
    """A damaged row costs that row only."""
    recording = session(
        row("user", "1", None, "a"),
        b'{"type": "assistant", "uuid": "2", "par',
        row("user", "3", "2", "c"),
    )
    assert said(recording) == ["a", "c"]
    assert recording.warnings[0] == "line 2: damaged, left out"


def test_circle(session: Session) -> None:
    """Links that run in a circle end, and each row comes once."""
    recording = session(
        row("user", "1", "3", "a"), row("assistant", "2", "1", "b"), row("user", "3", "2", "c")
    )
    assert said(recording) == ["a", "b", "c"]


def test_no_links_at_all(session: Session) -> None:
    """A file whose rows name no parents is read in file order, also without uuids."""
    rows = [
        row("user", "1", None, "a"),
        row("assistant", "2", None, "b"),
        row("user", "", None, "c"),
    ]
    for given in rows:
        del given["parentUuid"]
    assert said(session(*rows)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "mark",
    [{"isApiErrorMessage": True}, {"_model": "<synthetic>"}, {"isVisibleInTranscriptOnly": True}],
)
def test_what_was_never_sent(session: Session, mark: dict[str, Any]) -> None:
    """Messages that the program showed but did not send are left out, their links kept."""
    recording = session(
        row("user", "1", None, "a"),
        row("assistant", "2", "1", "shown", **mark),
        row("user", "3", "2", "b"),
    )
    assert said(recording) == ["a", "b"]


def test_sub_agent_inside_a_main_file(session: Session) -> None:
    """A sub-agent's rows in a main file are left out wherever they stand."""
    recording = session(
        row("user", "s", None, "early task", isSidechain=True),
        row("user", "1", None, "a", isSidechain=False),
        row("assistant", "2", "1", call("x"), isSidechain=False),
        row("user", "s1", None, "task", isSidechain=True),
        row("assistant", "s2", "s1", "answer", isSidechain=True),
        row("user", "3", "2", result("x")),
        row("user", "s3", "s2", "late", isSidechain=True),
    )
    assert said(recording) == ["a", call("x"), result("x")]


def test_file_of_a_sub_agent(session: Session) -> None:
    """A file of sidechain rows only is that sub-agent's session."""
    recording = session(
        row("user", "1", None, "task", isSidechain=True),
        row("assistant", "2", "1", "answer", isSidechain=True),
    )
    assert said(recording) == ["task", "answer"]
    assert recording.requests[0].human == 0


def test_meta_is_not_the_human(session: Session) -> None:
    """A user message that a program wrote is a message, not the human's request."""
    recording = session(
        row("user", "1", None, "a"),
        row("user", "2", "1", "caveat", isMeta=True),
        row("assistant", "3", "2", "b"),
    )
    assert said(recording) == ["a", "caveat", "b"]
    assert recording.requests[0].human == 0


@pytest.mark.parametrize("recorded", [None, {}, {"input_tokens": 0, "output_tokens": 0}, "x"])
def test_usage_that_says_nothing(session: Session, recorded: object) -> None:
    """Usage without input tokens counts as not recorded."""
    recording = session(
        row("user", "1", None, "a"), row("assistant", "2", "1", "b", _usage=recorded)
    )
    assert recording.requests[0].usage is None


def test_usage_with_nulls(session: Session) -> None:
    """Parts of the usage that are null or missing count as 0."""
    recorded = {"input_tokens": 3, "cache_read_input_tokens": None, "service_tier": "x"}
    recording = session(
        row("user", "1", None, "a"), row("assistant", "2", "1", "b", _usage=recorded)
    )
    assert recording.requests[0].usage == {**usage(3), "output_tokens": 0}


def test_file_without_messages(session: Session) -> None:
    """A file that holds only metadata is an empty recording."""
    recording = session({"type": "summary", "summary": "x", "leafUuid": "y"})
    assert (recording.messages, recording.requests) == ([], [])
