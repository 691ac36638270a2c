"""Sessions are written, resumed and read back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import (
    BadName,
    Damaged,
    Keys,
    Kind,
    NotJson,
    NoTranscript,
    Place,
    Vault,
)


def test_a_new_vault_has_an_id_and_hides_from_git(root: Path, vault: Vault, keys: Keys) -> None:
    """STORE.json names the format and the id; opening again finds the same id."""
    store = json.loads((root / "STORE.json").read_text())
    assert (store["format"], store["store_id"]) == (1, vault.id)
    assert (root / ".gitignore").read_text() == "*\n"
    assert Vault.open(root, keys).id == Vault.create(root, keys).id == vault.id
    assert vault.sessions() == []


def test_there_is_nothing_to_open_where_no_vault_is(tmp_path: Path, keys: Keys) -> None:
    """A missing folder and an empty one are no vault; a missing session is none either."""
    with pytest.raises(NoTranscript):
        Vault.open(tmp_path / "none", keys)
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(NoTranscript):
        Vault.open(tmp_path / "empty", keys)
    assert Vault.create(tmp_path / "empty", keys).sessions() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format":2}', '{"format":1,"store_id":"AAAA"}'])
def test_a_damaged_or_missing_store_file_is_never_an_empty_vault(
    root: Path, keys: Keys, write: Callable[..., None], text: str
) -> None:
    """Neither `open` nor `create` goes on."""
    write("x")
    for prepare in ((root / "STORE.json").unlink, lambda: (root / "STORE.json").write_text(text)):
        (root / "STORE.json").chmod(0o600) if (root / "STORE.json").exists() else None
        prepare()
        if (root / "STORE.json").exists():
            (root / "STORE.json").chmod(0o600)
        for enter in (Vault.open, Vault.create):
            with pytest.raises(Damaged):
                enter(root, keys)


def test_records_come_back_in_order_with_kind_and_place(vault: Vault) -> None:
    """One append of several records, then another; places count from 1."""
    with vault.write("one") as writer:
        assert not writer.resumed
        assert writer.previous_hash is None
        places = writer.append([(Kind.OPEN, {"a": 1}), (Kind.MESSAGES, ["b"])])
        places += writer.append([(Kind.CLOSE, None)])
        assert writer.append([]) == []
    assert places == [Place(1, 1), Place(1, 2), Place(1, 3)]
    with vault.read("one") as reader:
        frames = list(reader.frames())
        assert [frame.place for frame in frames] == places
        assert [frame.kind for frame in frames] == [Kind.OPEN, Kind.MESSAGES, Kind.CLOSE]
        assert [reader.value(frame) for frame in frames] == [{"a": 1}, ["b"], None]
        assert all(reader.follows(frame) for frame in frames)
        assert not reader.torn
        assert not reader.skipped
    assert vault.sessions() == ["one"]
    assert vault.exists("one")
    assert not vault.exists("two")


def test_a_resumed_session_goes_on_in_the_next_lane(
    vault: Vault, write: Callable[..., None], read: Callable[..., list[object]]
) -> None:
    """The writer knows that it resumes, and the last hash of the lane before."""
    write("a", "b")
    with vault.write("one") as writer:
        assert writer.resumed
        assert writer.previous_hash
        assert len(writer.previous_hash) == 32
        assert writer.append([(Kind.SET, "c")]) == [Place(2, 1)]
    assert read() == ["a", "b", "c"]


def test_a_writer_that_wrote_nothing_leaves_no_lane(vault: Vault, folder: Path) -> None:
    """The session does not exist then, and its lane number is free."""
    vault.write("one").close()
    assert not list(folder.glob("*.lane"))
    assert not vault.exists("one")
    with pytest.raises(NoTranscript):
        vault.read("one")
    with vault.write("one") as writer:
        assert not writer.resumed
        assert writer.append([(Kind.OPEN, {})]) == [Place(1, 1)]


def test_a_reader_beside_the_writer_sees_what_is_appended(vault: Vault) -> None:
    """`frames(after)` gives what is new, across lanes; the records need no sync for that."""
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, 0)])
        with vault.read("one") as reader:
            (first,) = reader.frames()
            assert list(reader.frames(after=first.place)) == []
            writer.append([(Kind.MESSAGES, n) for n in (1, 2)])
            writer.renew()
            writer.append([(Kind.SET, 3)])
            new = list(reader.frames(after=first.place))
            assert [frame.place for frame in new] == [Place(1, 2), Place(1, 3), Place(2, 1)]
            assert [reader.value(frame) for frame in new] == [1, 2, 3]
            assert list(reader.frames(after=Place(2, 1))) == []
            assert len(list(reader.frames())) == 4


def test_a_value_that_is_not_json_leaves_the_writer_at_work(
    vault: Vault, read: Callable[..., list[object]]
) -> None:
    """None of the records of that call is written, and the next call is."""
    with vault.write("one") as writer:
        with pytest.raises(NotJson):
            writer.append([(Kind.MESSAGES, "good"), (Kind.MESSAGES, b"bad")])
        writer.append([(Kind.MESSAGES, "next")])
    assert read() == ["next"]


def test_large_content_comes_back(
    write: Callable[..., None], read: Callable[..., list[object]], folder: Path
) -> None:
    """Ten megabytes in one string are one blob."""
    text = "".join(f"line {n} of a long log\n" for n in range(400_000))
    assert len(text) > 10_000_000
    write({"content": text})
    assert read() == [{"content": text}]
    assert len(list((folder / "blobs").iterdir())) == 1


def test_names_are_checked_at_every_door(vault: Vault) -> None:
    """No session name reaches the disk unchecked."""
    for door in (vault.read, vault.write, vault.exists):
        with pytest.raises(BadName):
            door("../x")
