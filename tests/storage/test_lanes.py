"""What damage to a lane costs, and that it is found."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import Damaged, Gap, Keys, Kind, Place, Reader, Vault, WrongKey
from compactor.storage.frames import FIRST_FRAME, HEAD_SIZE, Head, find_heads

VALUES = [f"value {n}" for n in range(5)]


@pytest.fixture
def lane(write: Callable[..., None], folder: Path) -> Path:
    write(*VALUES)
    return folder / "000001.lane"


def examine(vault: Vault) -> tuple[list[object], bool]:
    """Read what can be read; tell whether anything was found wrong."""
    values: list[object] = []
    with vault.read("one") as reader:
        wrong = False
        for frame in reader.frames():
            try:
                values.append(reader.value(frame))
                wrong |= not reader.follows(frame)
            except Damaged:
                wrong = True
        return values, wrong or bool(reader.torn or reader.skipped)


def frames_of(vault: Vault) -> list[tuple[int, int]]:
    """Return offset and end of each frame."""
    with vault.read("one") as reader:
        return [(frame.offset, frame.offset + frame.size) for frame in reader.frames()]


def test_a_flipped_bit_is_found_and_costs_at_most_one_record(vault: Vault, lane: Path) -> None:
    """Every byte of the lane, header included."""
    whole = lane.read_bytes()
    for index in range(len(whole)):
        flipped = bytearray(whole)
        flipped[index] ^= 1 << index % 8
        lane.write_bytes(flipped)
        values, wrong = examine(vault)
        assert wrong, index
        assert len(values) >= len(VALUES) - 1, index
        assert [v for v in VALUES if v in values] == values, index


def test_a_torn_tail_costs_the_last_record_only(vault: Vault, lane: Path) -> None:
    """Cut at every byte of the last frame."""
    whole = lane.read_bytes()
    start, end = frames_of(vault)[-1]
    for size in range(start, end):
        lane.write_bytes(whole[:size])
        with vault.read("one") as reader:
            assert [reader.value(frame) for frame in reader.frames()] == VALUES[:-1]
            assert not reader.skipped
            torn = [Gap(1, start, size - start, 0, "torn tail")] if size > start else []
            assert reader.torn == torn


def test_a_lane_torn_in_its_header_is_an_empty_lane(vault: Vault, lane: Path, folder: Path) -> None:
    """The next writer takes the next number; what other lanes hold is read."""
    (folder / "000002.lane").write_bytes(lane.read_bytes()[:100])
    (folder / "000002.lane").chmod(0o600)
    with vault.write("one") as writer:
        assert writer.append([(Kind.OPEN, "next")]) == [Place(3, 1)]
    with vault.read("one") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == [*VALUES, "next"]
        assert reader.torn == [Gap(2, 0, 100, 0, "torn header")]


def test_a_tail_of_zeros_is_torn(vault: Vault, lane: Path) -> None:
    """As some file systems leave it after a power cut."""
    lane.write_bytes(lane.read_bytes() + bytes(3_000_000))
    with vault.read("one") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == VALUES
        assert [gap.size for gap in reader.torn] == [3_000_000]


def test_reading_goes_on_behind_a_damaged_stretch(vault: Vault, lane: Path) -> None:
    """The gap says where it is, how long, and how many records are missing."""
    whole = lane.read_bytes()
    (start, _), (_, end) = frames_of(vault)[1:3]
    lane.write_bytes(whole[:start] + bytes(5_000_000) + whole[end:])
    with vault.read("one") as reader:
        frames = list(reader.frames())
        assert [reader.value(frame) for frame in frames] == [VALUES[0], *VALUES[3:]]
        assert reader.skipped == [Gap(1, start, 5_000_000, 2, "damaged bytes")]
        assert [reader.follows(frame) for frame in frames] == [True, False, True]


def test_a_record_that_was_cut_out_is_missed(vault: Vault, lane: Path) -> None:
    """Its number is missing, and the next record does not follow."""
    whole = lane.read_bytes()
    start, end = frames_of(vault)[2]
    lane.write_bytes(whole[:start] + whole[end:])
    with vault.read("one") as reader:
        frames = list(reader.frames())
        assert reader.skipped == [Gap(1, start, 0, 1, "missing records")]
        assert [reader.follows(frame) for frame in frames] == [True, True, False, True]


def test_records_that_change_places_are_found(vault: Vault, lane: Path) -> None:
    """A swap, and the same record twice."""
    whole = lane.read_bytes()
    (a, b), (_, c) = frames_of(vault)[1:3]
    for changed in (
        whole[:a] + whole[b:c] + whole[a:b] + whole[c:],
        whole[:b] + whole[a:b] + whole[b:],
    ):
        lane.write_bytes(changed)
        values, wrong = examine(vault)
        assert wrong
        assert values == [v for v in VALUES if v in values]


def test_a_changed_kind_or_number_does_not_open(vault: Vault, lane: Path) -> None:
    """Kind and number stand in clear, but with the right checksum they are bound too."""
    whole = lane.read_bytes()
    start, end = frames_of(vault)[-1]
    for kind, seq in ((Kind.SET, 5), (Kind.MESSAGES, 6), (77, 5)):
        head = Head(end - start - HEAD_SIZE, kind, seq).encode()
        lane.write_bytes(whole[:start] + head + whole[start + HEAD_SIZE :])
        values, wrong = examine(vault)
        assert wrong
        assert values == VALUES[:-1]


def test_a_lane_that_was_moved_does_not_open(
    vault: Vault, lane: Path, write: Callable[..., None], keys: Keys, tmp_path: Path
) -> None:
    """Not under another number, in another session, or in another vault."""
    root = vault.root
    write("x")
    write("y", session="two")
    write("z", session="two")
    other = Vault.create(tmp_path / "other", keys)
    with other.write("one") as writer:
        writer.append([(Kind.OPEN, 1)])

    def refuse(reader: Reader) -> None:
        with reader:
            frames = [frame for frame in reader.frames() if frame.place.lane == 1]
            assert frames
            for frame in frames:
                with pytest.raises((Damaged, WrongKey)):
                    reader.value(frame)

    shutil.copy(lane, root / "s/two/000001.lane")
    refuse(vault.read("two"))
    shutil.copy(lane, tmp_path / "other/s/one/000001.lane")
    refuse(other.read("one"))
    shutil.copy(root / "s/one/000002.lane", lane)
    refuse(vault.read("one"))


def test_a_damaged_header_costs_its_lane_and_is_no_wrong_key(vault: Vault, lane: Path) -> None:
    """Both copies must be hit; the records are still counted, and other lanes go on."""
    whole = lane.read_bytes()
    lane.write_bytes(bytes(FIRST_FRAME) + whole[FIRST_FRAME:])
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, "next")])
    with vault.read("one") as reader:
        frames = list(reader.frames())
        assert [gap.why for gap in reader.skipped] == ["damaged header"] * 2
        with pytest.raises(Damaged, match="header"):
            reader.value(frames[0])
        assert reader.value(frames[-1]) == "next"


def test_a_missing_lane_is_missed(vault: Vault, lane: Path, write: Callable[..., None]) -> None:
    """Also one that vanishes while it is read."""
    write("b")
    write("c")
    with vault.read("one") as reader:
        frames = list(reader.frames())
        lane.unlink()
        (lane.parent / "000003.lane").unlink()
        assert [frame.place.lane for frame in reader.frames()] == [2]
        assert [(gap.lane, gap.why) for gap in reader.skipped] == [
            (1, "missing lane"),
            (3, "missing lane"),
        ]
        with pytest.raises(Damaged, match="gone"):
            reader.value(frames[0])
    with vault.read("one") as reader:
        list(reader.frames())
        assert [gap.lane for gap in reader.skipped] == [1]


@pytest.mark.parametrize("zeros", [0, 1, 3, 60, 63, 64, 65, 200])
def test_a_head_is_found_among_zeros(zeros: int) -> None:
    """Runs of them are jumped over, but not what begins with their last bytes."""
    head = Head(300, Kind.SET, 7).encode()
    data = bytes(zeros) + head + bytes(zeros) + head + bytes(zeros)
    assert list(find_heads(data)) == [zeros, 2 * zeros + len(head)]
