"""Compaction that somebody asks for: the host, or the model by a tool."""

from typing import Any

import pytest
from histories import (
    History,
    World,
    answers,
    asks,
    assert_legal,
    call,
    conversation,
    exchange,
    result,
    says,
)
from test_summaries import ONLY, STATE, Scripted, summary_of, text_of

from compactor import BadMessage, Policy, RangeDecision

OFFERED = ONLY.but(manual_tool=True)


def compaction(name: str = "c1", **given: Any) -> dict[str, Any]:
    return call(name, "compact_context", input=given)


def test_the_host_has_a_small_history_compacted_with_the_next_view(world: World) -> None:
    """And that is all: the view after it is decided as ever."""
    history = conversation(6)
    scripted = Scripted(STATE)
    with world.open(policy=ONLY, summarizer=scripted) as session:
        assert not session.view(history).decisions
        session.compact(focus="the tests")
        view = session.view(history)
        assert summary_of(view)
        assert scripted.given[0].focus == "the tests"
        history += exchange(50)
        later = session.view(history)
        assert not later.decisions
        assert later.messages[: len(view.messages)] == view.messages
    with world.transcript() as transcript:
        assert [one.reason for one in transcript.sets] == ["manual"]


def test_focus_steers_one_summary_and_does_not_survive_it(world: World) -> None:
    history = conversation(6)
    scripted = Scripted(STATE)
    with world.open(policy=ONLY, summarizer=scripted) as session:
        session.compact(focus="the tests")
        session.view(history)
        for number in range(100, 115):
            history += exchange(number)
            session.view(history)
    assert [given.focus for given in scripted.given][:2] == ["the tests", None]


def test_a_compaction_by_hand_and_one_that_is_due_are_one(world: World) -> None:
    """C20."""
    scripted = Scripted(STATE)
    history = conversation(14)
    with world.open(policy=ONLY, summarizer=scripted) as session:
        session.compact()
        assert summary_of(session.view(history))
        assert not session.view(history).decisions
    assert len(scripted.given) == 1


def test_nothing_to_compact_is_no_error_and_changes_nothing(world: World) -> None:
    """CHECKLIST 34."""
    history = conversation(1)
    with world.open(policy=ONLY, summarizer=Scripted(STATE)) as session:
        session.compact()
        view = session.view(history)
        assert view.messages is history
        assert not view.decisions
        history += exchange(20)
        assert not session.view(history).decisions


def test_the_tool_is_offered_only_where_the_policy_says_so(world: World) -> None:
    with world.open(policy=ONLY) as session:
        assert session.tools == []
        assert not session.owns(compaction())
    with world.open(policy=OFFERED) as session:
        [tool] = session.tools
        assert tool["name"] == "compact_context"
        assert tool["input_schema"]["required"] == ["checkpoint"]
        assert session.owns(compaction())
        assert not session.owns(call("b"))
        tool["name"] = "changed"
        assert session.tools[0]["name"] == "compact_context"
        with pytest.raises(BadMessage):
            session.run(call("b"))


def test_the_call_is_answered_in_its_batch_and_done_before_the_next_request(world: World) -> None:
    """CHECKLIST 64, 90, 114: pairs stay whole, the task goes on, the checkpoint stands."""
    history = conversation(6)
    with world.open(policy=OFFERED, summarizer=Scripted(STATE)) as session:
        session.view(history, tools=session.tools)
        asked = compaction(checkpoint="Decided: keep the old API. Tests pass.", focus="the API")
        answer = session.run(asked)
        assert not answer.get("is_error")
        history += [
            asks(call("last"), asked),
            answers(result("last", "fine"), answer),
        ]
        view = session.view(history, tools=session.tools)
        assert_legal(view.messages)
        assert summary_of(view)
        assert view.messages[-2:] == history[-2:]
        history += exchange(30)
        for number in range(31, 45):
            history += exchange(number)
            view = session.view(history, tools=session.tools)
        told = text_of(view.messages[0])
        assert "Checkpoint, written by the assistant:\nDecided: keep the old API." in told


def test_after_side_effects_a_checkpoint_comes_first(world: World) -> None:
    """CHECKLIST 91: the gate says what to do; another call with a checkpoint is granted."""
    history: History = conversation(6)
    scripted = Scripted(STATE)
    with world.open(policy=OFFERED, summarizer=scripted) as session:
        session.view(history)
        refused = session.run(compaction(checkpoint="  "))
        assert refused["is_error"] is True
        assert "6 calls have changed something" in refused["content"]
        assert 'checkpoint="…"' in refused["content"]
        history += exchange(20)
        assert not session.view(history).decisions
        granted = session.run(compaction(checkpoint="Edited login.py, tests pass."))
        assert "is_error" not in granted
        history += exchange(21)
        assert summary_of(session.view(history))


def test_an_open_gate_grants_without_a_checkpoint(world: World) -> None:
    with world.open(policy=OFFERED.but(gate="open")) as session:
        session.view(conversation(6))
        assert "is_error" not in session.run(compaction())


def test_reading_alone_needs_no_checkpoint(world: World) -> None:
    history = conversation(1, request="Look.")
    history[1:] = [asks(call("r", "Read")), answers(result("r", "text"))]
    with world.open(policy=OFFERED) as session:
        session.view(history)
        assert "is_error" not in session.run(compaction())


def test_it_waits_until_the_batch_is_answered(world: World) -> None:
    """C100: no set is planned while a call waits for its result."""
    history = conversation(6)
    with world.open(policy=OFFERED, summarizer=Scripted(STATE)) as session:
        session.compact()
        history += [asks(call("open"))]
        assert not session.view(history).decisions
        history += [answers(result("open", "fine"))]
        assert summary_of(session.view(history))


def test_an_undone_summary_comes_back_when_asked_for(world: World) -> None:
    history = conversation(6)
    with world.open(policy=ONLY, summarizer=Scripted(STATE)) as session:
        session.compact()
        session.view(history)
        assert session.undo()
        assert session.view(history).messages == history
        history += [says("Fine."), *conversation(1, request="Go on.")]
        session.compact()
        assert summary_of(session.view(history))


def test_by_hand_without_a_summary_stage_masks(world: World) -> None:
    with world.open(policy=Policy(window=10_000, stages=("mask",))) as session:
        session.compact()
        view = session.view(conversation(9))
        assert {one.stage for one in view.decisions} == {"mask"}
        assert not any(isinstance(one, RangeDecision) for one in view.decisions)


def test_switched_off_the_tool_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPACTOR", "off")
    with world.open(policy=OFFERED) as session:
        assert session.run(compaction(checkpoint="x"))["is_error"] is True
