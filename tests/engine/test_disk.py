"""A disk that refuses, and a vault that goes away: nothing is hidden that is not stored."""

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from histories import (
    SMALL,
    History,
    World,
    assert_faithful,
    conversation,
    exchange,
    handle_of,
    hidden,
    is_masked,
    result_blocks,
)

from compactor import Compactor, PersistPolicy, Policy, StorageError
from compactor.storage import files

Refuse = Callable[[], Any]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, *names: str, error: Any = no_space) -> Iterator[None]:
    """Let these calls of the file system fail."""
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(files, name, error)
        yield


def assert_all_stored(world: World, history: History, messages: History) -> None:
    """Hold the transcript to the history, and each note of a view to its original."""
    originals = {block["tool_use_id"]: block["content"] for block in result_blocks(history)}
    with world.transcript() as transcript:
        assert transcript.messages() == history
        for note in hidden(messages):
            assert transcript.read(handle_of(note)).decode() == originals[note["tool_use_id"]]
        for name in transcript.handles():
            transcript.read(name)
    requests = world.requests()
    assert all(request.whole for request in requests)
    assert requests[-1].messages == messages


@pytest.mark.parametrize("name", ["write_all", "sync_data", "sync_file", "sync_folder"])
def test_nothing_is_hidden_that_is_not_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whichever step of storing fails: the content stays, and `degraded` says why.

    When the disk works again, all is stored and compaction goes on, within 33 views.
    """
    history = [*conversation(12), *exchange(99, 40_000)]
    with world.open(policy=SMALL.but(window=60_000, trigger=0.2)) as session:
        with refusing(monkeypatch, name):
            for number in range(12):
                view = session.view(history)
                assert view.messages is history
                assert view.decisions == ()
                assert "No space left" in (view.degraded or "")
                history += exchange(number + 20)
        views = 0
        while not view.changed:
            history += exchange(views + 100, 100)
            view = session.view(history)
            views += 1
            assert views <= 33
        assert view.degraded is None
        assert_faithful(history, view)
    assert_all_stored(world, history, view.messages)
    with world.open() as session:
        assert session.view(history).messages == view.messages


def test_what_was_hidden_before_stays_hidden(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusing disk takes nothing back that is stored."""
    history = conversation(14)
    with world.open() as session:
        before = session.view(history)
        with refusing(monkeypatch, "write_all"):
            for number in range(14, 20):
                history += exchange(number)
                view = session.view(history)
                assert view.messages[:29] == before.messages
                assert view.messages[29:] == history[29:]
                assert view.degraded


def test_a_refusal_when_nothing_was_decided(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported all the same, and what was missed is written later."""
    history = conversation(2)
    with world.open() as session:
        with refusing(monkeypatch, "write_all"):
            assert session.view(history).degraded
        history += exchange(2)
        views = [session.view(history) for _ in range(3)]
        assert views[-1].degraded is None
    assert_all_stored(world, history, history)


def test_closing_after_a_refusal_stores_or_raises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` makes everything durable, or says that it could not: never silently neither."""
    history = conversation(3)
    session = world.open()
    with refusing(monkeypatch, "write_all"):
        assert session.view(history).degraded
    try:
        session.close()
    except StorageError:
        return
    with world.transcript() as transcript:
        assert transcript.messages() == history


def test_flushing_after_a_refusal_stores_or_raises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does `flush`."""
    history = conversation(3)
    with world.open() as session:
        with refusing(monkeypatch, "write_all"):
            assert session.view(history).degraded
        try:
            session.flush()
        except StorageError:
            return
        with world.transcript() as transcript:
            assert transcript.messages() == history


def test_a_failed_flush_says_so_and_the_session_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced is written anew with the next view."""
    history = conversation(3)
    with world.open() as session:
        session.view(history)
        with refusing(monkeypatch, "sync_data"), pytest.raises(StorageError):
            session.flush()
        history += exchange(3)
        assert session.view(history).degraded is None
        session.flush()
    assert_all_stored(world, history, history)


def test_a_file_size_limit(world: World) -> None:
    """A write that takes only a part, as a quota does it."""
    history = [*conversation(12), *exchange(99, 90_000)]
    history[-1]["content"][0]["content"] = os.urandom(45_000).hex()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with world.open(policy=SMALL.but(window=100_000, trigger=0.2)) as session:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
        try:
            view = session.view(history)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert view.messages is history
        assert view.degraded
        views = [session.view(history) for _ in range(3)]
        assert views[-1].changed
    assert_all_stored(world, history, views[-1].messages)


@pytest.mark.parametrize("fault", ["read_at", "size_of"])
def test_a_disk_that_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Going on after a refusal reads the vault: an error there is no exception either."""
    history = conversation(2)
    with world.open() as session:
        session.view(history)
        with refusing(monkeypatch, "write_all"):
            history += exchange(2)
            session.view(history)

        def broken(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with refusing(monkeypatch, fault, error=broken):
            for number in range(3, 7):
                history += exchange(number)
                assert session.view(history).degraded
        history += conversation(14)
        for _ in range(33):
            view = session.view(history)
        assert view.degraded is None
        assert view.changed


def test_opening_on_a_disk_that_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed error, as documented, and the lock is free afterwards."""
    with world.open() as session:
        session.view(conversation(2))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with refusing(monkeypatch, "read_at", error=broken), pytest.raises(StorageError):
        world.open()
    world.open().close()


@pytest.mark.parametrize("name", ["write_all", "sync_data"])
def test_an_interrupt_while_storing(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ctrl-C in the middle of a write, and the loop goes on: nothing is hidden unrecorded."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    history = conversation(14)
    with world.open() as session:
        with refusing(monkeypatch, name, error=interrupt), pytest.raises(KeyboardInterrupt):
            session.view(history)
        for number in range(5):
            history += exchange(50 + number, 100)
            view = session.view(history)
            assert view.degraded is None or view.messages is history
    assert_all_stored(world, history, view.messages)


def remove_all(world: World) -> None:
    shutil.rmtree(world.root)


def remove_session(world: World) -> None:
    shutil.rmtree(world.session_folder)


def remove_blobs(world: World) -> None:
    shutil.rmtree(world.session_folder / "blobs")


def remove_lanes(world: World) -> None:
    for path in world.session_folder.glob("*.lane"):
        path.unlink()


REMOVALS = [remove_all, remove_session, remove_blobs, remove_lanes]


@pytest.mark.parametrize("remove", REMOVALS, ids=lambda remove: remove.__name__)
def test_the_vault_is_deleted_under_a_running_session(
    world: World, remove: Callable[[World], None]
) -> None:
    """`git clean`: the engine notices before it commits and writes the whole history anew."""
    history = [*conversation(14), *exchange(60, 40_000)]
    with world.open() as session:
        before = session.view(history)
        remove(world)
        views = 0
        while len(hidden(before.messages)) >= len(hidden(session.view(history).messages)):
            history += exchange(100 + views, 6_000)
            views += 1
            assert views <= 33
        view = session.view(history)
        assert view.degraded is None
        shown = {block["tool_use_id"]: block for block in result_blocks(view.messages)}
        for block in filter(is_masked, result_blocks(before.messages)):
            assert shown[block["tool_use_id"]] == block
    assert_all_stored(world, history, view.messages)
    with world.open() as session:
        assert session.view(history).messages == view.messages


@pytest.mark.parametrize("remove", REMOVALS, ids=lambda remove: remove.__name__)
def test_the_vault_is_deleted_and_nothing_is_decided(
    world: World, remove: Callable[[World], None]
) -> None:
    """`flush` notices, and writes the whole history anew."""
    history = [*conversation(2), *exchange(60, 40_000)]
    with world.open() as session:
        session.view(history)
        remove(world)
        history += exchange(3, 100)
        view = session.view(history)
        assert view.changed
        session.flush()
    assert_all_stored(world, history, view.messages)


@pytest.mark.parametrize("keep", [6, 18, 28])
def test_the_vault_is_deleted_after_the_history_was_shortened(world: World, keep: int) -> None:
    """Old sets name places that the history written anew does not have.

    Every handle that the session issued gives its original or a typed error, in the session and
    in the transcript; what stands as a note in the view reads back.
    """
    history = conversation(14)
    with world.open() as session:
        session.view(history)
        history = [history[0], *history[-keep:]]
        session.view(history)
        remove_all(world)
        history += exchange(60, 40_000)
        for _ in range(33):
            view = session.view(history)
            if view.degraded is None:
                break
        assert view.degraded is None
        originals = {block["tool_use_id"]: block["content"] for block in result_blocks(history)}
        notes = hidden(view.messages)
        assert notes
        for note in notes:
            assert session.read(handle_of(note)).decode() == originals[note["tool_use_id"]]
        for name in session.handles():
            with suppress(StorageError):
                session.read(name)
    with world.transcript() as transcript:
        assert transcript.messages() == history
        for note in notes:
            assert transcript.read(handle_of(note)).decode() == originals[note["tool_use_id"]]
    assert all(request.whole for request in world.requests())


def test_another_vault_in_its_place(world: World) -> None:
    """A folder that was swapped is not written into as if it were ours."""
    history = conversation(14)
    with world.open() as session:
        session.view(history)
        world.root.rename(world.folder / "moved")
        with world.open("two") as other:
            other.view(conversation(1))
        history += [*exchange(60, 40_000)]
        for _ in range(4):
            view = session.view(history)
            for note in hidden(view.messages):
                session.read(handle_of(note))


def test_a_vault_that_nobody_may_enter(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions that vanish under a running session (as root: injected) are a refusal too."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    history = conversation(14)
    with world.open(policy=SMALL.but(window=20_000, trigger=0.4)) as session:
        session.view(history[:5])
        with monkeypatch.context() as patch:
            patch.setattr(files.Folder, "enter", refuse)
            patch.setattr(files, "write_all", refuse)
            for number in range(4):
                history += exchange(30 + number)
                assert session.view(history).messages is history
        for _ in range(33):
            view = session.view(history)
        assert view.degraded is None
        assert view.changed


def test_the_lock_taken_by_another_while_the_disk_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing new is hidden here, and what the other wrote is not lost."""
    history = conversation(3)
    with world.open() as session:
        with refusing(monkeypatch, "write_all"):
            assert session.view(history).degraded
        other: Compactor | None = None
        try:
            other = world.open()
            other.view(history)
        except StorageError:
            pass  # the lock was kept: as good
        history += conversation(14)
        for _ in range(4):
            view = session.view(history)
            assert (view.messages is history) or view.degraded is None
        if other is not None:
            assert view.messages is history
            other.close()
        for _ in range(33):
            view = session.view(history)
        assert view.degraded is None
    assert_all_stored(world, history, view.messages)


def test_arriving_results_with_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would not fit is shortened all the same: it reads back from the history alone.

    It is stored as soon as the disk allows.
    """
    history = [*conversation(1), *exchange(9, 400_000)]
    policy = Policy(window=50_000, persist=PersistPolicy())
    with world.open(policy=policy) as session:
        with refusing(monkeypatch, "write_all"):
            view = session.view(history)
            assert view.degraded
            assert not view.over_budget
            (note,) = hidden(view.messages)
            assert session.read(handle_of(note)).decode() == history[-1]["content"][0]["content"]
        for _ in range(3):
            again = session.view(history)
            assert again.messages == view.messages
        assert again.degraded is None
    assert_all_stored(world, history, view.messages)


def test_a_disk_that_refuses_may_raise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who prefer it; the next view goes on as if nothing had been."""
    history = conversation(14)
    with world.open(policy=SMALL.but(on_storage_error="raise")) as session:
        with refusing(monkeypatch, "write_all"), pytest.raises(StorageError):
            session.view(history)
        view = None
        while view is None:  # the disk is left alone for a turn
            with suppress(StorageError):
                view = session.view(history)
        assert view.changed
        assert view.degraded is None
    assert_all_stored(world, history, view.messages)
