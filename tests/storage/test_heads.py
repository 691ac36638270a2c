"""The newest known head: what is kept, when, and what it must never do."""

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from compactor.storage import Damaged, Keys, Kind, Vault, files
from compactor.storage.frames import HEAD_SIZE, Head, digest
from compactor.storage.heads import Heads, KnownHead
from compactor.storage.names import unb32


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut could tell; a failing sync is injected above this, in `files`."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


@pytest.fixture
def heads(vault: Vault, keys: Keys) -> Heads:
    return Heads(keys.state, unb32(vault.id))


def test_a_sync_keeps_the_last_record_that_is_durable(
    vault: Vault, heads: Heads, folder: Path
) -> None:
    """Not one that was appended since; nothing before the first sync."""
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, 1)])
        assert heads.load("one") == []
        writer.append([(Kind.MESSAGES, "x" * 50_000)])
        writer.sync()
        (head,) = heads.load("one")
        writer.append([(Kind.MESSAGES, 3)])
        assert heads.load("one") == [head]
    assert heads.load("one") == [head]
    lane = (folder / "000001.lane").read_bytes()
    assert (head.store, head.session, head.lane, head.seq, head.lanes) == (vault.id, "one", 1, 2, 1)
    assert unb32(head.lane_id) == lane[32:48]
    first = Head.parse(lane, 128)
    assert first
    assert digest(lane[128 + first.size : head.size]).hex() == head.digest
    third = Head.parse(lane, head.size)
    assert third
    assert (third.seq, head.size + HEAD_SIZE + third.length) == (3, len(lane))


def test_a_kept_head_is_private_and_replaced_in_one_step(vault: Vault, heads: Heads) -> None:
    """0600 in folders of 0700; nothing else is left there; synced only by `close`."""
    with vault.write("one") as writer:
        for n in range(3):
            writer.append([(Kind.MESSAGES, n)])
            writer.sync()
    path = heads.path("one")
    assert [each.name for each in path.parent.iterdir()] == ["one.head"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert json.loads(path.read_text())["format"] == 1
    assert heads.sessions() == ["one"]


def test_syncing_costs_no_sync_of_the_head(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at the end, of the file and its folder."""
    names: list[str] = []
    sync = files.sync_file

    def watched(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        sync(fd)

    monkeypatch.setattr(files, "sync_file", watched)
    monkeypatch.setattr(files, "sync_folder", watched)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, 1)])
        names.clear()
        writer.sync()
        assert names == ["one"]  # the session's folder, for the lane's name
        names.clear()
    assert [name.split(".")[:2] for name in names] == [["one", "head"], [vault.id]]


def test_a_failed_sync_keeps_the_head_before_it(
    vault: Vault, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head never points at what may not be on the disk."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, 1)])
        writer.sync()
        before = heads.load("one")
        writer.append([(Kind.MESSAGES, 2)])
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", _refuse)
            with pytest.raises(OSError, match="not stored"):
                writer.sync()
        assert heads.load("one") == before
        writer.renew()
        writer.append([(Kind.MESSAGES, 2)])
        writer.sync()
        (after,) = heads.load("one")
        assert (after.lane, after.seq, after.lanes) == (2, 1, 2)


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "no")


def test_a_head_that_cannot_be_kept_fails_nothing(
    vault: Vault, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full state folder, a file in the folder's place, a file that holds no head."""
    with vault.write("one") as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", _refuse)
            writer.append([(Kind.MESSAGES, 1)])
            writer.sync()
        assert heads.load("one") == []
    heads.path("one").write_text("no head")
    with pytest.raises(Damaged, match="does not hold heads"):
        heads.load("one")
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, 1)])
        writer.sync()
    assert [head.lane for head in heads.load("one")] == [2]
    shutil.rmtree(heads.path("one").parent)
    heads.path("one").parent.write_text("")
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, 1)])
        writer.sync()


def test_a_head_that_the_lanes_contradict_is_not_forgotten(
    vault: Vault, heads: Heads, root: Path, folder: Path
) -> None:
    """A writer that goes on in a vault that was rolled back does not wipe out the proof."""
    _write_lane(vault)
    old = root.with_name("old")
    shutil.copytree(root, old)
    _write_lane(vault)
    (seen,) = heads.load("one")
    shutil.rmtree(root)
    old.rename(root)
    _write_lane(vault)
    newest, displaced = heads.load("one")
    assert (displaced, newest.lane) == (seen, 2)
    assert newest.lane_id != seen.lane_id
    _write_lane(vault)
    assert heads.load("one")[1:] == [seen]
    assert len(list(folder.glob("*.lane"))) == 3


def _write_lane(vault: Vault) -> None:
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, {}), (Kind.CLOSE, {})])
        writer.sync()


def test_a_head_is_one_line_that_reads_back(vault: Vault, heads: Heads) -> None:
    """To be held elsewhere: printable, without content."""
    _write_lane(vault)
    (head,) = heads.load("one")
    line = head.line()
    assert KnownHead.parse(line + "\n") == head
    assert line.isascii()
    assert line.isprintable()
    assert len(line.split()) == 11


@pytest.mark.parametrize(
    "change",
    [
        {"store": "a"},
        {"session": "../x"},
        {"lane": 0},
        {"lane_id": "A" * 26},
        {"digest": "00"},
        {"seq": "1"},
        {"extra": 1},
        {"store_file": "zz" * 32},
        {"time": True},
    ],
)
def test_a_head_is_read_strictly(vault: Vault, heads: Heads, change: dict[str, object]) -> None:
    """What this program does not write it does not take."""
    _write_lane(vault)
    (head,) = heads.load("one")
    values = dataclasses.asdict(head)
    assert KnownHead.decode(values) == head
    with pytest.raises(ValueError, match=r"."):
        KnownHead.decode({**values, **change})


@pytest.mark.parametrize("line", ["", "x", "compactor-head-1", "compactor-head-1 " + "1 " * 10])
def test_a_line_that_is_no_head_is_refused(line: str) -> None:
    """Another title, too few words, words that are none of its own."""
    with pytest.raises(ValueError, match=r"."):
        KnownHead.parse(line)
