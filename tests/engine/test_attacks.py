"""Hosts that misbehave: bad replies, interrupts anywhere, dictionaries written to in place."""

import shutil
from typing import Any

import pytest
from histories import World, conversation, exchange, human, result_blocks

from compactor import BadMessage
from compactor.index import Index
from compactor.storage import Kind, Vault

MARK = {"type": "ephemeral"}


def handles_read_back(world: World) -> None:
    with world.transcript() as transcript:
        assert transcript.handles()
        for handle in transcript.handles():
            transcript.read(handle)
        assert all(request.whole for request in transcript.requests())


@pytest.mark.parametrize(
    "reply",
    [
        {"usage": {"input_tokens": 3_000}, "content": ["x"]},
        {"usage": {"input_tokens": "many"}},
        {"usage": {"input_tokens": 1, "iterations": [None]}},
        {"input_tokens": None},
    ],
    ids=["content", "text for a number", "no iteration", "no count"],
)
def test_a_reply_that_is_none_is_refused_at_once(world: World, reply: dict[str, Any]) -> None:
    """And leaves no trace: later views and their handles are as if it had not been given."""
    history = conversation(3)
    with world.open() as session:
        session.view(history)
        with pytest.raises(BadMessage):
            session.observe(reply)
        assert session.view(conversation(20)).changed
    handles_read_back(world)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("step", ["_append", "_enter", "_resync"])
def test_the_index_is_interrupted(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, interrupt: type[BaseException]
) -> None:
    """The next view takes the history in anew; nothing that was recorded is lost."""
    history = conversation(14)
    with world.open() as session:
        before = session.view(history).messages
        history[1:1] = [human("<system-reminder>x</system-reminder>")] if step == "_resync" else []
        history += exchange(50, 100)

        def raise_it(*_: object) -> None:
            monkeypatch.undo()
            raise interrupt

        monkeypatch.setattr(Index, step, raise_it)
        if interrupt is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                session.view(history)
        view = session.view(history)
        assert view.degraded is None
        assert view.messages[-2:] == history[-2:]
        if step != "_resync":
            assert view.messages[: len(before)] == before
    handles_read_back(world)


def test_a_result_written_to_in_place_is_not_hidden_unless_it_is_stored(world: World) -> None:
    """Far back, where nobody looks any more, it stays; what a handle names is in the vault."""
    history = conversation(7)
    with world.open() as session:
        assert not session.view(history).changed
        history[2]["content"][0]["content"] += "\nglued on"
        history += conversation(20)[15:]
        view = session.view(history)
        assert view.changed
        assert view.messages[2] == history[2]
    handles_read_back(world)


def test_text_appended_to_the_newest_message_is_recorded(world: World) -> None:
    """It was sent, so it is in the transcript."""
    history = conversation(2)
    history[-1]["content"].append({"type": "text", "text": "first"})
    with world.open() as session:
        session.view(history)
        history[-1]["content"].append({"type": "text", "text": "second thought"})
        history[-1]["content"][0]["content"] += " and more"
        view = session.view(history)
        assert view.messages is history
    with world.transcript() as transcript:
        assert transcript.messages() == history
        assert list(transcript.requests())[-1].messages == history


def test_a_hidden_message_is_emptied_by_its_owner(world: World) -> None:
    """No exception: what is left of it is taken in anew."""
    history = conversation(14)
    history[2]["content"][0]["cache_control"] = MARK
    with world.open() as session:
        session.view(history)
        history[2]["content"] = [{"type": "text", "text": "taken back"}]
        history += exchange(70, 50)
        view = session.view(history)
        assert len(view.messages) == len(history)
    handles_read_back(world)


@pytest.mark.parametrize("end", ["close", "flush"])
def test_the_vault_vanishes_before_the_end(world: World, end: str) -> None:
    """Closing and flushing write everything anew, as a set would have."""
    history = conversation(14)
    session = world.open()
    session.view(history)
    shutil.rmtree(world.root)
    getattr(session, end)()
    with world.transcript() as transcript:
        assert transcript.messages() == history
    handles_read_back(world)
    session.close()


def test_an_integer_that_nobody_can_write_is_refused(world: World) -> None:
    """A typed error, and the session goes on."""
    history = conversation(2)
    odd = exchange(9, 10)
    odd[0]["content"][0]["input"] = {"n": 10**5_000}
    with world.open() as session:
        with pytest.raises(BadMessage):
            session.view([*history, *odd])
        assert session.view(history).messages is history


def test_a_damaged_record_does_not_end_the_list_of_requests(world: World) -> None:
    """Requests that depend on it are not whole; those after the history was written anew are."""
    history = conversation(3)
    with world.open() as session:
        session.view(history)
    with Vault.open(world.root, world.keys).read("one") as reader:
        frame = next(f for f in reader.frames() if f.kind is Kind.MESSAGES)
    lane = next(world.session_folder.glob("*.lane"))
    data = bytearray(lane.read_bytes())
    data[frame.offset + 2] ^= 1
    lane.write_bytes(data)
    assert not any(request.whole for request in world.requests())
    with world.open() as session:
        history += exchange(80, 100)
        session.view(history)
    requests = world.requests()
    assert requests[-1].messages == history
    assert requests[-1].whole
    assert result_blocks(requests[-1].messages)
