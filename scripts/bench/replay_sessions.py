"""Replay recorded sessions at several windows; print a row a window, and each failed proof."""

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from compactor.replay import Report, replay, scaled
from compactor.sources import Recording, UnknownFormat, load
from compactor.storage import Keys

DEMO = Path(__file__).resolve().parents[1] / "demo-session.jsonl"


def main() -> int:
    """Run all, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[DEMO])
    parser.add_argument("--windows", default="20000,50000,200000")
    parser.add_argument("--longest", type=int, help="only the N sessions with most messages")
    parser.add_argument("--scale", type=int, default=1, help="play each session K times over")
    chosen = parser.parse_args()
    recordings = sorted(_recordings(chosen.paths), key=lambda each: -len(each.messages))
    files = [each.path for each in recordings[: chosen.longest]]
    print(f"{len(files)} sessions, each {chosen.scale} times over, of {len(recordings)} found")
    print(
        f"{'window':>8} {'requests':>8} {'tokens':>7} {'cost':>6} {'breaks/100':>10} "
        f"{'persist':>7} {'mask':>6} {'over':>6} {'vault':>6} "
        " unreadable differing mismatch illegal  seconds"
    )
    failed = 0
    for window in map(int, chosen.windows.split(",")):
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            reports = list(pool.map(_one, files, repeat(window), repeat(chosen.scale)))
        print(_row(window, reports), flush=True)
        for report in reports:
            if report.failures:
                failed += 1
                print(f"         FAILED: {Path(report.path).name}")
    return 1 if failed else 0


def _recordings(paths: Sequence[Path]) -> Iterator[Recording]:
    for path in paths:
        for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
            try:
                recording = load(file)
            except UnknownFormat:
                continue
            if recording.requests:
                yield recording


def _one(path: Path, window: int, scale: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
        workspace = Path(folder)
        keys = Keys(os.urandom(32), workspace / "state")
        recording = scaled(load(path), scale)
        return replay(recording, window=window, workspace=workspace, keys=keys)


def _row(window: int, reports: Sequence[Report]) -> str:
    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    decisions: Counter[str] = sum((report.decisions for report in reports), Counter())
    cost = sum(r.view_cost for r in reports) / max(sum(r.raw_cost for r in reports), 1)
    requests = max(total("requests"), 1)
    return (
        f"{window:>8} {requests:>8} {total('view_tokens') / total('raw_tokens'):>7.1%} "
        f"{cost:>6.1%} {100 * total('prefix_breaks') / requests:>10.2f} {decisions['persist']:>7} "
        f"{decisions['mask']:>6} {total('over_budget'):>6} "
        f"{total('vault_bytes') / total('history_bytes'):>6.1%}  {total('unreadable'):>10} "
        f"{total('differing'):>9} {total('view_mismatches'):>8} {total('illegal_views'):>7} "
        f"{total('seconds'):>8.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
