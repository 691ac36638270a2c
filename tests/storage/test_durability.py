"""What is synced when, and what happens when the disk says no."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import (
    Keys,
    Kind,
    NoTranscript,
    NotStored,
    Place,
    StorageError,
    Vault,
    Writer,
    files,
)
from compactor.storage.blobs import MAX_PENDING

LARGE = "x" * 50_000


def what_is(fd: int) -> str:
    """Say what an open file is; a blob shows under the temporary name that it was opened by."""
    path = Path(f"/proc/self/fd/{fd}").readlink()
    return "blob" if ".blob" in path.name else path.suffix[1:] or path.name


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs that happen from now on, in order."""
    done: list[str] = []

    def watch(name: str) -> None:
        real = getattr(files, name)

        def watched(fd: int) -> None:
            done.append(f"{name} {what_is(fd)}")
            real(fd)

        monkeypatch.setattr(files, name, watched)

    for name in ("sync_file", "sync_data", "sync_folder"):
        watch(name)
    return done


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int = errno.EIO) -> None:
    """Let a function of `files` fail from now on."""

    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, name, failing)


def test_nothing_is_synced_by_an_append(vault: Vault, syncs: list[str]) -> None:
    """Neither for small records nor for new blobs."""
    with vault.write("one") as writer:
        syncs.clear()
        for n in range(5):
            writer.append([(Kind.MESSAGES, n), (Kind.MESSAGES, f"{n}" * 20_000)])
        assert syncs == []


def test_a_sync_goes_from_blobs_to_their_folder_to_the_lane(vault: Vault, syncs: list[str]) -> None:
    """The lane's own name once; then only what is new."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE), (Kind.MESSAGES, LARGE + "y")])
        syncs.clear()
        writer.sync()
        blobs = ["sync_file blob", "sync_file blob", "sync_folder blobs"]
        assert syncs == [*blobs, "sync_data lane", "sync_folder one"]
        syncs.clear()
        writer.append([(Kind.SET, 1), (Kind.MESSAGES, LARGE)])
        writer.sync()
        assert syncs == ["sync_data lane"]


def test_a_blob_of_an_earlier_process_is_synced_again(
    vault: Vault, write: Callable[..., None], syncs: list[str]
) -> None:
    """Its writer may have died before its own sync."""
    write(LARGE)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE)])
        syncs.clear()
        writer.sync()
        assert syncs[:2] == ["sync_file blob", "sync_folder blobs"]


def test_few_files_wait_for_their_sync(vault: Vault, syncs: list[str]) -> None:
    """Above the limit they are synced early."""
    before = open_files()
    with vault.write("one") as writer:
        syncs.clear()
        for n in range(3 * MAX_PENDING):
            writer.append([(Kind.MESSAGES, f"{n} {LARGE}")])
            assert open_files() <= before + MAX_PENDING + 8
        assert syncs.count("sync_file blob") >= 2 * MAX_PENDING
    assert open_files() == before


@pytest.mark.parametrize("name", ["sync_file", "sync_folder", "sync_data"])
def test_after_a_failed_sync_the_lane_is_given_up(
    vault: Vault, read: Callable[..., list[object]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No second try; the next lane takes what is written again, blobs anew."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "a")])
        writer.sync()
        writer.append([(Kind.MESSAGES, LARGE)])
        with monkeypatch.context() as patch:
            fail(patch, name)
            with pytest.raises(NotStored) as caught:
                writer.sync()
            assert caught.value.errno == errno.EIO
        for attempt in (writer.sync, lambda: writer.append([(Kind.MESSAGES, "b")])):
            with pytest.raises(NotStored) as caught:
                attempt()
            assert "renew" in str(caught.value.hint)
        writer.renew()
        assert writer.append([(Kind.MESSAGES, LARGE)]) == [Place(2, 1)]
        writer.sync()
    assert read() == ["a", LARGE, LARGE]


def test_a_blob_whose_sync_failed_is_written_anew(
    vault: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache may still show bytes that no disk has, so the file is not trusted."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE)])
        (path,) = (folder / "blobs").iterdir()
        before = path.stat().st_ino
        with monkeypatch.context() as patch:
            fail(patch, "sync_file")
            with pytest.raises(NotStored):
                writer.sync()
        writer.renew()
        writer.append([(Kind.MESSAGES, LARGE)])
        assert path.stat().st_ino != before


@pytest.mark.parametrize("value", ["small", LARGE])
def test_a_full_disk_is_not_stored_and_costs_nothing_else(
    vault: Vault, read: Callable[..., list[object]], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A write that ends in the middle of a record; renewing works when there is room again."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "a")])
        with monkeypatch.context() as patch:

            def partly(fd: int, data: bytes) -> None:
                os.write(fd, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "full")

            patch.setattr(files, "write_all", partly)
            with pytest.raises(NotStored) as caught:
                writer.append([(Kind.MESSAGES, value)])
            assert caught.value.errno == errno.ENOSPC
            with pytest.raises(NotStored):
                writer.renew()
        writer.renew()
        writer.append([(Kind.MESSAGES, value)])
        writer.sync()
    assert read() == ["a", value]


def test_short_writes_are_continued(
    vault: Vault, read: Callable[..., list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system call may take a part of what it is given."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:1000]))
        with vault.write("one") as writer:
            writer.append([(Kind.MESSAGES, LARGE), (Kind.MESSAGES, os.urandom(5000).hex())])
    assert read()[0] == LARGE


def go_on(writer: Writer, vault: Vault) -> None:
    """After a vault vanished: sync refuses, renew makes it anew, and all can be written again."""
    writer.append([(Kind.MESSAGES, "lost")])
    with pytest.raises(NotStored, match="removed or replaced"):
        writer.sync()
    writer.renew()
    writer.append([(Kind.OPEN, "anew"), (Kind.MESSAGES, LARGE)])
    writer.sync()
    with vault.read("one") as reader:
        assert [reader.value(frame) for frame in reader.frames()][-2:] == ["anew", LARGE]


@pytest.mark.parametrize("what", [".", "s", "s/one", "s/one/blobs", "s/one/000001.lane"])
def test_a_vault_that_vanishes_under_its_writer_is_noticed(
    vault: Vault, root: Path, what: str
) -> None:
    """As after `git clean`; also if only a part of it goes."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE)])
        writer.sync()
        target = (root / what).resolve()
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        go_on(writer, vault)
        if what != "s/one/blobs":
            assert writer.previous_hash is None


def test_a_vault_that_was_moved_away_is_noticed(vault: Vault, root: Path) -> None:
    """What is written there would not be found."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE)])
        root.rename(root.with_name("away"))
        go_on(writer, vault)


def test_a_vault_that_another_one_replaced_is_left_alone(
    vault: Vault, root: Path, keys: Keys
) -> None:
    """The writer says so; opening the new vault is the caller's choice."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "a")])
        shutil.rmtree(root)
        other = Vault.create(root, keys)
        with pytest.raises(NotStored):
            writer.sync()
        for _ in range(2):
            with pytest.raises(NoTranscript, match="another vault"):
                writer.renew()
        with pytest.raises(NoTranscript, match="another vault"):
            vault.read("one")
    assert other.sessions() == []


def test_a_closed_writer_takes_nothing(vault: Vault) -> None:
    """Closing twice does no harm."""
    writer = vault.write("one")
    writer.close()
    writer.close()
    for attempt in (writer.sync, writer.renew, lambda: writer.append([(Kind.OPEN, 1)])):
        with pytest.raises(StorageError):
            attempt()
