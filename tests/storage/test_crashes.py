"""The fast form of `scripts/soak/crash` for the storage package: nothing promised is ever lost."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from soak import runs
from soak.controls import CONTROLS
from soak.tap import Fault

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

KINDS = ("open", "write", "fsync", "fdatasync", "link", "rename", "unlink", "mkdir", "close")


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """How many calls of each kind the work makes."""
    return runs.counted("storage")


def ways(kind: str) -> Iterator[tuple[str, bool]]:
    yield "kill", False
    yield "EIO", False
    yield "ENOSPC", True
    if kind == "write":
        yield "torn", False
        yield "short", True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "close"])
def test_a_call_that_kills_or_fails_loses_nothing(counts: dict[str, int], kind: str) -> None:
    """One call of each kind in the middle of the work, once and from then on."""
    at = counts[kind] // 2 + 1
    for how, sticky in ways(kind):
        outcome = runs.faulted("storage", Fault(kind, at, how, sticky))
        assert outcome.hit
        assert outcome.found == [], (how, sticky)


def test_a_kill_at_a_close_loses_nothing(counts: dict[str, int]) -> None:
    """The last of the calls that a store consists of."""
    outcome = runs.faulted("storage", Fault("close", counts["close"] // 2, "kill"))
    assert outcome.hit
    assert outcome.found == []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_power_cut_loses_nothing_that_was_synced(counts: dict[str, int], seed: int) -> None:
    """At eight calls, on a disk that keeps nothing else, and on one that keeps some of it."""
    calls = sum(counts.values())
    for cut in range(calls // 8, calls, calls // 8):
        assert runs.power_cut("storage", seed * cut, cut=cut).found == [], cut


@pytest.mark.parametrize("name", CONTROLS)
def test_the_power_cut_finds_what_is_not_synced(counts: dict[str, int], name: str) -> None:
    """Controls: with one step taken out or turned round, something is lost or cannot go on."""
    broken = CONTROLS[name]
    cuts: list[int | Fault] = [
        sum(counts.values()) * 3 // 4,
        *(Fault("fsync", at, "kill") for at in range(1, 9)),
    ]
    cut_there = (runs.power_cut("storage", 0, cut=cut, broken=broken) for cut in cuts)
    # Without a place: behind a promise.
    promised = (runs.power_cut("storage", seed, broken=broken) for seed in range(1, 9))
    assert any(outcome.found for outcome in chain(cut_there, promised))


def test_a_failed_sync_that_drops_loses_nothing(counts: dict[str, int]) -> None:
    """The lane's: what it should have stored is written to the next one."""
    for at in (2, counts["fdatasync"] // 2, counts["fdatasync"]):
        fault = Fault("fdatasync", at, "EIO")
        assert runs.power_cut("storage", 0, fault=fault).found == [], at


def test_what_a_killed_process_left_unsynced_is_synced_by_the_next(
    counts: dict[str, int],
) -> None:
    """Killed at each fsync of the set-up, resumed, and the power cut behind its first promises."""
    found = {}
    for at in range(1, min(counts["fsync"], 16)):
        found[at] = runs.power_cut("storage", 0, fault=Fault("fsync", at, "kill")).found
    assert {key: text for key, text in found.items() if text} == {}


def test_a_failed_sync_of_the_set_up_is_not_trusted(counts: dict[str, int]) -> None:
    """Each fsync of the set-up refuses once; the caller tries again, and the power is cut."""
    found = {}
    for at in range(1, min(counts["fsync"], 16)):
        found[at] = runs.power_cut("storage", 0, fault=Fault("fsync", at, "EIO")).found
    assert {key: text for key, text in found.items() if text} == {}


def test_an_error_of_close_has_a_type(counts: dict[str, int]) -> None:
    """Each tenth; NFS and FUSE report so what they could not write."""
    for at in range(1, counts["close"] + 1, 10):
        assert runs.faulted("storage", Fault("close", at, "EIO")).found == [], at
