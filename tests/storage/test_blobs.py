"""Large content is stored once, bound to its place, and never trusted unread."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.storage import Damaged, Keys, Kind, Vault
from compactor.storage.blobs import FRAME, open_blob, pack, seal_blob, unpack
from compactor.storage.names import b32
from compactor.storage.sealing import SessionKeys

SESSION = SessionKeys.derive(bytes(32), bytes(16), "one")
SIZES = [0, 1, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME - 1, 2 * FRAME, 2 * FRAME + 1]


def blob_files(folder: Path) -> list[Path]:
    return sorted((folder / "blobs").iterdir())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("random", [False, True])
def test_content_of_any_size_comes_back(size: int, *, random: bool) -> None:
    """Around the edges of a frame, compressible or not."""
    content = os.urandom(size) if random else bytes(size)
    assert unpack(pack(content), "x") == content
    name = b32(SESSION.digest(content))
    assert open_blob(SESSION, name, seal_blob(SESSION, name, content)) == content


@given(st.binary(max_size=400), st.integers(0, 10_000), st.binary(min_size=1, max_size=9))
@settings(deadline=None)
def test_a_packed_form_that_was_changed_is_damage_or_means_the_same(
    content: bytes, at: int, junk: bytes
) -> None:
    """The parser behind the seal raises `Damaged` only."""
    packed = pack(content)
    at %= len(packed)
    for changed in (packed[:at], packed[:at] + junk + packed[at + len(junk) :], packed + junk):
        with contextlib.suppress(Damaged):
            assert len(unpack(changed, "x")) <= len(changed) * FRAME


def test_a_flipped_bit_in_a_blob_is_found() -> None:
    """Every byte of a small blob's file."""
    content = b"some content\n" * 3
    name = b32(SESSION.digest(content))
    whole = seal_blob(SESSION, name, content)
    for index in range(len(whole)):
        flipped = bytearray(whole)
        flipped[index] ^= 1 << index % 8
        with pytest.raises(Damaged):
            open_blob(SESSION, name, bytes(flipped))
        with pytest.raises(Damaged):
            open_blob(SESSION, name, whole[:index])


def test_the_same_content_is_stored_once(
    write: Callable[..., None], read: Callable[..., list[object]], folder: Path
) -> None:
    """In one record, in two records, and after the session was opened again."""
    text = "x" * 50_000
    write([text, {"again": text}], text)
    (before,) = blob_files(folder)
    stat = before.stat()
    write(text)
    assert [path.stat().st_ino for path in blob_files(folder)] == [stat.st_ino]
    assert read() == [[text, {"again": text}], text, text]


def test_a_name_says_nothing_without_the_key(
    write: Callable[..., None], root: Path, folder: Path
) -> None:
    """The same content has another name in another session."""
    write("x" * 50_000)
    write("x" * 50_000, session="two")
    assert blob_files(folder)[0].name != blob_files(root / "s/two")[0].name


def test_swapped_and_moved_blobs_do_not_open(
    vault: Vault, write: Callable[..., None], root: Path, folder: Path
) -> None:
    """Neither under another name nor in another session."""
    write("x" * 50_000, "y" * 50_000)
    write("x" * 50_000, session="two")
    a, b = blob_files(folder)
    (c,) = blob_files(root / "s/two")
    first, second, third = a.read_bytes(), b.read_bytes(), c.read_bytes()
    for path, data in ((a, second), (b, first), (a, third), (b, third)):
        a.write_bytes(first)
        b.write_bytes(second)
        path.write_bytes(data)
        with vault.read("one") as reader:
            results = []
            for frame in reader.frames():
                try:
                    results.append(reader.value(frame))
                except Damaged:
                    results.append(None)
            assert results.count(None) == 1


def test_a_missing_blob_is_damage(vault: Vault, write: Callable[..., None], folder: Path) -> None:
    """Only its record is lost."""
    write("x" * 50_000, "small")
    blob_files(folder)[0].unlink()
    with vault.read("one") as reader:
        large, small = reader.frames()
        with pytest.raises(Damaged, match="missing"):
            reader.value(large)
        assert reader.value(small) == "small"


@pytest.mark.parametrize("size", [0, 63, 64, 200])
def test_torn_bytes_under_a_final_name_are_replaced(
    write: Callable[..., None], read: Callable[..., list[object]], folder: Path, size: int
) -> None:
    """A power cut may leave them; the next writer of that content heals them."""
    write("x" * 50_000)
    (path,) = blob_files(folder)
    os.truncate(path, size)
    write("x" * 50_000)
    assert read() == ["x" * 50_000] * 2
    assert blob_files(folder) == [path]


def test_a_killed_writer_leaves_no_temporary_file_for_long(
    write: Callable[..., None], read: Callable[..., list[object]], folder: Path
) -> None:
    """The next writer sweeps them; one that is the last step of a publish does no harm."""
    write("x" * 50_000)
    (path,) = blob_files(folder)
    os.link(path, path.with_name(path.name + ".00.tmp"))
    path.with_name("other.blob.00.tmp").write_bytes(b"torn")
    assert read() == ["x" * 50_000]
    write("y")
    assert blob_files(folder) == [path]


def test_a_blob_of_another_vault_does_not_open(
    vault: Vault, keys: Keys, write: Callable[..., None], tmp_path: Path, folder: Path
) -> None:
    """Nor does a whole session folder that was copied from there."""
    write("x" * 50_000)
    other = Vault.create(tmp_path / "other", keys)
    with other.write("one") as writer:
        writer.append([(Kind.MESSAGES, "x" * 50_000)])
    mine, theirs = blob_files(folder)[0], blob_files(tmp_path / "other/s/one")[0]
    shutil.copy(theirs, mine)
    with vault.read("one") as reader, pytest.raises(Damaged):
        [reader.value(frame) for frame in reader.frames()]
