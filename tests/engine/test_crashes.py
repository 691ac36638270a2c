"""The fast form of `scripts/soak/crash` for the engine: what a view named reads back, always."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from soak import runs
from soak.controls import CONTROLS
from soak.tap import Fault

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

KINDS = ("write", "fsync", "fdatasync", "link", "unlink", "mkdir")


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """How many calls of each kind the work makes."""
    return runs.counted("engine")


def ways(kind: str) -> Iterator[tuple[str, bool]]:
    yield "kill", False
    yield "EIO", kind == "write"
    if kind == "write":
        yield "torn", False
        yield "short", True
        yield "ENOSPC", False


def test_a_kill_at_any_moment_loses_no_view() -> None:
    """C55: 20 SIGKILLs; each view that was returned reads back, and the session goes on with it."""
    dice = random.Random(5)
    for _ in range(20):
        assert runs.killed_at("engine", dice.uniform(0.01, 0.25)).found == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_kills_or_fails_loses_nothing(counts: dict[str, int], kind: str) -> None:
    """In the middle of the work, once and from then on; resumed views are legal."""
    at = counts[kind] // 2 + 1
    for how, sticky in ways(kind):
        outcome = runs.faulted("engine", Fault(kind, at, how, sticky))
        assert outcome.hit
        assert outcome.found == [], (how, sticky)


@pytest.mark.parametrize("kind", ["open", "close"])
def test_a_kill_at_an_open_or_close_loses_nothing(counts: dict[str, int], kind: str) -> None:
    """Four of each."""
    for at in range(counts[kind] // 5, counts[kind], counts[kind] // 4):
        assert runs.faulted("engine", Fault(kind, at, "kill")).found == []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_power_cut_loses_no_note_that_a_view_showed(counts: dict[str, int], seed: int) -> None:
    """At five calls, on a disk that keeps nothing unsynced, and on one that keeps some of it."""
    calls = sum(counts.values())
    for cut in range(calls // 5, calls, calls // 5):
        assert runs.power_cut("engine", seed * cut, cut=cut).found == [], cut


@pytest.mark.parametrize(
    "name", ["no fsync of folders", "no fsync of files", "no fdatasync of lanes"]
)
def test_the_power_cut_finds_what_is_not_synced(counts: dict[str, int], name: str) -> None:
    """Controls: with one step taken out, notes are lost."""
    outcome = runs.power_cut("engine", 0, cut=sum(counts.values()) * 3 // 4, broken=CONTROLS[name])
    assert outcome.count("lost") > 0


def test_a_failed_fsync_of_a_blob_is_not_trusted_by_the_next_writer(
    counts: dict[str, int],
) -> None:
    """One of the last fails once and drops its pages; the power is cut at the end."""
    found = {}
    for at in range(counts["fsync"] - 5, counts["fsync"] + 1):
        found[at] = runs.power_cut("engine", 0, fault=Fault("fsync", at, "EIO")).found
    assert {key: text for key, text in found.items() if text} == {}


def test_a_writer_killed_while_closing_is_not_believed(counts: dict[str, int]) -> None:
    """Before the sync of the first and of the last CLOSE; resumed, and the power cut then."""
    found = {}
    for at in (3, counts["fdatasync"]):
        found[at] = runs.power_cut("engine", 0, fault=Fault("fdatasync", at, "kill")).found
    assert {key: text for key, text in found.items() if text} == {}
