"""`messages[:] = view.messages`: a history that starts with a view of ours."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from histories import (
    SMALL,
    History,
    World,
    assert_legal,
    conversation,
    exchange,
    hidden,
    is_masked,
    result_blocks,
)

from compactor import Policy, StorageError

ARCHIVES = Policy(window=10_000, min_gain=0.01, stages=("mask", "archive"))
SUMMARIES = Policy(window=10_000, min_gain=0.01)


def play(world: World, policy: Policy, *, write_back: bool, restart: int = 0) -> list[Any]:
    """Play 40 exchanges; return the views."""
    history: History = conversation(2)
    views = []
    session = world.open(f"s{write_back}{restart}".lower(), policy=policy)
    for number in range(40):
        if restart and number % restart == restart - 1:
            session.close()
            session = world.open(session.session, policy=policy)
            history = copy.deepcopy(history)
        view = session.view(history)
        views.append(copy.deepcopy(view.messages))
        if write_back:
            history[:] = view.messages
        history += exchange(100 + number, 800)
    session.close()
    return views


@pytest.mark.parametrize(
    "policy", [SMALL, ARCHIVES, SUMMARIES], ids=["masks", "archives", "summaries"]
)
@pytest.mark.parametrize("restart", [0, 7])
def test_views_are_those_of_a_history_that_was_kept(
    world: World, policy: Policy, restart: int
) -> None:
    """Message for message, also across restarts: the originals are known, nothing is nested."""
    kept = play(world, policy, write_back=False)
    assert play(world, policy, write_back=True, restart=restart) == kept


def test_everything_reads_back(world: World) -> None:
    """The transcript holds the originals, and every request is rebuilt."""
    play(world, ARCHIVES, write_back=True)
    whole = conversation(2)
    for number in range(39):
        whole += exchange(100 + number, 800)
    with world.transcript("strue0") as transcript:
        assert transcript.messages() == whole
        assert all(transcript.read(handle) for handle in transcript.handles())
    assert all(request.whole for request in world.requests("strue0"))


def test_undo_shows_the_originals_again(world: World) -> None:
    """Though the caller does not have them any more."""
    policy = Policy(window=40_000, trigger=0.2, target=0.03, min_gain=0.01, stages=("mask",))
    history = conversation(14)
    whole = copy.deepcopy(history)
    with world.open(policy=policy) as session:
        history[:] = session.view(history).messages
        assert any(map(is_masked, result_blocks(history)))
        session.undo()
        view = session.view(history)
        assert view.messages == whole
        assert hidden(view.messages) == []
        assert_legal(view.messages)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_a_view_that_was_broken_off_forgets_no_original(
    world: World, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    """Whatever broke it off: the next one knows what the view before it stood for."""
    history = conversation(14)
    with world.open() as session:
        history[:] = session.view(history).messages
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise stop

            patch.setattr("compactor.engine.plan", fail)
            with pytest.raises(stop):
                session.view(history)
        history += exchange(99)
        session.view(history)
    with world.transcript() as transcript:
        assert transcript.messages() == [*conversation(14), *exchange(99)]


def test_a_view_that_was_refused_forgets_no_original(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take anything in twice."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    history = conversation(14)
    with world.open(policy=SMALL.but(on_storage_error="raise")) as session:
        history[:] = session.view(history).messages
        history += exchange(98)
        with monkeypatch.context() as patch:
            patch.setattr("compactor.storage.files.write_all", refuse)
            with pytest.raises(StorageError):
                session.view(history)
        history += exchange(99)
        with suppress(StorageError):  # the disk may have one more refusal to tell of
            session.view(history)
        session.view(history)
    with world.transcript() as transcript:
        assert transcript.messages() == [*conversation(14), *exchange(98), *exchange(99)]
