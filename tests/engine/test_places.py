"""Where vaults are, what a restart keeps, and how a session ends."""

from pathlib import Path

import pytest
from histories import SMALL, World, conversation, exchange

from compactor import Closed, Compactor, Policy, StorageError, Transcript
from compactor.transcript import vault_root


def test_a_vault_is_named_by_its_workspace_or_by_itself(world: World) -> None:
    """Everywhere the same transcript."""
    with world.open() as session:
        session.view(conversation(1))
    for place in (world.folder, world.root, str(world.root)):
        with Transcript.open(place, "one", world.keys) as transcript:
            assert transcript.messages() == conversation(1)
    with Compactor.open(world.root, "one", keys=world.keys):
        assert not (world.root / ".transcripts").exists()


def test_a_file_of_the_name_of_the_store_file_makes_no_vault(tmp_path: Path) -> None:
    """A project may have a STORE.json of its own."""
    for content in ('{"shops": []}', "not json", "[]"):
        (tmp_path / "STORE.json").write_text(content)
        assert vault_root(tmp_path) == tmp_path / ".transcripts"


def test_projects_under_one_home_do_not_share_sessions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workspaces of one name have two vaults there, and none in themselves."""
    monkeypatch.setenv("COMPACTOR_HOME", str(world.folder / "home"))
    (world.folder / "home").mkdir()
    places = [world.folder / "a" / "shop", world.folder / "b" / "shop"]
    for number, place in enumerate(places, 1):
        place.mkdir(parents=True)
        with Compactor.open(place, "one", keys=world.keys) as session:
            session.view(conversation(number))
    for number, place in enumerate(places, 1):
        assert list(place.iterdir()) == []
        with Transcript.open(place, "one", world.keys) as transcript:
            assert transcript.messages() == conversation(number)


def test_a_restart_knows_what_the_provider_measured(world: World) -> None:
    """The estimate alone would compact; the usage reported before the restart does not."""
    policy = Policy(window=20_000)
    history = conversation(20)
    with world.open(policy=Policy(window=10_000_000)) as session:
        view = session.view(history)
        assert not view.changed
        session.observe({"input_tokens": 5_000})
    with world.open(policy=policy) as session:
        again = session.view(history)
        assert not again.changed
        assert again.stats.view_tokens == 5_000
        assert (again.stable_prefix, again.rewrites_from) == (len(history), None)
        grown = session.view([*history, *exchange(99, 30_000)])
        assert grown.stats.view_tokens > 5_000


def test_a_restart_after_a_compaction_measures_anew(world: World) -> None:
    """What was measured before a set rewrote the prefix does not count for what it became."""
    history = conversation(4)
    with world.open() as session:
        session.view(history)
        session.observe({"input_tokens": 100})
        while not session.view(history).changed:
            history += exchange(len(history), 3_000)
        expected = session.view(history).stats.view_tokens
    with world.open() as session:
        view = session.view(history)
        assert view.stats.view_tokens == expected
        assert (view.stable_prefix, view.rewrites_from) == (len(history), None)


def test_a_compaction_after_a_restart_says_what_it_rewrites(world: World) -> None:
    """The prefix that the earlier process had sent counts as sent."""
    history = conversation(6)
    with world.open(policy=Policy()) as session:
        assert not session.view(history).changed
    with world.open(policy=SMALL) as session:
        view = session.view(history + exchange(50, 9_000))
        assert view.changed
        assert view.rewrites_from is not None
        assert view.stable_prefix == view.rewrites_from < len(history)


def test_an_error_of_the_loop_is_not_hidden_by_a_full_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's own refusal is only logged then."""

    def refuse(*_: object) -> None:
        raise OSError(28, "full")

    def loop() -> None:
        with world.open() as session:
            session.view(conversation(1))
            monkeypatch.setattr("compactor.storage.files.sync_data", refuse)
            message = "my own"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="my own"):
        loop()


def test_the_full_disk_alone_is_raised(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else went wrong, the caller learns that the end was not stored."""
    session = world.open()
    session.view(conversation(1))

    def refuse(*_: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr("compactor.storage.files.sync_data", refuse)
    with pytest.raises((StorageError, OSError)), session:
        pass


def test_nothing_is_learnt_after_the_end(world: World) -> None:
    """As `view`, `observe` refuses a closed session."""
    with world.open() as session:
        session.view(conversation(1))
    with pytest.raises(Closed):
        session.observe({"input_tokens": 5})


def test_an_empty_session_name_is_refused(world: World) -> None:
    """An unset variable must not begin a new conversation each time."""
    with pytest.raises(StorageError):
        world.open("")
