"""What hosts do to a history between two requests, one case each."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from compactor import Compactor, Keys, MaskPolicy, Policy, Transcript

Message = dict[str, Any]
MARK = {"type": "ephemeral"}
POLICY = Policy(window=6_000, mask=MaskPolicy(keep_recent=1, keep_least=1))
REMINDER = {
    "role": "user",
    "content": [{"type": "text", "text": "<system-reminder>Monday</system-reminder>"}],
}


def exchange(name: str, text: str) -> list[Message]:
    call = {"type": "tool_use", "id": name, "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": name, "content": text}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def conversation(count: int) -> list[Message]:
    history: list[Message] = [{"role": "user", "content": "Repair the build."}]
    for number in range(count):
        history += exchange(f"call{number}", f"line {number} of the output\n" * 120)
    return history


def mark(message: Message) -> None:
    message["content"][-1]["cache_control"] = MARK


@pytest.mark.parametrize("position", [0, 1, 5])
def test_a_message_comes_in_before_old_ones(position: int, watch: Any, tmp_path: Path) -> None:
    """A reminder put in front of masked results moves them, and the masks move with them."""
    watched = watch(tmp_path / "w", POLICY)
    history = conversation(8)
    assert watched.view(history).stats.masked
    history.insert(position, REMINDER)
    view = watched.view(history)
    watched.again(history, view)
    watched.restarted(history, view)
    history += exchange("later", "later output\n" * 200)
    watched.view(history)
    watched.reads()
    watched.session.close()
    watched.rebuilt()


def test_a_reminder_that_comes_and_goes(watch: Any, tmp_path: Path) -> None:
    """It stands in front in every second request; masks hold in both."""
    watched = watch(tmp_path / "w", POLICY)
    history = conversation(8)
    watched.view(history)
    for _ in range(3):
        watched.view([REMINDER, *history])
        watched.view(history)
    watched.session.close()
    watched.rebuilt()


def test_equal_results_after_a_rewind(watch: Any, tmp_path: Path) -> None:
    """Which of several equal results a mask is about does not depend on the way to a history."""
    watched = watch(tmp_path / "w", POLICY)
    history: list[Message] = [{"role": "user", "content": "Poll until it is done."}]
    for _ in range(8):
        history += exchange("call_0", "not yet\n" * 300)
        watched.view(history)
    del history[3:]
    watched.view(history)
    for name, text in (("other", "short"), ("call_0", "not yet\n" * 300), ("another", "short")):
        history += exchange(name, text)
        view = watched.view(history)
    watched.restarted(history, view)
    watched.reopen()
    watched.view(history)
    watched.session.close()
    watched.rebuilt()


def test_marks_far_back_are_found_after_the_history_moved(watch: Any, tmp_path: Path) -> None:
    """A cache mark is recorded where it stands after messages in front of it went or came."""
    watched = watch(tmp_path / "w", Policy())
    history = conversation(12)
    mark(history[6])
    watched.view(history)
    del history[1:3]
    watched.view(history)
    history.insert(0, REMINDER)
    watched.view(history)
    watched.session.close()
    watched.rebuilt()


def test_marks_move_inside_messages_that_were_read_anew(watch: Any, tmp_path: Path) -> None:
    """After a reload that changed one message, the others are the caller's new dictionaries."""
    watched = watch(tmp_path / "w", Policy())
    history = conversation(3)
    watched.view(history)
    history = [
        {**message, "content": [dict(block) for block in message["content"]]}
        for message in history[1:]
    ]
    history = [{"role": "user", "content": [{"type": "text", "text": "edited"}]}, *history]
    watched.view(history)
    mark(history[-1])
    watched.view(history)
    watched.session.close()
    watched.rebuilt()


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), (1, 1.0), (0.0, -0.0)])
def test_values_that_python_takes_for_equal(
    old: object, new: object, watch: Any, tmp_path: Path
) -> None:
    """One is not true: a message that changed so is another message."""
    watched = watch(tmp_path / "w", Policy())
    history = conversation(1)
    history[1]["content"][0]["input"] = {"value": old}
    watched.view(history)
    call = {**history[1]["content"][0], "input": {"value": new}}
    history[1] = {**history[1], "content": [call]}
    watched.view(history)
    watched.session.close()
    watched.rebuilt()


def test_an_idle_writer_does_not_vouch_for_a_crashed_one(tmp_path: Path) -> None:
    """What a power cut took is written anew, also if a session was opened and closed between."""
    history = conversation(0) + exchange("call", "a long line of output\n" * 1_000)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    whole.mkdir()
    with Compactor.open(whole, "one", keys=Keys(b"k" * 32, whole / "state")) as session:
        session.view(history)
        shutil.copytree(whole, torn)
    keys = Keys(b"k" * 32, torn / "state")
    lost = list((torn / ".transcripts").rglob("*.blob"))
    assert lost
    for blob in lost:  # never synced, so that the cut may have taken it
        blob.unlink()
    Compactor.open(torn, "one", keys=keys).close()
    with Compactor.open(torn, "one", keys=keys) as session:
        assert session.view(history).degraded is None
    with Transcript.open(torn, "one", keys) as transcript:
        assert transcript.messages() == history


def test_a_tight_window_is_decided_at_once(watch: Any, tmp_path: Path) -> None:
    """An old preview too small to pay alone is masked in the set in which it makes all fit."""
    policy = Policy(window=5_000, stages=("mask",), mask=MaskPolicy(keep_recent=1, keep_least=1))
    watched = watch(tmp_path / "w", policy)
    history: list[Message] = [{"role": "user", "content": "x" * 11_600}]
    history += exchange("first", "all is well\n" * 416)
    watched.view(history)
    one, other = exchange("second", "all is well\n" * 416), exchange("third", "not yet\n" * 375)
    pairs = zip(one, other, strict=True)
    history += [{**a, "content": [*a["content"], *b["content"]]} for a, b in pairs]
    view = watched.view(history)
    watched.again(history, view)
    assert not view.over_budget
    watched.session.close()
