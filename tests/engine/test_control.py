"""What a host may ask of a session beside views: undo, pins, children, explanations, callbacks."""

import asyncio
import logging
import threading
from itertools import pairwise
from typing import Any

import pytest
from histories import (
    RESULTS,
    SMALL,
    World,
    assert_faithful,
    conversation,
    exchange,
    hidden,
    human,
    image,
    is_masked,
    result_blocks,
)

from compactor import (
    BadMessage,
    BadPolicy,
    CannotFit,
    Closed,
    Compactor,
    Policy,
    StorageError,
    Transcript,
    View,
)
from compactor.storage import files

# Compacts early in a window that has room for everything.
EARLY = Policy(window=40_000, trigger=0.2, target=0.03, min_gain=0.01, stages=RESULTS)
TIGHT = Policy(stages=("persist", "mask", "archive"), window=10_000, min_gain=0.01)


def masks(view: View) -> int:
    return sum(map(is_masked, result_blocks(view.messages)))


def test_undo_takes_back_the_newest_compaction(world: World) -> None:
    """Then nothing is masked until the prompt would not fit; a restart knows that, too."""
    history = conversation(14)
    with world.open(policy=EARLY) as session:
        assert masks(session.view(history))
        undone = session.undo()
        assert undone is not None
        assert undone.reason == "trigger"
        view = session.view(history)
        assert view.messages == history
        assert view.decisions == ()
    with world.open(policy=EARLY) as session:
        assert session.view(history).messages == history
        while session.view(history).stats.view_tokens < 34_000:
            history += exchange(len(history))
            assert session.view(history).messages == history
        while not (view := session.view(history)).decisions:
            history += exchange(len(history))
        assert not view.over_budget
        assert_faithful(history, view)
        history += exchange(1_000)
        assert session.view(history).stats.view_tokens < 34_000
    assert all(request.whole for request in world.requests())


def test_undo_leaves_what_was_shortened_on_arrival(world: World) -> None:
    """Also where one set did both."""
    history = [*conversation(14), *exchange(99, 40_000)]
    with world.open(policy=EARLY) as session:
        view = session.view(history)
        assert {d.stage for d in view.decisions} == {"persist", "mask"}
        session.undo()
        view = session.view(history)
        (note,) = hidden(view.messages)
        assert note["content"].startswith("<persisted-output")
        assert session.undo() is None
        assert view.messages[:-2] == history[:-2]
    with world.open(policy=EARLY) as session:
        assert session.view(history).messages == view.messages
    assert all(request.whole for request in world.requests())


def test_undo_refuses_what_cannot_fit(world: World) -> None:
    """Nothing has changed then."""
    history = conversation(30)
    with world.open() as session:
        before = session.view(history)
        with pytest.raises(CannotFit, match="tokens"):
            session.undo()
        after = session.view(history)
        assert after.messages == before.messages
        assert after.rewrites_from is None


def test_undo_of_several_sets(world: World) -> None:
    """One after the other, the newest first; handles keep reading."""
    history = conversation(14)
    with world.open(policy=EARLY.but(target=0.15)) as session:
        session.view(history)
        taken = 1
        while taken < 3:
            history += exchange(len(history))
            taken += bool(session.view(history).decisions)
        handles = session.handles()
        counts = [masks(session.view(history))]
        while session.undo():
            counts.append(masks(session.view(history)))
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == 0
        assert len(counts) == 4
        assert all(session.read(handle) for handle in handles)


def test_undo_with_a_disk_that_refuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, takes effect all the same, and is recorded later."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    history = conversation(14)
    with world.open(policy=EARLY) as session:
        session.view(history)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", refuse)
            with pytest.raises(StorageError):
                session.undo()
        assert session.view(history).messages == history
        session.view(history)
    with world.open(policy=EARLY) as session:
        assert session.view(history).messages == history


def test_undo_on_a_session_without_sets(world: World) -> None:
    """There is nothing to take back."""
    with world.open() as session:
        assert session.undo() is None


def test_pins_stand_in_the_note_of_an_archive(world: World) -> None:
    """By their keys, until they are let go; a restart knows them."""
    history = conversation(60, 600)
    with world.open(policy=TIGHT) as session:
        session.pin("api", "We keep the old API.")
        session.pin("gone", "Never mind.")
        session.unpin("gone")
        session.unpin("never")
    with world.open(policy=TIGHT) as session:
        view = session.view(history)
        assert view.stats.archived_messages
        texts = [str(message["content"]) for message in view.messages]
        (note,) = [text for text in texts if "messages archived" in text]
        assert "api: We keep the old API." in note
        assert "Never mind" not in note
        with pytest.raises(BadMessage):
            session.pin("x", 1)  # type: ignore[arg-type]
    assert all(request.whole for request in world.requests())


def test_a_child_names_its_parent(world: World) -> None:
    """It is a session of its own, in the same vault, under the same keys."""
    with world.open() as session, session.child("searcher") as child:
        assert child.session == f"{session.session}.searcher"
        child.view(conversation(2))
        session.view(conversation(3))
        with pytest.raises(StorageError):
            session.child("../x")
    assert [record["parent"] for record in _opens(world, "one.searcher")] == ["one"]
    assert "parent" not in _opens(world, "one")[0]


def _opens(world: World, name: str) -> list[dict[str, Any]]:
    from compactor.storage import Kind, Vault

    with Vault.open(world.root, world.keys).read(name) as reader:
        frames = list(reader.frames())
        return [reader.value(f) for f in frames if f.kind is Kind.OPEN]


def test_explain_decides_nothing(world: World) -> None:
    """It says what the next view does, and why; twice the same."""
    history = conversation(14)
    with world.open() as session:
        session.view(history[:9])
        before = session.explain(history)
        assert session.explain(history) == before
        assert session.handles() == []
        view = session.view(history)
        assert view.decisions == before.decisions
        assert before.reason == "trigger"
        assert (before.rewrites_from, before.rewritten) == (
            view.rewrites_from,
            view.stats.rewritten_tokens,
        )
        assert before.after == view.stats.view_tokens
        after = session.explain(history)
        assert (after.reason, after.decisions, after.rewritten) == (None, (), 0)


def test_a_callback_hears_of_each_set(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """After it took effect; of nothing else; its own faults cost no request."""
    heard: list[tuple[str, int]] = []

    def listen(one: Any, view: View) -> None:
        heard.append((one.reason, len(view.decisions)))
        raise RuntimeError

    history = conversation(14)
    with Compactor.open(
        world.folder, "one", policy=SMALL, keys=world.keys, on_compaction=listen
    ) as session:
        session.view(history[:5])
        view = session.view(history)
        session.view(history)
    assert heard == [("trigger", len(view.decisions))]
    assert "on_compaction" in caplog.text


def test_aview_is_view_in_a_thread(world: World) -> None:
    """For loops that must not wait."""
    history = conversation(14)
    with world.open() as session:
        view = asyncio.run(session.aview(history, max_tokens=100))
        assert session.view(history, max_tokens=100).messages == view.messages


def test_several_threads_may_ask(world: World) -> None:
    """One after the other is served; each view is whole."""
    history = conversation(14)
    with world.open() as session:
        views: list[View] = []
        threads = [
            threading.Thread(target=lambda: views.append(session.view(history))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(views) == 6
        assert all(view.messages == views[0].messages for view in views)
    assert sum(bool(view.decisions) for view in views) == 1


def test_a_cold_cache_lowers_the_trigger(world: World) -> None:
    """After a pause, a change of tools, of model or of the system prompt; not without one."""
    policy = Policy(window=20_000, trigger=0.9, target=0.1, cold_trigger=0.3, stages=RESULTS)
    history = conversation(14)
    changes: list[dict[str, Any]] = [
        {"now": 1_000.0},
        {"tools": [{"name": "x"}]},
        {"system": "Other."},
        {"model": "other"},
    ]
    for number, change in enumerate(changes):
        with world.open(f"s{number}", policy=policy) as session:
            assert not session.view(history, now=100.0).decisions
            assert not session.view(history, now=300.0).decisions
            assert session.view(history, **{"now": 301.0, **change}).decisions, change


def test_a_pause_before_a_restart_is_one_too(world: World) -> None:
    """The time of the last request stands in the transcript."""
    policy = Policy(window=20_000, trigger=0.9, target=0.1, cold_trigger=0.3, stages=RESULTS)
    history = conversation(14)
    with world.open(policy=policy) as session:
        assert not session.view(history).decisions
    with world.open(policy=policy) as session:
        assert not session.view(history).decisions
    with world.open(policy=policy) as session:
        assert session.view(history, now=4e9).decisions


def test_compactions_that_refill_at_once_wait(world: World) -> None:
    """The breaker: after three within a few exchanges, only what would not fit is compacted."""
    policy = Policy(window=10_000, trigger=0.5, target=0.4, min_gain=0.0, stages=RESULTS)
    history = conversation(9)
    with world.open(policy=policy) as session:
        for number in range(100, 140):
            view = session.view(history)
            assert not view.over_budget
            history += exchange(number, 3_000)
    with world.transcript() as transcript:
        ats = [one.at for one in transcript.sets]
        before = [one.before for one in transcript.sets]
    gaps = [later - earlier for earlier, later in pairwise(ats)]
    assert max(gaps[:2]) <= 6
    assert max(before[:3]) < 7_000
    assert before[3] > 8_500


def test_a_budget_in_characters(world: World) -> None:
    """`context_chars` counts what the model reads, system prompt and tools included."""
    history = conversation(14)
    policy = Policy(window=1_000_000, context_chars=12_000, stages=RESULTS)
    with world.open(policy=policy) as session:
        view = session.view(history)
        assert view.decisions
        assert view.stats.view_chars <= 0.7 * 12_000
        assert not view.over_budget
        over = session.view([human("x" * 20_000)])
        assert over.over_budget
        assert over.largest


def test_limits_of_images_and_bytes(world: World) -> None:
    """Old images go first; what is still over is said."""
    history = [*conversation(1), *exchange(50, 200)]
    for number in range(8):
        extra = exchange(60 + number, 200)
        extra[1]["content"][0]["content"] = [image(), {"type": "text", "text": "seen"}]
        history += extra
    with world.open(policy=Policy(max_images=3)) as session:
        view = session.view(history)
        left = sum(str(message).count("'type': 'image'") for message in view.messages)
        assert left <= 3
        assert not view.over_budget
        assert_faithful(history, view)
    with world.open("two", policy=Policy(max_bytes=45_000)) as session:
        view = session.view(conversation(40))
        assert sum(len(str(message)) for message in view.messages) < 45_000
        over = session.view([*conversation(1), human("x" * 60_000)])
        assert over.over_budget


def test_the_host_says_which_message_is_the_humans(world: World) -> None:
    """It stays as well as the last one in which the human speaks."""
    asked = human("Mind the tests.", image())
    history = [*conversation(10, 600), asked, *conversation(50, 600)]
    with world.open(policy=TIGHT) as session:
        assert asked not in session.view(history).messages
    with world.open("two", policy=TIGHT) as session:
        assert asked in session.view(history, human=21).messages
        with pytest.raises(BadMessage, match="human"):
            session.view(history, human=len(history))


def test_a_full_check_finds_an_old_message_written_to(world: World) -> None:
    """Of the same length, so that nothing else could tell."""
    for full in (True, False):
        history = conversation(14)
        policy = EARLY.but(trigger=0.9, check_history="full" if full else "edges")
        with world.open(f"s{full}".lower(), policy=policy) as session:
            session.view(history)
            text = history[2]["content"][0]["content"]
            history[2]["content"][0]["content"] = "X" + text[1:]
            view = session.view(history)
            assert (view.rewrites_from == 2) == full


def test_settings_come_from_the_workspace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[tool.compactor]`, then the environment; what contradicts itself is refused by name."""
    (world.folder / "pyproject.toml").write_text("[tool.compactor]\nwindow = 10_000\n")
    with Compactor.open(world.folder, "one", keys=world.keys) as session:
        assert session.view(conversation(2)).stats.window == 10_000
    monkeypatch.setenv("COMPACTOR_WINDOW", "20000")
    with Compactor.open(world.folder, "one", keys=world.keys) as session:
        assert session.view(conversation(2)).stats.window == 20_000
    monkeypatch.setenv("COMPACTOR_WINDOW", "none")
    with pytest.raises(BadPolicy, match="COMPACTOR_WINDOW"):
        Compactor.open(world.folder, "one", keys=world.keys)


def test_the_window_is_the_models(world: World) -> None:
    """By its name, where the policy does not say otherwise."""
    with world.open(policy=Policy()) as session:
        assert session.view(conversation(2)).stats.window == 200_000
        assert session.view(conversation(2), model="claude-opus-5").stats.window == 1_000_000
        assert session.view(conversation(2), model="of-tomorrow").stats.window == 200_000


def test_one_line_is_logged_when_something_changed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """With sizes and counts; none otherwise."""
    caplog.set_level(logging.INFO, "compactor")
    history = conversation(14)
    with world.open() as session:
        session.view(history[:3])
        assert caplog.records == []
        session.view(history)
        assert [record.levelname for record in caplog.records] == ["INFO"]
        session.view(history)
        assert len(caplog.records) == 1


def test_all_of_it_ends_with_the_session(world: World) -> None:
    """Closed is closed."""
    session = world.open()
    session.close()
    for act in (
        session.undo,
        lambda: session.pin("a", "b"),
        lambda: session.unpin("a"),
        lambda: session.child("x"),
        lambda: session.explain([]),
    ):
        with pytest.raises(Closed):
            act()


def test_off_means_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call works and does nothing."""
    monkeypatch.setenv("COMPACTOR", "off")
    history = conversation(14)
    with world.open() as session:
        assert session.view(history).messages is history
        assert session.undo() is None
        session.pin("a", "b")
        with session.child("x") as child:
            assert child.view(history).messages is history
        assert session.explain(history).reason == "trigger"
    assert not world.root.exists()


def test_a_transcript_of_a_child_opens_as_any(world: World) -> None:
    """By its name."""
    with world.open() as session, session.child("a") as child:
        child.view(conversation(2))
    with Transcript.open(world.folder, "one.a", world.keys) as transcript:
        assert transcript.messages() == conversation(2)


def test_a_counter_is_asked_for_large_views_only(world: World) -> None:
    """Until a usage report says more; what it counts moves the trigger; no answer is none."""
    asked: list[int] = []

    class Counter:
        def __init__(self, answer: int | None) -> None:
            self.answer = answer

        def count(self, messages: list[Any], **request: Any) -> int | None:
            assert request["model"] == "m"
            asked.append(len(messages))
            return self.answer

    history = conversation(9)
    for answer, decided in ((12_000, True), (5_000, False), (None, False)):
        asked.clear()
        with world.open(f"s{answer}".lower(), counter=Counter(answer)) as session:
            session.view(history[:3], model="m")
            assert asked == []
            assert not session.view(history[:15], model="m").decisions
            view = session.view([*history, *exchange(70)], model="m")
            assert bool(view.decisions) == decided
            assert asked
