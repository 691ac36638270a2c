"""What every view must satisfy."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from histories import (
    SMALL,
    History,
    Message,
    answers,
    asks,
    call,
    conversation,
    human,
    is_masked,
    result,
    result_blocks,
    says,
)

from compactor.check import Defect, defects, violations
from compactor.decisions import DecisionSet
from compactor.plan import Situation, plan
from compactor.policy import INJECTED
from compactor.render import Renderer
from compactor.tokens import budget
from compactor.wire import wire_format

WIRE = wire_format("anthropic")


def found(history: History, start: int = 0) -> list[tuple[int, str]]:
    facts = [WIRE.inspect(message, lambda _: False) for message in history]
    return [(defect.message, defect.what) for defect in sorted(defects(facts, start))]


LEGAL: dict[str, History] = {
    "nothing": [],
    "pairs": conversation(3),
    "pending": [human("Go."), asks(call("a"))],
    "split": [
        human("Go."),
        asks(call("a"), call("b")),
        answers(result("b", "")),
        answers(result("a", "")),
    ],
    "runs": [human("Go."), says("One."), says("Two."), human("A."), human("B.")],
    "text after": [
        human("Go."),
        asks(call("a")),
        answers(result("a", "x"), human("y")["content"][0]),
    ],
    "system": [human("Go."), {"role": "system", "content": []}, says("Yes.")],
    "empty end": [human("Go."), says("Yes."), {"role": "user", "content": []}],
    "ids again": [*conversation(1), *conversation(1)[1:]],
}
ILLEGAL: dict[str, tuple[History, list[tuple[int, str]]]] = {
    "assistant first": ([says("Hi.")], [(0, "starts with an assistant message")]),
    "role": ([human("Go."), {"role": "tool", "content": "x"}], [(1, "a role that does not exist")]),
    "empty": ([{"role": "user", "content": []}, says("Yes.")], [(0, "an empty message")]),
    "user call": (
        [answers(call("a")), answers(result("a", "x"))],
        [(0, "a call outside an assistant message")],
    ),
    "two calls": (
        [human("Go."), asks(call("a"), call("a")), answers(result("a", "x"))],
        [(1, "two calls with one id")],
    ),
    "orphan": ([human("Go."), answers(result("a", "x"))], [(1, "a result without its call")]),
    "twice": (
        [human("Go."), asks(call("a")), answers(result("a", "x"), result("a", "y"))],
        [(2, "a result without its call")],
    ),
    "late": (
        [human("Go."), asks(call("a")), human("And?"), answers(result("a", "x"))],
        [(3, "a result that stands after other content")],
    ),
    "unanswered": (
        [human("Go."), asks(call("a")), human("And?"), says("Ok.")],
        [(1, "a call without its result")],
    ),
}


@pytest.mark.parametrize("shape", LEGAL)
def test_legal_histories_have_no_defect(shape: str) -> None:
    """Split results, runs of one role, pending calls and system messages are legal."""
    assert found(LEGAL[shape]) == []


@pytest.mark.parametrize("shape", ILLEGAL)
def test_each_defect_is_found(shape: str) -> None:
    """With the position of the message that has it."""
    history, expected = ILLEGAL[shape]
    assert found(history) == expected


def test_what_stands_before_the_start_is_not_judged() -> None:
    """Only the exchanges from `start` on are looked at."""
    bad, _ = ILLEGAL["unanswered"]
    assert found([*bad, human("x"), says("y")], 3) == []


@pytest.fixture
def compacted() -> tuple[Renderer, DecisionSet]:
    """Return a history of 14 exchanges and the set that is due."""
    renderer = Renderer(WIRE, INJECTED)
    renderer.update(conversation(14))
    one = plan(
        WIRE, renderer.index, renderer.ledger, budget(10_000, 0, 0), SMALL, Situation(readable=True)
    )
    assert isinstance(one, DecisionSet)
    return renderer, one


def test_what_is_planned_passes(compacted: tuple[Renderer, DecisionSet]) -> None:
    """A set of the stages makes a view without violations."""
    renderer, one = compacted
    renderer.adopt(one)
    assert violations(renderer, one) == []


def _other_id(message: Message) -> None:
    message["content"][0]["tool_use_id"] = "toolu_other"


def _emptied(message: Message) -> None:
    message["content"][0]["content"] = ""


def _grown(message: Message) -> None:
    message["content"][0]["content"] = "x" * 5_000


def _one_more(message: Message) -> None:
    message["content"].append({"type": "text", "text": "more"})


def _other_role(message: Message) -> None:
    message["role"] = "assistant"


def _reworded(message: Message) -> Message:
    message["content"][0]["content"] = "Other words."
    return message


def _other_kind(message: Message) -> None:
    message["content"][0] = {"type": "text", "text": "[gone]"}


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_other_id, "something that must stay was hidden"),
        (_emptied, "a block that was emptied or did not shrink"),
        (_grown, "a block that was emptied or did not shrink"),
        (_one_more, "a message that changed its shape"),
        (_other_role, "a message that changed its shape"),
        (_other_kind, "a call without its result"),
    ],
)
def test_a_spoilt_view_is_refused(
    compacted: tuple[Renderer, DecisionSet], spoil: Callable[[Message], None], what: str
) -> None:
    """Whatever a stage, or the wire format, does wrong."""
    renderer, one = compacted
    renderer.adopt(one)
    message = copy.deepcopy(renderer.messages(renderer.index.plain)[2])
    assert is_masked(result_blocks([message])[0])
    spoil(message)
    renderer._replaced[2] = (message, WIRE.inspect(message, lambda _: False))  # noqa: SLF001
    assert what in [defect.what for defect in violations(renderer, one)]


def test_a_block_that_no_decision_names_may_not_change(
    compacted: tuple[Renderer, DecisionSet],
) -> None:
    """Not even where its neighbour gives way."""
    renderer, one = compacted
    renderer.adopt(one)
    position = one.decisions[0].message
    message = _reworded(copy.deepcopy(renderer.index.plain[position]))
    renderer._replaced[position] = (message, WIRE.inspect(message, lambda _: True))  # noqa: SLF001
    renderer.ledger = replace(renderer.ledger, active={})
    found_ = violations(renderer, one)
    assert Defect(position, "a block that no decision names was changed") in found_
