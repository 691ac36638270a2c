"""Cases that `tests/properties/test_everything_at_once.py` found, each by itself."""

import pytest
from histories import (
    RESULTS,
    SMALL,
    World,
    conversation,
    exchange,
    human,
    result_blocks,
)

from compactor import Policy
from compactor.storage import files

# Compacts early in a window that has room for everything.
EARLY = Policy(window=40_000, trigger=0.2, target=0.03, min_gain=0.01, stages=RESULTS)
RANGES = Policy(window=7_000, stages=("archive",))


def test_a_view_after_an_undo_says_what_it_rewrites(world: World) -> None:
    """The provider's cache lost everything from the first mask on."""
    history = conversation(14)
    with world.open(policy=EARLY) as session:
        first = session.view(history).decisions[0].message
        session.undo()
        view = session.view(history)
    assert (view.rewrites_from, view.stable_prefix) == (first, first)
    assert view.stats.rewritten_tokens > 0


def test_handles_of_an_undone_set_outlive_a_restart(world: World) -> None:
    """Every handle that a note of the session has named is listed."""
    with world.open(policy=EARLY) as session:
        session.view(conversation(14))
        session.undo()
        known = session.handles()
    assert known
    with world.open(policy=EARLY) as session:
        assert session.handles() == known


def test_an_earlier_view_that_was_written_back_outlives_a_restart(world: World) -> None:
    """Also where a later view that was not written back has another set."""
    history = conversation(12)
    whole = list(history)
    with world.open() as session:
        history[:] = session.view(history).messages
        later = 50
        while not session.view(history).decisions:
            whole += exchange(later)
            history += whole[-2:]
            later += 1
    with world.open() as session:
        session.view(history)
    with world.transcript() as transcript:
        assert transcript.messages() == whole


def test_a_range_that_was_stored_late_reads_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refused while it was taken; the history moved before it was stored, and later on."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    history = conversation(16)
    with world.open(policy=RANGES) as session:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", refuse)
            assert session.view(history).degraded
        [handle] = session.handles()
        original = session.read(handle)
        history.insert(0, human("<system-reminder>Monday</system-reminder>"))
        for _ in range(3):
            view = session.view(history)
        assert view.degraded is None
        assert view.stats.archived_messages
        del history[4:]
        session.view(history)
        assert session.read(handle) == original


def test_a_block_that_was_stored_late_reads_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a result that was shortened then, wherever it stood when it was stored."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    history = [*conversation(1), *exchange(9, 60_000)]
    with world.open(policy=SMALL) as session:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", refuse)
            assert session.view(history).degraded
        [handle] = session.handles()
        original = result_blocks(history)[-1]["content"].encode()
        history.insert(0, human("<system-reminder>Monday</system-reminder>"))
        for _ in range(3):
            view = session.view(history)
        assert view.degraded is None
        del history[2:]
        session.view(history)
        assert session.read(handle) == original
