"""Histories that change elsewhere than at their end: rewinds, dates, forks, cuts in front."""

import copy
import random
from collections.abc import Callable

import pytest
from histories import (
    SMALL,
    History,
    World,
    answers,
    asks,
    assert_faithful,
    call,
    conversation,
    exchange,
    handle_of,
    hidden,
    human,
    is_masked,
    output,
    reloaded,
    result,
    result_blocks,
    says,
)

from compactor import PersistPolicy

EAGER = SMALL.but(persist=PersistPolicy(always_chars=2_500, preview_chars=300, tail_chars=100))
REMINDER = human("<system-reminder>It is Tuesday.</system-reminder>")

Change = Callable[[History], History]

CHANGES: dict[str, Change] = {
    "rewind": lambda h: h[:-4],
    "rewind to the start": lambda h: h[:3],
    "date in the first message": lambda h: [human("Tuesday. Fix the login."), *h[1:]],
    "last message replaced": lambda h: [*h[:-1], answers(result("toolu_13", output(99, 900)))],
    "last message extended": lambda h: [
        *h[:-1],
        answers(*h[-1]["content"], {"type": "text", "text": "Go on."}),
    ],
    "shortened in front": lambda h: [h[0], *h[9:]],
    "shortened in front with a note": lambda h: [human("Summary: all is well."), *h[9:]],
    "cut in the middle": lambda h: [*h[:5], *h[11:]],
    "fork": lambda h: [*h[:-4], says("Another way."), human("Yes."), *exchange(70, 2_000)],
    "reminder inserted": lambda h: [h[0], REMINDER, *h[1:]],
    "reminder inserted in the middle": lambda h: [*h[:15], REMINDER, *h[15:]],
    "message put in front": lambda h: [human("Before all."), says("Yes."), *h],
    "appended and date": lambda h: [human("Wednesday."), *h[1:], *exchange(71)],
    "emptied": lambda _: [],
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_edit_keeps_views_legal_and_decisions_on_unchanged_blocks(
    world: World, change: str
) -> None:
    """The view differs from the edited history in notes only, and each note reads back right.

    Whatever was hidden and is still there, unchanged and read, stays hidden in the same bytes;
    the transcript rebuilds every request; going back gives the first view again.
    """
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        notes = {b["tool_use_id"]: b for b in hidden(first.messages)}
        edited = CHANGES[change](history)
        view = session.view(edited)
        assert_faithful(edited, view)
        originals = {block["tool_use_id"]: block["content"] for block in result_blocks(edited)}
        for note in hidden(view.messages):
            assert session.read(handle_of(note)).decode() == originals[note["tool_use_id"]]
        read = len(edited) - 2
        for position, message in enumerate(edited[:read]):
            for block in result_blocks([message]):
                if block["tool_use_id"] in notes and position < read:
                    assert (
                        result_blocks([view.messages[position]])[0] == notes[block["tool_use_id"]]
                    )
        back = session.view(history)
        assert back.messages == first.messages
        sent = [first.messages, view.messages, back.messages]
    requests = world.requests()
    assert [request.messages for request in requests] == sent
    assert all(request.whole for request in requests)
    with world.transcript() as transcript:
        assert transcript.messages() == history
        for name in transcript.handles():
            transcript.read(name)


@pytest.mark.parametrize("change", CHANGES)
def test_resuming_on_an_edited_history(world: World, change: str) -> None:
    """Another process meets the edited history first: the same view as the same process."""
    history = conversation(14)
    for name, session_name in (("here", "here"), ("there", "there")):
        session = world.open(session_name)
        session.view(history)
        if name == "there":
            session.close()
            session = world.open(session_name)
        edited = CHANGES[change](reloaded(history))
        view = session.view(edited)
        assert_faithful(edited, view)
        session.close()
    here, there = world.requests("here")[-1], world.requests("there")[-1]
    assert here.whole
    assert there.whole
    assert here.messages == there.messages


def test_a_rewind_shows_what_is_unread_again(world: World) -> None:
    """A masked result that becomes the newest one stands in full, and is masked again later."""
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        assert is_masked(result_blocks(first.messages)[2])
        view = session.view(history[:7])
        assert [is_masked(block) for block in result_blocks(view.messages)] == [True, True, False]
        forked = [*history[:7], says("Another way."), human("Yes.")]
        view = session.view(forked)
        assert [is_masked(block) for block in result_blocks(view.messages)] == [True] * 3


def test_a_date_that_changes_each_turn_costs_no_decision(world: World) -> None:
    """An edited first message voids nothing, and the vault grows by what is new only."""
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        session.flush()
        before = world.size()
        for day in range(20):
            edited = [human(f"Day {day}. Fix the login."), *history[1:]]
            view = session.view(edited)
            assert view.messages[1:] == first.messages[1:]
            assert view.decisions == ()
        session.flush()
        assert world.size() - before < 20 * 1_500
    assert all(request.whole for request in world.requests())


def test_a_last_message_that_is_rewritten_costs_little(world: World) -> None:
    """Continuations of one message are stored each, the rest once."""
    history = conversation(14)
    with world.open() as session:
        session.view(history)
        session.flush()
        before = world.size()
        for number in range(10):
            session.view([*history[:-1], answers(result("toolu_13", f"part {number}"))])
        session.flush()
        assert world.size() - before < 10 * 1_500


def test_a_history_shortened_in_front_costs_little(world: World) -> None:
    """Messages that moved are known again, in this process and in the next."""
    history = conversation(20, 12_000)
    with world.open() as session:
        session.view(history)
    before = world.size()
    with world.open() as session:
        view = session.view([history[0], *history[11:]])
        assert_faithful([history[0], *history[11:]], view)
        assert hidden(view.messages)
    assert world.size() - before < 200_000


def test_a_rewind_records_what_was_removed(world: World) -> None:
    """The history at the end is the one at the end; all before can still be read."""
    history = conversation(14)
    with world.open() as session:
        session.view(history)
        handles = session.handles()
        session.view(history[:5])
        originals = [block["content"] for block in result_blocks(history)]
        assert [session.read(name).decode() for name in handles] == originals[: len(handles)]
    with world.transcript() as transcript:
        assert transcript.messages() == history[:5]
        assert [transcript.read(name).decode() for name in handles] == originals[: len(handles)]


def test_equal_results_stay_apart(world: World) -> None:
    """Ids and contents that repeat: each occurrence is hidden or shown for itself."""
    pair: History = [asks(call("a")), answers(result("a", output(1, 1_500)))]
    history: History = [human("Go.")]
    for _ in range(14):
        history += copy.deepcopy(pair)
    with world.open() as session:
        view = session.view(history)
        shown = [is_masked(block) for block in result_blocks(view.messages)]
        assert shown[0]
        assert not any(shown[-3:])
        assert shown == sorted(shown, reverse=True)
        assert len(session.handles()) == 1
        for cut in (3, 5, 9):
            shorter = [history[0], *history[cut:]]
            view = session.view(shorter)
            assert_faithful(shorter, view)
            assert not is_masked(result_blocks(view.messages)[-1])
    assert all(request.whole for request in world.requests())


def test_calls_that_repeat_their_ids(world: World) -> None:
    """Counters that start again each turn are real; views stay paired."""
    history: History = [human("Go.")]
    with world.open() as session:
        for number in range(30):
            history.append(asks(call("call_0"), call("call_1", "Read")))
            texts = output(number, 1_200), output(100 + number, 300)
            history.append(answers(result("call_1", texts[1]), result("call_0", texts[0])))
            assert_faithful(history, session.view(history))
    assert all(request.whole for request in world.requests())


def grown(history: History, number: int, chance: random.Random) -> History:
    """Return a history after one random thing that clients do."""
    size = chance.choice([50, 1_500, 1_500, 4_000])
    cut = chance.choice([p for p in range(1, len(history) + 1) if history[p - 1]["role"] == "user"])
    calls = [p for p in range(len(history) - 1) if history[p]["content"][0]["type"] == "tool_use"]
    old = chance.choice(calls or [len(history)])
    made: dict[str, Callable[[], History]] = {
        "append": lambda: [*history, *exchange(number, size)],
        "again": lambda: [*history, *reloaded(history[old : old + 2])],
        "human": lambda: [*history, says("Done."), human(f"Next {number}.")],
        "rewind": lambda: history[:cut],
        "date": lambda: [human(f"Date {number}."), *history[1:]],
        "front": lambda: [history[0], *history[cut:]],
        "reload": lambda: reloaded(history),
        "insert": lambda: [*history[:1], human(f"Reminder {number}."), *history[1:]],
    }
    names = ["append"] * 12 + ["again", "human", "rewind", "date", "front", "reload", "insert"]
    return made[chance.choice(names)]()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_clients_do(world: World, seed: int) -> None:
    """Random growth, rewinds, edits, cuts, repeats, and restarts between them.

    Every view is legal and faithful, a resumed session sees the same as the one before it, and
    the transcript rebuilds every request.
    """
    chance = random.Random(seed)
    history = conversation(2)
    sent: list[History] = []
    session = world.open(policy=EAGER)
    for number in range(100, 140):
        history = grown(history, number, chance)
        view = session.view(history)
        assert_faithful(history, view)
        if not sent or sent[-1] != view.messages:
            sent.append(copy.deepcopy(view.messages))
        if chance.random() < 0.1:
            before = session.view(history).messages
            session.close()
            session = world.open(policy=EAGER)
            again = session.view(history)
            assert again.messages == before
            assert again.decisions == ()
        originals = {str(block["content"]) for block in result_blocks(history)}
        for note in hidden(view.messages)[:2]:
            assert session.read(handle_of(note)).decode() in originals
    session.close()
    requests = world.requests()
    assert all(request.whole for request in requests)
    rebuilt = [request.messages for request in requests]
    assert [one for i, one in enumerate(rebuilt) if i == 0 or rebuilt[i - 1] != one] == sent
