"""A flip of every byte and a cut at every length: found, or without effect; never "empty"."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import (
    Damaged,
    Gap,
    Keys,
    Kind,
    MissingKey,
    Place,
    StorageError,
    Vault,
    WrongKey,
)
from compactor.storage.frames import FIRST_FRAME

LARGE = "some content of a blob\n" * 1_000
VALUES: list[object] = ["a", LARGE, {"c": [1, 2]}, "d"]


@pytest.fixture
def folder(write: Callable[..., None], folder: Path) -> Path:
    """The folder of a session with one lane and one blob."""
    write(*VALUES)
    return folder


@pytest.fixture
def lane(folder: Path) -> Path:
    return folder / "000001.lane"


@pytest.fixture
def blob(folder: Path) -> Path:
    (path,) = (folder / "blobs").iterdir()
    return path


def flips(path: Path) -> list[bytes]:
    """Return a file's bytes once for each byte, with one bit of that one flipped."""
    whole = path.read_bytes()
    return [
        whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :]
        for index in range(len(whole))
    ]


def cuts(path: Path) -> list[bytes]:
    """Return what is left of a file when it is cut at each length."""
    whole = path.read_bytes()
    return [whole[:size] for size in range(len(whole))]


def readable(vault: Vault) -> list[object]:
    """Read all that opens; what does not must be `Damaged`."""
    values: list[object] = []
    with vault.read("one") as reader:
        for frame in reader.frames():
            try:
                values.append(reader.value(frame))
            except Damaged:
                values.append(None)
    return values


def ends(vault: Vault) -> list[int]:
    """Return the offsets at which a record of the first lane ends."""
    with vault.read("one") as reader:
        return [frame.offset + frame.size for frame in reader.frames()]


def test_a_lane_cut_at_any_length_gives_the_records_before_the_cut(
    vault: Vault, lane: Path
) -> None:
    """What was torn is named; a cut between two records looks as if no more had been written."""
    whole_records = ends(vault)
    for left in cuts(lane):
        lane.write_bytes(left)
        count = sum(end <= len(left) for end in whole_records)
        with vault.read("one") as reader:
            assert [reader.value(frame) for frame in reader.frames()] == VALUES[:count]
            assert not reader.skipped
            clean = len(left) in {FIRST_FRAME, *whole_records}
            # An empty file is what a writer killed before its first write leaves.
            assert bool(reader.torn) == (not clean and len(left) > 0), len(left)


def test_a_flip_behind_the_header_costs_its_record_and_no_other(vault: Vault, lane: Path) -> None:
    """Which one is known: the one that the byte belongs to."""
    whole_records = ends(vault)
    for index, flipped in enumerate(flips(lane)):
        lane.write_bytes(flipped)
        hit = sum(end <= index for end in whole_records)
        kept = [value for value in readable(vault) if value is not None]
        assert kept == (VALUES if index < FIRST_FRAME else VALUES[:hit] + VALUES[hit + 1 :]), index


def test_a_blob_flipped_anywhere_costs_its_record_and_no_other(vault: Vault, blob: Path) -> None:
    """Through the reader; the next writer of that content puts it right."""
    for bad in flips(blob) + cuts(blob):
        blob.write_bytes(bad)
        assert readable(vault) == [VALUES[0], None, *VALUES[2:]]
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, LARGE)])
    assert readable(vault) == [*VALUES, LARGE]


def test_a_slot_flipped_or_cut_anywhere_is_an_error_and_stays_as_it_is(
    vault: Vault, keys: Keys, folder: Path
) -> None:
    """For reading and for writing; no new key takes its place, and no lane is begun."""
    (slot,) = keys.state.rglob("*.slot")
    lanes = {path.name: path.read_bytes() for path in folder.glob("*.lane")}
    for bad in [*flips(slot), *cuts(slot), slot.read_bytes() + b"\0"]:
        slot.write_bytes(bad)
        for door in (vault.read, vault.write):
            with pytest.raises((Damaged, WrongKey)):
                door("one")
        assert slot.read_bytes() == bad
    assert {path.name: path.read_bytes() for path in folder.glob("*.lane")} == lanes


def test_a_store_file_flipped_or_cut_anywhere_is_never_an_empty_vault(
    root: Path, keys: Keys, folder: Path
) -> None:
    """It is found, or means the same; another id finds no key, and a session is not begun anew."""
    store = root / "STORE.json"
    found = 0
    bad = flips(store) + cuts(store)
    for text in bad:
        store.write_bytes(text)
        try:
            values = readable(Vault.open(root, keys))
        except (Damaged, MissingKey):
            found += 1
            with pytest.raises((Damaged, MissingKey)):
                Vault.create(root, keys).write("one")
        else:
            assert values == VALUES
        assert store.read_bytes() == text
    assert found > 0.8 * len(bad)
    assert [path.name for path in folder.glob("*.lane")] == ["000001.lane"]


@pytest.mark.parametrize("size", [1, 16, 300, 5_000])
def test_nuls_put_in_anywhere_cost_one_record_at_most(vault: Vault, lane: Path, size: int) -> None:
    """C66: later records load, and the gap is counted."""
    whole = lane.read_bytes()
    dice = random.Random(size)
    for at in sorted(dice.sample(range(FIRST_FRAME, len(whole)), 60)):
        lane.write_bytes(whole[:at] + bytes(size) + whole[at:])
        kept = [value for value in readable(vault) if value is not None]
        assert len(kept) >= len(VALUES) - 1
        assert kept == [value for value in VALUES if value in kept]
        with vault.read("one") as reader:
            list(reader.frames())
            assert reader.skipped or reader.torn


def test_random_damage_never_gives_other_content(vault: Vault, lane: Path, blob: Path) -> None:
    """Stretches zeroed, filled, cut out, doubled, in 400 lanes and blobs."""
    dice = random.Random(7)
    whole = {path: path.read_bytes() for path in (lane, blob)}
    for _ in range(400):
        for path, data in whole.items():
            at = dice.randrange(len(data))
            end = min(at + dice.choice([1, 7, 64, 900]), len(data))
            put = dice.choice([bytes(end - at), dice.randbytes(end - at), b"", data[at:end] * 2])
            path.write_bytes(data[:at] + put + data[end:] if dice.random() < 0.7 else data)
        try:
            kept = [value for value in readable(vault) if value is not None]
        except WrongKey:
            continue
        assert kept == [value for value in VALUES if value in kept]


@pytest.mark.parametrize("what", ["lane", "blob"])
def test_an_empty_file_costs_what_stood_in_it(
    vault: Vault, write: Callable[..., None], lane: Path, blob: Path, what: str
) -> None:
    """C65: the session opens and goes on, and what was in the file is missing, not empty."""
    write("next")
    os.truncate(lane if what == "lane" else blob, 0)
    kept = ["next"] if what == "lane" else [VALUES[0], None, *VALUES[2:], "next"]
    assert readable(vault) == kept
    with vault.write("one") as writer:
        assert writer.append([(Kind.OPEN, "goes on")]) == [Place(3, 1)]
    assert readable(vault) == [*kept, "goes on"]


def test_half_a_record_is_passed_over_and_what_follows_is_read(
    vault: Vault, write: Callable[..., None], lane: Path
) -> None:
    """C64, C68, C69: a torn tail stays where it is, and the record written again is the one."""
    start = ends(vault)[-2]
    whole = lane.read_bytes()
    lane.write_bytes(whole[: start + 40])
    write(VALUES[-1], "next")
    assert readable(vault) == [*VALUES, "next"]
    with vault.read("one") as reader:
        list(reader.frames())
        assert reader.torn == [Gap(1, start, 40, 0, "torn tail")]
        assert not reader.skipped


def test_damage_in_the_middle_is_loud(vault: Vault, lane: Path) -> None:
    """C69: it is no torn tail."""
    start, end = ends(vault)[0], ends(vault)[1]
    whole = lane.read_bytes()
    lane.write_bytes(whole[:start] + bytes(end - start) + whole[end:])
    with vault.read("one") as reader:
        list(reader.frames())
        assert not reader.torn
        assert reader.skipped == [Gap(1, start, end - start, 1, "damaged bytes")]


def test_opening_repairs_nothing_in_place(
    vault: Vault, write: Callable[..., None], lane: Path, folder: Path
) -> None:
    """C70: what stands in a lane is never changed, however often it is read and resumed."""
    lane.write_bytes(lane.read_bytes()[:-9])
    seen: dict[str, bytes] = {}
    for number in range(3):
        write(number)
        for path in sorted(folder.glob("*.lane")):
            assert seen.setdefault(path.name, path.read_bytes()) == path.read_bytes()
    assert readable(vault) == [*VALUES[:-1], 0, 1, 2]


def test_one_damaged_session_does_not_block_the_others(
    vault: Vault, write: Callable[..., None], keys: Keys
) -> None:
    """F68: neither a lost key nor a damaged lane."""
    write("here")
    write("there", session="two")
    next(path for path in keys.state.rglob("one.slot")).unlink()
    with pytest.raises(MissingKey):
        vault.read("one")
    with vault.read("two") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == ["there"]
    assert vault.sessions() == ["one", "two"]


def test_a_wrong_key_changes_no_byte(vault: Vault, keys: Keys, root: Path, folder: Path) -> None:
    """F68: a typed error for every door, and the disk is as it was."""
    assert folder.is_dir()
    before = {path: path.read_bytes() for path in root.parent.parent.rglob("*") if path.is_file()}
    other = Vault.open(root, Keys(os.urandom(32), keys.state))
    for door in (other.read, other.write):
        with pytest.raises(WrongKey):
            door("one")
    after = {path: path.read_bytes() for path in root.parent.parent.rglob("*") if path.is_file()}
    assert after == before
    assert vault.sessions() == ["one"]


def test_blobs_that_are_gone_as_a_folder_are_damage(vault: Vault, blob: Path) -> None:
    """As each missing blob is; the records without one are read."""
    blob.unlink()
    blob.parent.rmdir()
    assert readable(vault) == [VALUES[0], None, *VALUES[2:]]


def test_nothing_raises_without_a_type_where_parts_are_gone(
    vault: Vault, root: Path, keys: Keys, blob: Path, lane: Path
) -> None:
    """Whichever file or folder goes while a reader is open, and before it is opened."""
    for path in (blob, lane, keys.state / "slots"):
        aside = root.parent / "aside"
        with vault.read("one") as reader:
            frames = list(reader.frames())
            path.rename(aside)
            for frame in frames:
                with contextlib.suppress(Damaged):
                    reader.value(frame)
        try:
            with vault.read("one") as reader:
                for frame in reader.frames():
                    reader.value(frame)
        except StorageError:
            pass
        aside.rename(path)
    assert readable(vault) == VALUES
