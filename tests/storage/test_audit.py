"""What an audit says of damage that was really done."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.storage import (
    Damaged,
    Keys,
    Kind,
    NoTranscript,
    StorageError,
    Vault,
)
from compactor.storage.findings import Audit, Finding, Verdict, unopened
from compactor.storage.frames import FIRST_FRAME, HEADER_SIZE
from compactor.storage.heads import Heads, KnownHead
from compactor.storage.names import unb32
from compactor.storage.records import encode

HOST_KEY = bytes(range(32))
LARGE = "x" * 20_000
RECORDS: list[tuple[Kind, Any]] = [
    (Kind.OPEN, {"n": 1}),
    (Kind.MESSAGES, ["small", LARGE]),
    (Kind.MESSAGES, {"n": 3}),
    (Kind.REQUEST, {"n": 4}),
    (Kind.CLOSE, {}),
]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut could tell."""

    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(HOST_KEY, tmp_path / "state")


@pytest.fixture
def lane(vault: Vault, folder: Path) -> Path:
    """One closed lane of five records and a blob."""
    write(vault, RECORDS)
    return folder / "000001.lane"


@pytest.fixture
def kept(vault: Vault, keys: Keys) -> Callable[[], list[KnownHead]]:
    """The heads that the state folder holds."""
    return lambda: Heads(keys.state, unb32(vault.id)).load("one")


def write(vault: Vault, records: Sequence[tuple[Kind, Any]], session: str = "one") -> None:
    with vault.write(session) as writer:
        writer.append(records)
        writer.sync()


def audit(vault: Vault, heads: Sequence[KnownHead] = (), session: str = "one") -> Audit:
    try:
        with vault.read(session) as reader:
            return reader.audit(heads)
    except StorageError as error:
        return unopened(session, error, heads)


def said(found: Audit) -> list[tuple[str, str, int | None, int | None, int | None]]:
    """What was found: the verdict, the words, the lane, the first and the last record."""
    return [
        (each.verdict.value, each.what, each.lane, each.first, each.last) for each in found.findings
    ]


def frames_of(vault: Vault, lane: int = 1) -> list[tuple[int, int]]:
    """Offset and end of each frame."""
    with vault.read("one") as reader:
        return [
            (frame.offset, frame.offset + frame.size)
            for frame in reader.frames()
            if frame.place.lane == lane
        ]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_closed_session_is_whole(
    vault: Vault, lane: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """Everything is counted; the head found is the head that was kept."""
    write(vault, [(Kind.OPEN, {"n": 2}), (Kind.CLOSE, {})])
    found = audit(vault, kept())
    assert found.verdict is Verdict.WHOLE
    assert found.findings == ()
    assert (len(found.lanes), found.records, found.requests, found.blobs) == (2, 7, 1, 1)
    assert [(one.number, one.records, one.closed) for one in found.lanes] == [
        (1, 5, True),
        (2, 2, True),
    ]
    assert found.lanes[1].first == (Kind.OPEN, {"n": 2})
    assert found.read == sum(path.stat().st_size for path in lane.parent.glob("*.lane")) + 20_000
    (head,) = kept()
    assert found.head
    assert replace(found.head, time=0) == replace(head, time=0)


def test_progress_reaches_the_size_of_the_lanes(vault: Vault, lane: Path) -> None:
    """And never goes back."""
    write(vault, [(Kind.CLOSE, {})])
    steps: list[tuple[int, int]] = []
    with vault.read("one") as reader:
        reader.audit(progress=lambda done, whole: steps.append((done, whole)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] == sum(p.stat().st_size for p in lane.parent.glob("*.lane"))


def test_every_flipped_byte_is_found(
    vault: Vault, root: Path, folder: Path, kept: Callable[[], list[KnownHead]], keys: Keys
) -> None:
    """Of lane, blob and STORE.json; it is never whole and nothing is raised.

    Lane and blob without a head; a date in STORE.json is known to the head alone.
    """
    write(vault, [RECORDS[1], RECORDS[-1]])
    heads = kept()
    (blob,) = (folder / "blobs").iterdir()
    for path in (folder / "000001.lane", blob):
        for offset in range(path.stat().st_size):
            flip(path, offset)
            assert audit(vault).verdict is Verdict.DAMAGED, (path.name, offset)
            flip(path, offset)
    path = root / "STORE.json"
    for offset in range(path.stat().st_size):
        flip(path, offset)
        with contextlib.suppress(Damaged):
            found = audit(Vault.open(root, keys), heads).verdict
            assert found in {Verdict.DAMAGED, Verdict.MISSING_KEY}, offset
        flip(path, offset)
    assert audit(vault, heads).verdict is Verdict.WHOLE


def test_a_flipped_record_is_named(vault: Vault, lane: Path) -> None:
    """Lane, number and bytes; the others open, and the next one is not blamed."""
    start, end = frames_of(vault)[1]
    flip(lane, start + 30)
    found = audit(vault)
    (finding,) = found.findings
    assert finding == Finding(
        verdict=Verdict.DAMAGED,
        what="does not open",
        lane=1,
        first=2,
        last=2,
        offset=start,
        size=end - start,
    )
    assert found.records == 4


def test_damaged_records_in_a_row_are_one_finding(vault: Vault, lane: Path) -> None:
    """Otherwise a long damage would be a long report."""
    for start, _ in frames_of(vault)[1:4]:
        flip(lane, start + 30)
    assert said(audit(vault)) == [("damaged", "does not open", 1, 2, 4)]


def test_a_record_that_was_cut_out_is_missed(vault: Vault, lane: Path) -> None:
    """By its number."""
    start, end = frames_of(vault)[2]
    whole = lane.read_bytes()
    lane.write_bytes(whole[:start] + whole[end:])
    assert said(audit(vault)) == [("damaged", "missing records", 1, 3, 3)]


def test_one_damaged_copy_of_a_header_costs_nothing_and_is_damage(vault: Vault, lane: Path) -> None:
    """The bytes are not what was written, but every record opens."""
    for offset in (20, HEADER_SIZE + 20):
        flip(lane, offset)
        found = audit(vault)
        assert found.verdict is Verdict.DAMAGED
        assert "nothing is lost" in found.findings[0].what
        assert found.records == 5
        flip(lane, offset)


def test_both_copies_damaged_cost_the_lane(vault: Vault, lane: Path) -> None:
    """It is no wrong key."""
    flip(lane, 20)
    flip(lane, HEADER_SIZE + 20)
    found = audit(vault)
    assert said(found) == [("damaged", "lane 1 has a damaged header", 1, None, None)]
    assert found.records == 0


def test_a_lane_without_its_end_is_an_open_tail(vault: Vault, lane: Path) -> None:
    """Cut at a frame's border or inside a frame: as a crashed writer leaves it."""
    start, _ = frames_of(vault)[-1]
    whole = lane.read_bytes()
    lane.write_bytes(whole[:start])
    assert said(audit(vault)) == [("open tail", "no close record", 1, 5, None)]
    for size in (start + 1, start + 16, start + 17, len(whole) - 1):
        lane.write_bytes(whole[:size])
        assert said(audit(vault)) == [("open tail", "torn tail", 1, 5, None)]
    lane.write_bytes(whole[:start] + bytes(3_000_000))
    assert said(audit(vault)) == [("open tail", "torn tail", 1, 5, None)]
    lane.write_bytes(whole[: FIRST_FRAME - 1])
    assert said(audit(vault)) == [("open tail", "torn header", 1, None, None)]


def test_with_a_head_the_same_cut_is_older_than_last_seen(
    vault: Vault, lane: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """The head was durable before the cut."""
    start, _ = frames_of(vault)[-1]
    lane.write_bytes(lane.read_bytes()[:start])
    found = audit(vault, kept())
    assert found.verdict is Verdict.OLDER
    assert ("older than last seen", "the lane was cut", 1, 5, 5) in said(found)


def test_bytes_behind_the_end_are_damage(vault: Vault, lane: Path) -> None:
    """A crash leaves a beginning of a record; nothing stands behind a close record."""
    whole = lane.read_bytes()
    lane.write_bytes(whole + b"\0")
    assert said(audit(vault)) == [("damaged", "bytes behind the close record", 1, 6, None)]
    start, _ = frames_of(vault)[-1]
    lane.write_bytes(whole[:start] + os.urandom(50))
    assert said(audit(vault)) == [("damaged", "damaged bytes at the end", 1, 5, None)]


def test_deleted_lanes(vault: Vault, lane: Path, kept: Callable[[], list[KnownHead]]) -> None:
    """One in the middle is missed by its number, the newest by the head, all by the head."""
    write(vault, RECORDS)
    write(vault, RECORDS)
    heads = kept()
    second, third = lane.with_name("000002.lane"), lane.with_name("000003.lane")
    away = lane.parent.parent / "away"
    second.rename(away)
    assert said(audit(vault)) == [("damaged", "the lane is missing", 2, None, None)]
    away.rename(second)
    third.unlink()
    assert audit(vault).verdict is Verdict.WHOLE
    assert said(audit(vault, heads)) == [
        ("older than last seen", "lanes up to this one are gone", 3, None, None)
    ]
    second.unlink()
    lane.unlink()
    with pytest.raises(NoTranscript):
        vault.read("one")
    assert said(audit(vault, heads)) == [
        ("older than last seen", "the session is gone", None, None, None)
    ]


def test_lanes_that_change_places_are_found(vault: Vault, lane: Path) -> None:
    """A lane is bound to its number."""
    write(vault, RECORDS)
    second, first = lane.with_name("000002.lane"), lane.read_bytes()
    lane.write_bytes(second.read_bytes())
    second.write_bytes(first)
    assert [each.what for each in audit(vault).findings] == [
        "lane 1 is another lane, moved here",
        "lane 2 is another lane, moved here",
    ]


def test_an_older_state_of_a_lane_is_found_by_the_head(
    vault: Vault, lane: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """A replayed lane is whole in itself."""
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, {})])
        writer.sync()
        early = lane.with_name("000002.lane").read_bytes()
        writer.append([(Kind.CLOSE, {})])
        writer.sync()
    lane.with_name("000002.lane").write_bytes(early)
    assert audit(vault).verdict is Verdict.OPEN
    assert audit(vault, kept()).verdict is Verdict.OLDER


def test_a_rolled_back_vault_is_found_by_the_head(
    vault: Vault, root: Path, lane: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """Also after a writer went on in it; the next number then is another lane."""
    assert lane.exists()
    old = root.with_name("old")
    shutil.copytree(root, old)
    write(vault, RECORDS)
    shutil.rmtree(root)
    old.rename(root)
    assert audit(vault).verdict is Verdict.WHOLE
    assert audit(vault, kept()).verdict is Verdict.OLDER
    write(vault, RECORDS)
    found = audit(vault, kept())
    assert found.verdict is Verdict.OLDER
    assert [each.what for each in found.findings] == ["another lane stands in its place"]


def test_a_head_of_another_vault_says_so(
    vault: Vault, lane: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """As after a vault vanished and was begun anew."""
    assert lane.exists()
    (head,) = kept()
    other = replace(head, store="a" * 26)
    assert said(audit(vault, [other])) == [
        ("older than last seen", "another vault stands here", 1, None, None)
    ]


def test_blobs_that_are_not_what_was_put(vault: Vault, lane: Path) -> None:
    """Missing, flipped, swapped, cut; the record that names it is named."""
    write(vault, [(Kind.MESSAGES, [LARGE + "y"]), (Kind.CLOSE, {})])
    first, second = sorted((lane.parent / "blobs").iterdir())
    a, b = first.read_bytes(), second.read_bytes()
    for bad in (None, a[:-1], a[:100] + bytes([a[100] ^ 1]) + a[101:], b, b""):
        if bad is None:
            first.unlink()
        else:
            first.write_bytes(bad)
            first.chmod(0o600)
        found = audit(vault)
        (finding,) = found.findings
        assert (finding.verdict, finding.blob) == (Verdict.DAMAGED, first.stem)
        assert (finding.lane, finding.first) in {(1, 2), (2, 1)}
        assert found.blobs == 1
    first.write_bytes(b)
    second.write_bytes(a)
    assert [each.blob for each in audit(vault).findings] != []
    assert audit(vault).blobs == 0
    shutil.rmtree(lane.parent / "blobs")
    assert {each.what for each in audit(vault).findings} == {"the blob is missing"}


def test_what_no_record_names_is_counted_and_no_fault(vault: Vault, lane: Path) -> None:
    """Blobs and temporary files of killed writers; other files are left alone."""
    for name in ("blobs/" + "a" * 32 + ".blob", "blobs/x.blob.12.tmp", "recipients.slots", "note"):
        (lane.parent / name).write_text("?")
    found = audit(vault)
    assert found.verdict is Verdict.WHOLE
    assert (found.unreferenced, found.temporaries) == (1, 1)
    assert (lane.parent / "note").exists()


def test_a_blob_lost_behind_the_last_sync_is_an_open_tail(
    vault: Vault, folder: Path, kept: Callable[[], list[KnownHead]]
) -> None:
    """As a power cut loses it. Without the head nobody knows that it was never synced."""
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, {})])
        writer.sync()
        writer.append([(Kind.MESSAGES, [LARGE])])
    (blob,) = (folder / "blobs").iterdir()
    blob.write_bytes(bytes(100))
    found = audit(vault, kept())
    assert found.verdict is Verdict.OPEN
    assert found.findings[0].what.endswith("(never synced)")
    assert audit(vault).verdict is Verdict.DAMAGED


def test_a_writer_at_work_is_no_crashed_one(vault: Vault) -> None:
    """The lock tells; afterwards the same lane is an open tail."""
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, {})])
        assert said(audit(vault)) == [("open, in use", "no close record", 1, 2, None)]
    assert said(audit(vault)) == [("open tail", "no close record", 1, 2, None)]
    with vault.write("one") as writer:
        writer.append([(Kind.OPEN, {})])
        assert audit(vault).verdict is Verdict.OPEN


def test_a_killed_writer_leaves_an_open_tail(vault: Vault, root: Path, keys: Keys) -> None:
    """In a process of its own; the lock goes with it."""
    code = (
        "import sys; from pathlib import Path; from compactor.storage import *;"
        "w = Vault.open(Path(sys.argv[1]), Keys(bytes(range(32)), Path(sys.argv[2]))).write('one');"
        "w.append([(Kind.OPEN, 1)]); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(root), str(keys.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert audit(vault).verdict is Verdict.IN_USE
        process.send_signal(signal.SIGKILL)
    assert audit(vault).verdict is Verdict.OPEN


def test_a_missing_and_a_wrong_key_are_told_apart(
    vault: Vault, root: Path, lane: Path, keys: Keys, tmp_path: Path
) -> None:
    """Neither is damage; a lane under another key among right ones is."""
    assert lane.exists()
    other = Vault.open(root, Keys(bytes(32), keys.state))
    assert audit(other).verdict is Verdict.WRONG_KEY
    elsewhere = Vault.open(root, Keys(HOST_KEY, tmp_path / "empty"))
    assert audit(elsewhere).verdict is Verdict.MISSING_KEY
    (slot,) = (keys.state / "slots" / vault.id).glob("one.slot")
    slot.unlink()
    assert audit(vault).verdict is Verdict.MISSING_KEY
    away = lane.rename(lane.parent.parent / "away")
    write(vault, RECORDS)
    write(vault, RECORDS)
    away.rename(lane)
    words = "written under another session key"
    assert said(audit(vault)) == [("damaged", words, 1, None, None)]
    lane.with_name("000002.lane").unlink()
    assert said(audit(vault)) == [("wrong key", words, 1, None, None)]


def test_what_is_open_to_others_cannot_be_trusted(vault: Vault, lane: Path) -> None:
    """A lane or a blob that is a link is not followed; the rest is audited."""
    write(vault, RECORDS)
    (blob,) = (lane.parent / "blobs").iterdir()
    real = blob.rename(lane.parent.parent / "real")
    blob.symlink_to(real)
    lane.chmod(0o644)
    found = audit(vault)
    assert found.verdict is Verdict.UNREADABLE
    assert [(each.lane, each.blob) for each in found.findings] == [(1, None), (2, blob.stem)]
    assert found.records == 5


def test_no_finding_holds_text_of_a_record(vault: Vault, lane: Path) -> None:
    """Not even where a record names a blob by something else."""
    canary = "canary-in-a-blob-name"
    body = encode([LARGE], lambda _: canary)
    with vault.write("one") as writer:
        held = writer._lane  # noqa: SLF001
        assert held
        held.append([(Kind.MESSAGES, body)])
    found = audit(vault)
    assert found.verdict is Verdict.DAMAGED
    assert all(canary not in each.what for each in found.findings)
    assert lane.exists()


def test_memory_does_not_grow_with_the_session(vault: Vault, folder: Path) -> None:
    """Many records and large blobs: a few records are held at a time."""
    noise = os.urandom(1_000_000).hex()
    with vault.write("one") as writer:
        for n in range(8):
            writer.append([(Kind.MESSAGES, {"n": n, "text": f"{n}{noise}"})])
            writer.append([(Kind.MESSAGES, {"n": n, "m": noise[k : k + 99]}) for k in range(300)])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size > 8_000_000
    tracemalloc.start()
    try:
        found = audit(vault)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.records, found.blobs) == (2408, 8)
    assert peak < 2_000_000
