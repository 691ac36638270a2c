"""A workspace whose keys are gone: a fresh container, a deleted state folder."""

import shutil

import pytest
from histories import World, conversation

from compactor import Compactor, Keys, Transcript
from compactor.storage import Kind, MissingKey, WrongKey


def test_a_session_whose_key_is_gone_goes_on_under_the_next_number(world: World) -> None:
    """The old one is left alone, the first view says so, and the new one is compacted as ever."""
    history = conversation(12)
    with world.open() as session:
        session.view(history)
    before = {file: file.read_bytes() for file in world.session_folder.rglob("*.lane")}
    shutil.rmtree(world.keys.state)
    with world.open() as session:
        first, second = session.view(history), session.view(history)
        assert session.session == "one.2"
        assert first.changed
        assert "one.2" in (first.degraded or "")
        assert second.degraded is None
        handle = session.handles()[0]
        original = session.read(handle)
    assert {file: file.read_bytes() for file in before} == before
    with pytest.raises(MissingKey), world.transcript():
        pass
    with world.transcript("one.2") as transcript:
        assert transcript.read(handle) == original
    assert world.records(Kind.OPEN, "one.2")[0]["continues"] == "one"


def test_the_successor_is_found_again(world: World) -> None:
    """The next start goes on in it, and a second loss makes the next number."""
    history = conversation(3)
    with world.open() as session:
        session.view(history)
    for number in (2, 3):
        shutil.rmtree(world.keys.state)
        for _ in range(2):
            with world.open() as session:
                session.view(history)
                assert session.session == f"one.{number}"


def test_a_lost_host_key_is_not_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one would open none of the wrapped keys, and hide that the old one is missing."""
    state = world.folder / "own-state"
    for name in ("COMPACTOR_KEY", "COMPACTOR_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPACTOR_STATE", str(state))
    with Compactor.open(world.folder, "own") as session:
        session.view(conversation(1))
    saved = (state / "host.key").read_bytes()
    (state / "host.key").unlink()
    for open_it in (Compactor.open, Transcript.open):
        with pytest.raises(MissingKey):
            open_it(world.folder, "own")
        assert not (state / "host.key").exists()
    (state / "host.key").touch(0o600)
    (state / "host.key").write_bytes(saved)
    with Transcript.open(world.folder, "own") as transcript:
        assert transcript.messages() == conversation(1)


def test_a_copy_of_the_state_folder_is_the_backup(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What README says to back up is what opens the transcripts again."""
    monkeypatch.setenv("COMPACTOR_STATE", str(world.folder / "own-state"))
    for name in ("COMPACTOR_KEY", "COMPACTOR_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with Compactor.open(world.folder, "own") as session:
        session.view(conversation(1))
    shutil.copytree(world.folder / "own-state", world.folder / "backup")
    shutil.rmtree(world.folder / "own-state")
    with pytest.raises(MissingKey):
        Transcript.open(world.folder, "own")
    assert not (world.folder / "own-state").exists()
    monkeypatch.setenv("COMPACTOR_STATE", str(world.folder / "backup"))
    with Transcript.open(world.folder, "own") as transcript:
        assert transcript.messages() == conversation(1)


def test_another_host_key_is_an_error_and_no_new_session(world: World) -> None:
    """The key can be put right; a successor would hide the mistake."""
    with world.open() as session:
        session.view(conversation(3))
    with pytest.raises(WrongKey):
        Compactor.open(world.folder, "one", keys=Keys(bytes(32), world.keys.state))
    assert [path.name for path in (world.root / "s").iterdir()] == ["one"]
