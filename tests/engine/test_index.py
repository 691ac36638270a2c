"""The index of a growing history: facts, and where it changed."""

import copy

import pytest
from histories import (
    MARK,
    History,
    answers,
    asks,
    call,
    conversation,
    exchange,
    human,
    reloaded,
    result,
    says,
)
from hypothesis import given
from hypothesis import strategies as st

from compactor import BadMessage
from compactor.index import Edit, Index
from compactor.policy import INJECTED
from compactor.wire import wire_format

REMINDER = "<system-reminder>mind the date</system-reminder>"


def indexed(history: History) -> Index:
    index = Index(wire_format("anthropic"), INJECTED)
    index.sync(history)
    return index


def facts(index: Index) -> object:
    """Return all that an index knows, to compare two of them."""
    return (
        index.messages,
        index.chain,
        index.sums,
        index.chars,
        index.results,
        index.last_assistant,
        index.request,
        index.open_ended(),
        [index.exchange(i) for i in range(len(index))],
        [index.consumed(i) for i in range(len(index))],
    )


def test_an_empty_history() -> None:
    """Nothing stands in it, and nothing is open."""
    index = indexed([])
    assert len(index) == 0
    assert index.unconsumed() == []
    assert index.request is None
    assert not index.open_ended()
    assert index.sync([]) == Edit(0, 0, 0)


def test_an_exchange_starts_at_its_run_of_assistant_messages() -> None:
    """Messages of the user, system messages and split results belong to the run before them."""
    history: History = [
        human("Go."),
        says("I think."),
        asks(call("a")),
        answers(result("a", "1")),
        {"role": "system", "content": "Mind."},
        human("More."),
        asks(call("b"), call("c")),
        answers(result("c", "2")),
        answers(result("b", "3")),
    ]
    index = indexed(history)
    assert [index.exchange(i) for i in range(9)] == [0, 1, 1, 1, 1, 1, 6, 6, 6]


def test_consumed_once_an_assistant_message_stands_after() -> None:
    """Results split over messages are unread together; what came before is read."""
    history = [*conversation(1), asks(call("b"), call("c")), answers(result("c", "2"))]
    history.append(answers(result("b", "3")))
    index = indexed(history)
    assert [found.facts.call_id for found in index.unconsumed()] == ["c", "b"]
    assert index.consumed(2)
    index.sync([*history, says("Read.")])
    assert index.unconsumed() == []


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (conversation(3), 0),
        ([*conversation(3), human("Next.")], 7),
        ([*conversation(1), human(REMINDER)], 0),
        ([*conversation(1), human(f"{REMINDER}\n{REMINDER}\n")], 0),
        ([*conversation(1), human(f"{REMINDER} and do it")], 3),
        (
            [human("Go."), asks(call("a")), answers(result("a", "x"), human("New.")["content"][0])],
            2,
        ),
        ([human("Go."), says("Yes."), {"role": "user", "content": "Now."}], 2),
        ([human("Go."), {"role": "system", "content": "You."}], 0),
        ([human("Go."), says("Yes."), {"role": "user", "content": []}], 0),
        ([asks(call("a")), answers(result("a", "x"))], None),
    ],
    ids=range(10),
)
def test_the_current_request(history: History, expected: int | None) -> None:
    """The last message in which the human speaks, without what the host put in."""
    assert indexed(history).request == expected


def test_the_tool_of_a_result_is_that_of_its_call() -> None:
    """Parallel calls are told apart, and a repeated id means the newest call before it."""
    history = [
        human("Go."),
        asks(call("a", "Read"), call("b", "Bash")),
        answers(result("b", "1"), result("a", "2")),
        asks(call("a", "Fetch")),
        answers(result("a", "3")),
        answers(result("nobody", "4")),
    ]
    tools = [found.tool for found in indexed(history).results]
    assert tools == ["Bash", "Read", "Fetch", None]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], False),
        ([says("Hm")], True),
        ([asks(call("z"))], True),
        ([asks(call("y"), call("z")), answers(result("z", "1"))], True),
        ([asks(call("y"), call("z")), answers(result("z", "1")), answers(result("y", "2"))], False),
        ([asks(call("toolu_0"))], True),
        ([asks(call("toolu_0")), human("Stop!")], True),
        ([asks(call("z")), human("Stop!"), says("Stopped."), human("Go on.")], False),
    ],
    ids=range(8),
)
def test_an_open_end(tail: History, expected: bool) -> None:  # noqa: FBT001 - a parameter
    """A call without its result, or an assistant message still being written; ids may repeat."""
    assert indexed([*conversation(1), *tail]).open_ended() is expected


def test_growth_is_an_edit_at_the_end() -> None:
    """The same list, a new list of the same objects, and reloaded equal objects."""
    history = conversation(2)
    index = indexed(history)
    history += exchange(2)
    assert index.sync(history) == Edit(5, 0, 2)
    assert index.sync(list(history)) == Edit(7, 0, 0)
    assert index.sync(reloaded(history)) == Edit(7, 0, 0)
    assert index.sync([*reloaded(history), human("x")]) == Edit(7, 0, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda h: [human("Another day."), *h[1:]], Edit(0, 1, 1)),
        (lambda h: [*h[:-1], human("Another end.")], Edit(8, 1, 1)),
        (lambda h: [*h[:3], human("middle"), *h[4:]], Edit(3, 1, 1)),
        (lambda h: h[:5], Edit(5, 4, 0)),
        (lambda h: [*h[:5], human("Other.")], Edit(5, 4, 1)),
        (lambda h: h[3:], Edit(0, 3, 0)),
        (lambda h: [h[0], *h[5:]], Edit(1, 4, 0)),
        (lambda h: [h[0], human(REMINDER), *h[1:]], Edit(1, 0, 1)),
        (lambda _: [], Edit(0, 9, 0)),
        (lambda h: [*h, *h[1:3]], Edit(9, 0, 2)),
    ],
    ids=["date", "last", "middle", "rewind", "fork", "front", "cut", "insert", "clear", "again"],
)
@pytest.mark.parametrize("fresh", [False, True], ids=["same", "reloaded"])
def test_edits_are_found(change: object, expected: Edit, fresh: bool) -> None:  # noqa: FBT001
    """Where the history changed, and then the same facts as an index made anew."""
    history = conversation(4)
    index = indexed(history)
    changed: History = change(copy.deepcopy(history) if fresh else history)  # type: ignore[operator]
    assert index.sync(changed) == expected
    assert facts(index) == facts(indexed(changed))
    assert index.plain == changed


def test_a_moved_mark_is_no_edit() -> None:
    """The messages are the same; those that differ in bytes are named."""
    history = conversation(3)
    history[-1]["content"][0]["cache_control"] = MARK
    index = indexed(history)
    moved = reloaded([*history, *exchange(3)])
    del moved[6]["content"][0]["cache_control"]
    moved[8]["content"][0]["cache_control"] = MARK
    assert index.sync(moved) == Edit(7, 0, 2, (6,))


def test_a_string_that_becomes_a_block_is_no_edit() -> None:
    """S2: the same message, in other bytes."""
    history: History = [{"role": "user", "content": "Go."}, says("Yes.")]
    index = indexed(history)
    assert index.sync([human("Go."), history[1], human("Next.")]) == Edit(2, 0, 1, (0,))


def test_a_bad_message_leaves_the_index_as_it_was() -> None:
    """In growth and in an edit alike."""
    history = conversation(2)
    index = indexed(history)
    before = facts(index)
    for bad in ([*history, {"role": "user", "content": b""}], [{"content": ""}, *history[1:]]):
        with pytest.raises(BadMessage):
            index.sync(bad)
        assert facts(index) == before
    assert index.sync(history) == Edit(5, 0, 0)


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=6))
def test_an_index_in_step_equals_one_made_anew(histories: list[list[int]]) -> None:
    """Whatever sequence of histories it sees, with the same messages again and again."""
    parts = [*conversation(3)]
    index = indexed([])
    for numbers in histories:
        history = [parts[number] for number in numbers]
        edit = index.sync(history)
        assert edit.start + edit.added <= len(history)
        assert facts(index) == facts(indexed(history))
