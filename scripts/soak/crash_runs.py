"""Kill a writer, let its disk refuse and cut its power at every system call; print what was lost.

A row of the table is a kind of fault: how many runs met it, how many promises were made in them,
how many promised records were lost, and in how many runs something else was wrong: content that is
not what was written, a session that cannot go on, an error without a type.
"""

import argparse
import logging
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import runs, work
from .controls import CONTROLS
from .runs import Outcome
from .tap import Fault

PARTS = ("calls", "strace", "power", "controls")
_REFUSALS = ("EIO", "ENOSPC")
# System calls of each kind, as Linux names them.
_CALLS = (
    *("openat", "write", "fsync", "fdatasync", "linkat"),
    *("renameat", "unlinkat", "mkdirat", "close"),
)
_WIDTH = 46
# What differs from run to run: temporary folders, names of blobs, handles.
_NAMES = re.compile(r"/\S*?/(disk|after)/|\b[a-z2-7]{32}\b|\bout-[a-z2-7]+")


@dataclass(frozen=True, slots=True)
class Job:
    """One run, and the row of the table that counts it."""

    part: str
    row: str
    run: partial[Outcome]


def main() -> int:
    """Run all, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each N-th point")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    logging.disable()  # the engine says what it was kept from
    failed = False
    for part in chosen.parts.split(","):
        jobs = list(_jobs(part, chosen.every, chosen.seed))
        if jobs:
            with ProcessPoolExecutor(chosen.jobs) as pool:
                outcomes = list(pool.map(_run, jobs))
            failed |= _table(part, jobs, outcomes)
    return 1 if failed else 0


def _run(job: Job) -> Outcome:
    return job.run()


def _jobs(part: str, every: int, seed: int) -> Iterator[Job]:
    for level in work.WORK:
        counts = runs.counted(level)
        if part == "calls":
            yield from _at_calls(level, counts, every)
        elif part == "strace":
            yield from _under_strace(level, every)
        elif part == "power":
            yield from _power(level, counts, every, seed)
        elif part == "controls":
            yield from _controls(level, counts, every, seed)


def _at_calls(level: str, counts: dict[str, int], every: int) -> Iterator[Job]:
    for kind, count in sorted(counts.items()):
        for how, sticky in _ways(kind):
            row = f"{level}: {how}{' from then on' if sticky else ''} at {kind}"
            for at in range(1, count + 1, every):
                fault = Fault(kind, at, how, sticky)
                yield Job("calls", row, partial(runs.faulted, level, fault))


def _ways(kind: str) -> Iterator[tuple[str, bool]]:
    yield "kill", False
    if kind == "write":
        yield "torn", False
        yield "short", False
        yield "short", True
    for how in _REFUSALS:
        yield how, False
        yield how, True


def _under_strace(level: str, every: int) -> Iterator[Job]:
    strace = shutil.which("strace")
    if strace is None:
        print(f"{level}: no strace here, this part is left out")
        return
    for call in _CALLS:
        with tempfile.TemporaryDirectory() as name:
            trace = Path(name) / "trace"
            runs.traced(level, call, 0, "kill", trace)
            lines = [line for line in trace.read_text().splitlines() if f" {call}(" in line]
        # Only what touches the vault: an interpreter opens many files of its own.
        points = [n for n, line in enumerate(lines, 1) if re.search("<disk>", line)]
        for how in ("kill", *_REFUSALS):
            for when in points[::every]:
                run = partial(runs.traced, level, call, when, how)
                yield Job("strace", f"{level}: {how} at {call}", run)


def _power(level: str, counts: dict[str, int], every: int, seed: int) -> Iterator[Job]:
    calls = sum(counts.values())
    for at in range(1, calls + 1, every):
        cut = partial(runs.power_cut, level, cut=at)
        yield Job("power", f"{level}: only what was synced", partial(cut, 0))
        yield Job("power", f"{level}: and any of the rest", partial(cut, seed + at))
        after = partial(runs.power_cut, level, fault=Fault("any", at, "kill"))
        yield Job("power", f"{level}: killed, resumed, then cut", partial(after, 0))
        yield Job("power", f"{level}: the same, and any of the rest", partial(after, seed + at))
    for number in range(max(60 // every, 1)):
        run = partial(runs.power_cut, level, 1_000_000 + seed + number)
        yield Job("power", f"{level}: right behind a promise", run)
    for kind in ("fsync", "fdatasync"):
        for at in range(1, counts[kind] + 1, every):
            for sticky in (False, True):
                fault = Fault(kind, at, "EIO", sticky)
                run = partial(runs.power_cut, level, 0, fault=fault)
                yield Job("power", f"{level}: {kind} fails and drops, then cut", run)


def _controls(level: str, counts: dict[str, int], every: int, seed: int) -> Iterator[Job]:
    for name, broken in CONTROLS.items():
        for at in range(5, sum(counts.values()) + 1, 5 * every):
            run = partial(runs.power_cut, level, seed * (at % 2), cut=at, broken=broken)
            yield Job("controls", f"{level}: {name}", run)
        for at in range(1, counts["fsync"] + 1):
            cut = Fault("fsync", at, "kill")
            run = partial(runs.power_cut, level, 0, cut=cut, broken=broken)
            yield Job("controls", f"{level}: {name}", run)


def _table(part: str, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> bool:
    """Print a part's table; tell whether it is not as it should be."""
    rows: dict[str, list[Outcome]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        rows.setdefault(job.row, []).append(outcome)
    heads = f"{'runs':>6} {'promises':>8} {'lost':>6} {'wrong':>6} {'stuck':>6} untyped"
    print(f"\n{part:<{_WIDTH}} {heads}")
    failed = False
    for row, each in rows.items():
        met = [outcome for outcome in each if outcome.hit or outcome.found]
        lost = sum(outcome.count("lost") for outcome in met)
        others = [
            sum(outcome.count(w) > 0 for outcome in met) for w in ("wrong", "stuck", "untyped")
        ]
        print(
            f"{row:<{_WIDTH}} {len(met):>6} {sum(o.promises for o in met):>8} {lost:>6} "
            f"{others[0]:>6} {others[1]:>6} {others[2]:>7}",
            flush=True,
        )
        bad = lost + sum(others) > 0
        failed |= bad != (part == "controls")
    if part != "controls":
        _findings(outcomes)
    return failed


def _findings(outcomes: Sequence[Outcome]) -> None:
    """Print what was found, without the names of temporary folders, and how often."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        found.update({_NAMES.sub("…", each) for each in outcome.found})
    for text, count in found.most_common():
        if text != "lost":
            print(f"  {count} x {text[:200]}")


if __name__ == "__main__":
    sys.exit(main())
