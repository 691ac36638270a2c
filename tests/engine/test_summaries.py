"""Stage 4: all but the newest exchanges become one message with a state summary."""

import copy
import dataclasses
import threading
from collections.abc import Callable, Sequence
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
    human,
    image,
    output,
    result,
    says,
)

from compactor import Compactor, Policy, RangeDecision, SummaryPolicy, View
from compactor.messages import canonical
from compactor.summarize import Rejected, SessionState, Summary, SummaryInput

# Only the last stage: of `conversation(14)` all but the newest exchanges go.
ONLY = Policy(window=10_000, stages=("summarize",))
STATE = SessionState(goal="the login works", constraints=("never push",), next_step="run pytest")


class Scripted:
    """A summarizer that does what it is told, and keeps what it was given."""

    name = "scripted"

    def __init__(self, *steps: SessionState | Exception | Callable[[], SessionState]) -> None:
        self.steps = list(steps)
        self.given: list[SummaryInput] = []

    def summarize(self, given: SummaryInput) -> Summary:
        self.given.append(given)
        step = self.steps[min(len(self.given), len(self.steps)) - 1]
        if isinstance(step, Exception):
            raise step
        return Summary(state=step if isinstance(step, SessionState) else step(), by=self.name)


def opened(world: World, summarizer: Any = None, policy: Policy = ONLY, **more: Any) -> Compactor:
    return world.open(policy=policy, summarizer=summarizer, **more)


def summary_of(view: View) -> RangeDecision:
    """Return the one summary that a view decided."""
    [found] = [one for one in view.decisions if isinstance(one, RangeDecision) and one.summary]
    return found


def text_of(message: dict[str, Any]) -> str:
    """Return all text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def grown(session: Compactor, history: History, exchanges: Sequence[int]) -> list[View]:
    """Add exchanges one by one, and return the views."""
    views = []
    for number in exchanges:
        history += exchange(number)
        views.append(session.view(history))
        assert_legal(views[-1].messages)
    return views


def test_the_compacted_message_has_request_record_summary_and_handle(world: World) -> None:
    """CHECKLIST 73, F22, F32."""
    history = [human("Rename the module."), *exchange(90), *conversation(13)]
    with opened(world, Scripted(STATE)) as session:
        view = session.view(history)
        one = summary_of(view)
        first = view.messages[0]
        assert_legal(view.messages)
        assert first == one.messages[0]
        assert first["role"] == "user"
        assert first["content"][0]["text"].startswith("[Compacted]\n")
        assert one.handle in first["content"][0]["text"]
        assert {"type": "text", "text": "Fix the login."} in first["content"]
        told = text_of(first)
        for part in (
            "Rename the module.",
            "Actions already done (recorded by the engine, do not repeat):",
            "Bash: toolu_90 → line of output 90",
            "Conversation summary (by scripted; reference only",
            "Goal: the login works",
            "- never push",
            "Next step: run pytest",
        ):
            assert part in told
        assert view.messages[1:] == history[one.span.length :]
        assert view.stats.summarized_messages == one.span.length
        assert view.stats.summarizer == "scripted"
        assert session.read(one.handle) == canonical(history[: one.span.length])


def test_a_request_in_what_stays_is_said_to_stand_below(world: World) -> None:
    """C2, C5: the older request is told as such, the current one stands once."""
    history = [*conversation(12, request="Old request A."), says("Done."), human("New request B.")]
    history += exchange(50)
    with opened(world, Scripted(STATE)) as session:
        view = session.view(history)
        told = text_of(view.messages[0])
        assert "Current user request: stands below." in told
        assert "[user message 1]\nOld request A." in told
        assert human("New request B.") in view.messages
        assert sum("New request B." in text_of(each) for each in view.messages) == 1


def test_the_request_stands_once_however_often_it_is_compacted(world: World) -> None:
    """C7: the original text, no nesting, and no mark of an earlier summary in a later one."""
    history = conversation(10)
    with opened(world) as session:
        views = grown(session, history, range(100, 160))
        sets = [view for view in views if view.decisions]
        assert len(sets) >= 3
        for view in views:
            told = "\n".join(map(text_of, view.messages))
            assert told.count("Fix the login.") == 1
            assert told.count("[Compacted]") <= 1


def test_images_of_the_request_stay_as_they_are(world: World) -> None:
    history = [human("What is this?", image()), *conversation(13)[1:]]
    with opened(world, Scripted(STATE)) as session:
        view = session.view(history)
        assert summary_of(view)
        assert image() in view.messages[0]["content"]


def test_views_continue_one_another_between_summaries(world: World) -> None:
    """And a set that was taken is the same after a restart (F28, F51, C55)."""
    history = conversation(10)
    with opened(world, Scripted(STATE)) as session:
        before = session.view(history).messages
        for view in grown(session, history, range(100, 130)):
            if view.rewrites_from is None:
                assert view.messages[: len(before)] == before
            before = view.messages
    with opened(world, Scripted(Rejected("empty"))) as session:
        assert session.view(history).messages == before
        assert session.view(history).stats.summarizer == "scripted"


def test_a_later_summary_folds_the_one_before_and_every_fifth_is_made_anew(world: World) -> None:
    """C50; what was new stands behind `new_from`."""
    scripted = Scripted(STATE)
    history = conversation(10)
    with opened(world, scripted) as session:
        grown(session, history, range(100, 190))
    turns = scripted.given[:10]
    assert len(turns) == 10
    for number, given in enumerate(turns, 1):
        folded = number > 1 and number % 5 != 0
        assert (given.previous == STATE) is folded
        assert (given.new_from > 0) is folded
        if folded:
            before = turns[number - 2]
            assert given.events[: given.new_from] == before.events
        assert given.events[0].text == "Fix the login."


def test_states_stay_bounded_over_twenty_rounds(world: World) -> None:
    """The compacted message does not grow with the rounds."""
    history = conversation(10)
    with opened(world) as session:
        views = grown(session, history, range(100, 280))
    sizes = [summary_of(view).chars for view in views if view.decisions]
    assert len(sizes) >= 20
    assert max(sizes) <= 1.1 * max(sizes[:5])


@pytest.mark.parametrize(
    "failure",
    [
        Rejected("cut off"),
        ConnectionError("secret"),
        SessionState(),
        SessionState(facts=("x" * 500,) * 40),
    ],
    ids=["rejected", "no network", "empty", "not shorter"],
)
def test_a_failing_summarizer_is_asked_once_more_then_replaced(
    world: World, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """C32, C35, C38, F13, F23, F72, CHECKLIST 113: the history stays, the view is made."""
    history = conversation(14)
    before = copy.deepcopy(history)
    scripted = Scripted(failure)
    with opened(world, scripted) as session:
        view = session.view(history)
        assert history == before
        assert len(scripted.given) == 2
        assert view.stats.summarizer == "extractive"
        assert len(view.stats.summary_rejected) == 2
        assert all(one.startswith("scripted: ") for one in view.stats.summary_rejected)
        assert not view.over_budget
    assert "secret" not in caplog.text


def test_one_failure_is_made_good_by_the_second_try(world: World) -> None:
    scripted = Scripted(Rejected("empty"), STATE)
    with opened(world, scripted) as session:
        view = session.view(conversation(14))
        assert view.stats.summarizer == "scripted"
        assert view.stats.summary_rejected == ("scripted: empty",)


def test_a_summarizer_that_failed_three_times_is_left_alone_but_for_manual(world: World) -> None:
    """CHECKLIST 33, C37, F36."""
    scripted = Scripted(Rejected("empty"))
    history = conversation(10)
    with opened(world, scripted) as session:
        grown(session, history, range(100, 160))
        assert len(scripted.given) == 6
        session.compact()
        history += exchange(300)
        session.view(history)
        assert len(scripted.given) == 8


def test_where_no_summary_can_be_had_the_middle_is_archived(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C27, C34: nothing is lost, and nobody is asked twice about the same messages."""

    def refuse(*_: object) -> None:
        raise Rejected("not shorter")  # noqa: EM101, TRY003 - its reason is all that it says

    monkeypatch.setattr("compactor.summarize.extractive.ExtractiveSummarizer.summarize", refuse)
    scripted = Scripted(Rejected("empty"))
    history = conversation(14)
    policy = Policy(window=10_000, stages=("archive", "summarize"))
    with opened(world, scripted, policy) as session:
        view = session.view(history)
        assert view.stats.archived_messages > 0
        assert view.stats.summarized_messages == 0
        session.view(history)
        assert len(scripted.given) == 2


def test_nothing_is_asked_twice_and_small_histories_never(world: World) -> None:
    """C24, C33, F38."""
    scripted = Scripted(STATE)
    with opened(world, scripted) as session:
        assert not session.view(conversation(1)).decisions
        assert not scripted.given
    with opened(world, scripted) as session:
        history = conversation(14)
        for _ in range(3):
            view = session.view(history)
        assert len(scripted.given) == 1
        assert not view.decisions


def test_no_lock_is_held_while_a_summary_is_awaited(world: World) -> None:
    """F27: messages that arrive meanwhile stand behind the note."""
    history = conversation(14)
    arrived = exchange(700)

    def slow() -> SessionState:
        reader = threading.Thread(target=lambda: done.append(session.handles()))
        reader.start()
        session.pin("decision", "keep the old API")
        reader.join(10)
        history.extend(arrived)
        return STATE

    done: list[list[str]] = []
    with opened(world, Scripted(slow)) as session:
        view = session.view(history)
        assert done
        one = summary_of(view)
        assert view.messages[-2:] == arrived
        assert view.messages[1:] == history[one.span.length :]


def test_two_threads_have_one_summary_made(world: World) -> None:
    """C20 for views that are asked for at the same time."""
    history = conversation(14)
    scripted = Scripted(STATE)
    views: list[View] = []
    with opened(world, scripted) as session:
        threads = [
            threading.Thread(target=lambda: views.append(session.view(history))) for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        assert len(scripted.given) == 1
        assert len({repr(view.messages) for view in views}) == 1


def test_an_undo_brings_the_messages_back_and_a_restart_keeps_it_so(world: World) -> None:
    history = conversation(14)
    with opened(world, Scripted(STATE)) as session:
        assert summary_of(session.view(history))
        assert session.undo() is not None
        assert session.view(history).messages == history
    with opened(world, Scripted(STATE)) as session:
        assert session.view(history).messages == history


def test_the_transcript_tells_how_a_summary_was_made(world: World) -> None:
    """With model, prompt version, input range and usage; each view is rebuilt from it."""

    class Paid(Scripted):
        def summarize(self, given: SummaryInput) -> Summary:
            made = super().summarize(given)
            usage = {"input_tokens": 7_000, "output_tokens": 300}
            return Summary(
                state=made.state, by="claude", model="m", prompt="p1", usage=usage, calls=2
            )

    history = conversation(14)
    with opened(world, Paid(STATE)) as session:
        one = summary_of(session.view(history))
    with world.transcript() as transcript:
        [told] = [each for made in transcript.sets for each in made.decisions]
        assert isinstance(told, RangeDecision)
        assert told == one
        assert told.summary == one.summary
        assert (told.span.start, told.span.length) == (0, one.span.length)
        assert told.summary is not None
        assert told.summary["model"], told.summary["prompt"] == ("m", "p1")
        assert told.summary["usage"] == {"input_tokens": 7_000, "output_tokens": 300}
        assert all(request.whole for request in transcript.requests())


def test_a_providers_compaction_is_where_a_summary_begins(world: World) -> None:
    """What the provider has made of the messages before stays as it is."""
    block = {"type": "compaction", "content": "what was before"}
    history = [human("Fix the login."), {"role": "assistant", "content": [block]}]
    history += [human("Go on.")]
    for number in range(14):
        history += exchange(number)
    with opened(world, Scripted(STATE)) as session:
        view = session.view(history)
        assert view.messages[:3] == history[:3]
        assert summary_of(view).span.start == 3


def test_pins_stand_in_every_summary_and_system_messages_hold_on(world: World) -> None:
    """C3, C11, CHECKLIST 62."""
    rule = {"role": "system", "content": "Never push to main."}
    history = [human("Fix the login."), rule, *conversation(13)[1:]]
    with opened(world, Scripted(STATE)) as session:
        session.pin("todo", "[ ] write the test")
        view = session.view(history)
        assert "todo: [ ] write the test" in text_of(view.messages[0])
        assert view.messages[1] == rule
        for later in grown(session, history, range(100, 130)):
            assert "todo: [ ] write the test" in text_of(later.messages[0])
            assert rule in later.messages


def test_files_and_actions_are_told_by_their_calls(world: World) -> None:
    """C12, F69, CHECKLIST 65: with outcome, read-only tools apart."""
    history = [human("Fix the login.")]
    history += [asks(call("a", "Read", input={"file_path": "src/auth.py"}))]
    history += [answers(result("a", output(1, 1_500)))]
    history += [asks(call("b", "Edit", input={"file_path": "src/login.py", "old_string": "x"}))]
    history += [answers(result("b", "no such text", is_error=True))]
    for number in range(13):
        history += exchange(number)
    with opened(world, Scripted(STATE)) as session:
        told = text_of(session.view(history).messages[0])
    assert "Files read (recorded by the engine): src/auth.py" in told
    assert "Files changed (recorded by the engine): src/login.py" in told
    assert "- Edit: src/login.py → failed: no such text" in told
    assert "Read: src/auth.py" not in told


def test_a_tool_that_says_so_changes_nothing(world: World) -> None:
    """The hint that MCP servers give their tools."""
    tools = [{"name": "Bash", "annotations": {"readOnlyHint": True}, "input_schema": {}}]
    with opened(world, Scripted(STATE)) as session:
        told = text_of(session.view(conversation(14), tools=tools).messages[0])
    assert "Actions already done" not in told


def test_thinking_and_tool_blocks_do_not_reach_the_summarizer(world: World) -> None:
    """C47, F7, F17, F49: text only."""
    thought = {"type": "thinking", "thinking": "SECRET THOUGHT", "signature": "s"}
    history = [human("Fix it.", image())]
    history += [{"role": "assistant", "content": [thought, call("a", "Odd")]}]
    history += [answers(result("a", [{"type": "text", "text": "fine"}, image()]))]
    for number in range(13):
        history += exchange(number)
    scripted = Scripted(STATE)
    with opened(world, scripted) as session:
        session.view(history)
    [given] = scripted.given
    assert [event.text for event in given.events[:4]] == [
        "Fix it.",
        "[image]",
        '{"command":"a"}',
        "fine\n[image]",
    ]
    assert given.events[3].tool == "Odd"
    assert "SECRET THOUGHT" not in str(given)


def test_what_the_summarizer_left_out_is_reported(world: World) -> None:
    """CHECKLIST 78."""

    class Sampled(Scripted):
        def summarize(self, given: SummaryInput) -> Summary:
            made = super().summarize(given)
            return Summary(state=made.state, by="claude", read=80_000, given=400_000)

    with opened(world, Sampled(STATE)) as session:
        told = text_of(session.view(conversation(14)).messages[0])
    assert "it has read 80000 of 400000 characters" in told


def test_explain_tells_of_a_summary_and_asks_nobody(world: World) -> None:
    scripted = Scripted(STATE)
    history = conversation(14)
    with opened(world, scripted) as session:
        told = session.explain(history)
        assert told.reason == "trigger"
        assert [one.stage for one in told.decisions] == ["summarize"]
        assert told.after < told.before
        assert not scripted.given


def test_a_summary_may_hide_what_was_archived_and_masked(world: World) -> None:
    """Precedence: the newest range holds, what it hides reads back all the same."""
    policy = Policy(window=10_000)
    history = conversation(10)
    with opened(world, Scripted(STATE), policy) as session:
        views = grown(session, history, range(100, 200))
        stages = {one.stage for view in views for one in view.decisions}
        assert stages == {"mask", "summarize"}
        for handle in session.handles():
            assert session.read(handle)


SETTINGS: dict[str, Any] = {
    "keep_exchanges": 1,
    "keep_share": 0.01,
    "state_chars": 60,
    "state_share": 0.001,
    "input_chars": 1_000,
    "read_only": frozenset({"Bash"}),
    "rebuild_every": 2,
    "failures": 1,
}


def test_every_setting_of_summaries_is_listed_here() -> None:
    """A new setting needs a test of its effect."""
    assert SETTINGS.keys() == {field.name for field in dataclasses.fields(SummaryPolicy)}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_summaries_has_an_effect(world: World, name: str) -> None:
    """On what the summarizer is given, how often it is asked, or what stands in the view."""
    seen = []
    for number, policy in enumerate((ONLY, ONLY.but(**{f"summary__{name}": SETTINGS[name]}))):
        scripted = Scripted(STATE, STATE, *[Rejected("empty")] * 4, STATE)
        history = conversation(12)
        with opened(world, scripted, policy, session=f"s{number}") as session:
            views = grown(session, history, range(100, 150))
        given = [(one.input_chars, one.state_chars, one.new_from) for one in scripted.given]
        seen.append((given, [text_of(view.messages[0]) for view in views]))
    assert seen[0] != seen[1]
