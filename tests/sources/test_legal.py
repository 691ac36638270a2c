from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.sources.draft import Draft
from compactor.sources.ids import Names
from compactor.sources.legal import NO_BEGINNING
from compactor.sources.requests import injected, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

USAGE = {"input_tokens": 5}


def call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {}}


def result(name: str, text: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": text}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def made(*contents: tuple[str, Any]) -> Recording:
    drafts = [Draft(role, content, n, usage=USAGE) for n, (role, content) in enumerate(contents, 1)]
    return record(Path("made"), "test", drafts, [])


def shape(recording: Recording) -> list[str]:
    return [
        message["role"][0]
        + ":"
        + (
            message["content"]
            if isinstance(message["content"], str)
            else " ".join(
                block.get("text") or block.get("id") or block.get("tool_use_id") or block["type"]
                for block in message["content"]
            )
        )
        for message in recording.messages
    ]


def test_plain_history_stays_as_it_is() -> None:
    """A legal history comes out block for block as recorded."""
    thinking = {"type": "thinking", "thinking": "", "signature": "sig"}
    contents = [
        ("user", "do"),
        ("assistant", [text("\n\n"), thinking, {**call("a"), "caller": {"type": "direct"}}]),
        ("user", [result("a"), text("and"), {"type": "new_kind", "x": 1}]),
        ("assistant", "done"),
    ]
    recording = made(*contents)
    assert [(m["role"], m["content"]) for m in recording.messages] == contents
    assert recording.warnings == []
    assert [(p.length, p.human, p.usage) for p in recording.requests] == [
        (1, 0, USAGE),
        (3, 2, USAGE),
    ]


def test_results_of_one_reply_keep_their_messages() -> None:
    """Results of parallel calls stay on the user messages they came in."""
    recording = made(
        ("user", "do"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("b")]),
        ("user", [result("a")]),
    )
    assert shape(recording) == ["u:do", "a:a b", "u:b", "u:a"]


def test_queued_text_goes_behind_the_results() -> None:
    """A text that was queued between a call and its result follows the result."""
    recording = made(
        ("user", "do"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a"), text("note")]),
        ("user", "queued"),
        ("user", [text("first"), result("b"), text("second")]),
        ("assistant", "done"),
    )
    assert shape(recording) == ["u:do", "a:a b", "u:a", "u:b", "u:note", "u:queued",
                                "u:first second", "a:done"]  # fmt: skip
    assert recording.requests[-1].human == 6


def test_results_come_first_in_their_message() -> None:
    """Within one message the result stands before the text."""
    recording = made(
        ("user", "do"), ("assistant", [call("a")]), ("user", [text("reminder"), result("a")])
    )
    assert shape(recording) == ["u:do", "a:a", "u:a reminder"]


def test_late_result_moves_to_its_call() -> None:
    """A result that stands after another reply is moved, with a warning, and usage stays."""
    recording = made(
        ("user", "do"),
        ("assistant", [call("a")]),
        ("assistant", "meanwhile"),
        ("user", [result("a"), text("go on")]),
        ("assistant", "done"),
    )
    assert shape(recording) == ["u:do", "a:a", "u:a", "a:meanwhile", "u:go on", "a:done"]
    assert recording.warnings == ["line 4: a late result moved to its call"]


def test_result_without_call_goes() -> None:
    """Results without a call and second results are left out; usage ends there."""
    recording = made(
        ("user", "do"),
        ("assistant", [call("a")]),
        ("user", [result("a", "1"), result("a", "2"), result("z")]),
        ("assistant", "done"),
    )
    assert shape(recording) == ["u:do", "a:a", "u:a", "a:done"]
    assert recording.messages[2]["content"] == [result("a", "1")]
    assert recording.warnings == [
        "line 3: a second result for a call left out",
        "line 3: a result without call left out",
    ]
    assert [point.usage for point in recording.requests] == [USAGE, None]


def test_interrupted_call_goes() -> None:
    """A call without a result in the middle goes, and a message left empty with it."""
    recording = made(
        ("user", "do"),
        ("assistant", [text("hm"), call("a")]),
        ("user", "stop"),
        ("assistant", [{"type": "thinking", "thinking": "x", "signature": "s"}, call("b")]),
        ("user", "again"),
        ("assistant", "done"),
    )
    assert shape(recording) == ["u:do", "a:hm", "u:stop", "u:again", "a:done"]
    assert [(p.length, p.usage) for p in recording.requests] == [(1, USAGE), (4, None)]


def test_open_call_at_the_end_stays() -> None:
    """A call that still runs when the recording ends is kept."""
    recording = made(("user", "do"), ("assistant", [call("a")]))
    assert shape(recording) == ["u:do", "a:a"]
    assert recording.warnings == []


def test_empty_messages_go() -> None:
    """Content that the provider refuses as empty is left out with a warning."""
    recording = made(
        ("user", "do"),
        ("assistant", ""),
        ("user", []),
        ("assistant", [text("\n\n")]),
        ("user", [text(""), text("x"), text(" ")]),
        ("assistant", None),
    )
    assert shape(recording) == ["u:do", "u:x"]
    assert len(recording.warnings) == 4


def test_inside_results() -> None:
    """Empty parts of results go; an error gets a text, as the provider wants one."""
    broken = {"type": "tool_result", "tool_use_id": "a", "content": [text("")], "is_error": True}
    recording = made(("user", "do"), ("assistant", [call("a")]), ("user", [broken]))
    assert recording.messages[2]["content"][0]["content"] == "(no content)"


def test_thinking_without_signature_goes() -> None:
    """Unsigned thinking is left out, and thinking cannot end a message."""
    recording = made(
        ("user", "do"),
        ("assistant", [{"type": "thinking", "thinking": "x"}, text("a"),
                       {"type": "redacted_thinking", "data": "d"}]),
    )  # fmt: skip
    assert shape(recording) == ["u:do", "a:a"]


def test_history_that_starts_with_a_reply() -> None:
    """Where the beginning is lost a marked note stands in, and nothing else is dropped."""
    recording = made(("assistant", [call("a")]), ("user", [result("a")]), ("assistant", "done"))
    assert shape(recording) == ["u:" + NO_BEGINNING, "a:a", "u:a", "a:done"]
    assert [(p.human, p.usage) for p in recording.requests] == [(None, None), (None, None)]


def test_no_request_between_two_replies() -> None:
    """The second of two assistant messages in a row has no request point."""
    recording = made(("user", "do"), ("assistant", "a"), ("assistant", "b"))
    assert [point.length for point in recording.requests] == [1]


def test_repeated_and_illegal_ids() -> None:
    """Ids that repeat or that the provider refuses are replaced on both sides."""
    bad = "functions.Bash:0"
    recording = made(
        ("user", "do"),
        ("assistant", [call(bad), call("x" * 70)]),
        ("user", [result(bad, "1"), result("x" * 70)]),
        ("assistant", [call(bad)]),
        ("user", [result(bad, "2")]),
    )
    first, second = recording.messages[1]["content"], recording.messages[3]["content"]
    assert recording.messages[2]["content"][0]["tool_use_id"] == first[0]["id"]
    assert recording.messages[4]["content"][0] == result(second[0]["id"], "2")
    assert len({first[0]["id"], first[1]["id"], second[0]["id"]}) == 3


def test_ids_differ_after_replacement() -> None:
    """Ids that differ only in refused characters stay different, and replacement is stable."""
    names = Names()
    given = ["a.b", "a:b", "a b", "a_b", "", "é" * 80]
    first = [names.unique(name) for name in given]
    assert len(set(first)) == len(given)
    assert [Names().unique(name) for name in given] == first


def test_call_written_twice_in_one_reply() -> None:
    """A partial and a full version of one call in a reply are one call: the full one."""
    recording = made(
        ("user", "do"),
        ("assistant", [call("a"), {**call("a"), "input": {"x": 1}}]),
        ("user", [result("a")]),
    )
    assert recording.messages[1]["content"] == [{**call("a"), "input": {"x": 1}}]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("<system-reminder>\na\n</system-reminder>\n", True),
        ("<command-name>/x</command-name>\n <command-args></command-args>", True),
        ("<local-command-stdout>x</local-command-stdout>", True),
        ("[Request interrupted by user for tool use]", True),
        ("<system-reminder>a</system-reminder> and now this", False),
        ("<b>bold</b>", False),
        ("go", False),
    ],
)
def test_injected(words: str, *, expected: bool) -> None:
    """Text counts as a program's only if nothing stands outside its elements."""
    assert injected(words) is expected


def test_the_request_of_the_human() -> None:
    """Results, injected text and meta messages do not replace the human's request."""
    drafts = [
        Draft("user", "do", 1),
        Draft("assistant", [call("a")], 2),
        Draft("user", [result("a"), text("<system-reminder>x</system-reminder>")], 3),
        Draft("assistant", "b", 4),
        Draft("user", "caveat", 5, meta=True),
        Draft("assistant", "c", 6),
        Draft("user", [{"type": "image", "source": {}}], 7),
        Draft("assistant", "d", 8),
    ]
    recording = record(Path("made"), "test", drafts, [])
    assert [point.human for point in recording.requests] == [0, 0, 0, 6]


_names = st.sampled_from(["a", "b", "c", "d.e"])
_assistant = st.lists(st.one_of(_names.map(call), st.sampled_from(["t", "", " "]).map(text)))
_user = st.one_of(
    st.sampled_from(["q", "", "\n"]),
    st.lists(st.one_of(_names.map(result), st.sampled_from(["t", "", " "]).map(text))),
)
_messages = st.lists(
    st.one_of(
        st.tuples(st.just("user"), _user),
        st.tuples(st.just("assistant"), st.one_of(st.just("r"), _assistant)),
    ),
    max_size=12,
)


@given(contents=_messages)
def test_any_sequence_becomes_legal(
    check: Callable[[Recording], None], contents: list[tuple[str, Any]]
) -> None:
    """Whatever order rows were written in, the history is legal."""
    check(made(*contents))
