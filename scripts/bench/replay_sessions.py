"""Replay recorded sessions by several windows and policies; print a row each, and what failed.

A folder is searched for files of the formats that can be imported; what an INDEX.tsv in it marks
as not importable is passed over. Exit 1 where a proof failed, or where the engine warned.
"""

import argparse
import csv
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product, repeat
from pathlib import Path

from compactor import Policy, Stage
from compactor.policy_files import PRESETS
from compactor.replay import Report, replay, scaled
from compactor.sources import Recording, UnknownFormat, conversations
from compactor.storage import Keys

DEMO = Path(__file__).resolve().parents[1] / "demo-session.jsonl"
WORKERS = 2
SUFFIXES = (".json", ".jsonl", ".traj")
PROOFS = ("unreadable", "differing", "view_mismatches", "illegal_views")


@dataclass(frozen=True, slots=True)
class Job:
    """A conversation of a file, and how large it is."""

    path: Path
    part: int
    messages: int
    requests: int

    def recording(self, times: int) -> Recording:
        """Read the conversation, played `times` over."""
        found = next(each for each in conversations(self.path) if each.part == self.part)
        return scaled(found, times)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all conversations are replayed with."""

    window: int
    policy: str
    scale: int
    summarize: bool = True

    def made(self) -> Policy:
        """Return the policy, without the stage that is left out."""
        policy = PRESETS[self.policy]()
        kept = tuple(stage for stage in policy.stages if stage != Stage.SUMMARIZE)
        return policy if self.summarize else policy.but(stages=kept)


class _Log(logging.Handler):
    """Keeps what the engine warns of, with the number of the request."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.done = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, unless it says what a column says."""
        if str(record.msg).startswith("the view is too large"):
            return
        cause = record.exc_info[1] if record.exc_info else None
        reason = f" ({cause!r})" if cause else ""
        self.lines.append(f"request {self.done + 1}: {record.getMessage()}{reason}")


def main() -> int:
    """Run all, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[DEMO])
    parser.add_argument("--window", nargs="+", type=int, default=[20_000, 50_000, 200_000])
    parser.add_argument("--policy", nargs="+", choices=list(PRESETS), default=["default"])
    parser.add_argument("--longest", type=int, help="only the N conversations of most messages")
    parser.add_argument(
        "--summarize", action="store_true", help="with the last stage, and no model asked"
    )
    parser.add_argument("--scale", type=int, default=1, help="play each session K times over")
    chosen = parser.parse_args()
    found = sorted(find_jobs(chosen.paths), key=lambda job: -job.messages)
    jobs = found[: chosen.longest]
    print(f"{len(jobs)} of {len(found)} conversations, each {chosen.scale} times over")
    print(
        f"{'window':>7} {'policy':<8} sessions requests tokens   cost breaks/100 "
        "persist   mask archive summary   over unreadable differing mismatch illegal warned seconds"
    )
    failed = 0
    with ProcessPoolExecutor(WORKERS) as pool:
        for window, policy in product(chosen.window, chosen.policy):
            setting = Setting(window, policy, chosen.scale, chosen.summarize)
            results = list(pool.map(run_job, jobs, repeat(setting)))
            print(_row(setting, results), flush=True)
            for job, (report, warned) in zip(jobs, results, strict=True):
                proofs = [f"{name} {n}" for name in PROOFS if (n := getattr(report, name))]
                failed += bool(proofs or warned)
                for reason in (*proofs, *warned):
                    print(f"        FAILED: {job.path.name}, part {job.part}: {reason}")
    return 1 if failed else 0


def find_jobs(paths: Sequence[Path]) -> Iterator[Job]:
    """Go through the conversations of files and folders that make requests."""
    for path in paths:
        passed_over = _not_importable(path)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if path.is_dir() and (file.suffix not in SUFFIXES or file in passed_over):
                continue
            try:
                for each in conversations(file):
                    if each.requests:
                        yield Job(file, each.part, len(each.messages), len(each.requests))
            except UnknownFormat as error:
                print(f"passed over: {error}", file=sys.stderr)


def _not_importable(folder: Path) -> set[Path]:
    try:
        text = (folder / "INDEX.tsv").read_text(encoding="utf-8")
    except OSError:
        return set()
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {folder / row["file"] for row in rows if row["import"] == "no"}


def run_job(job: Job, setting: Setting) -> tuple[Report, list[str]]:
    """Replay a conversation; return the report and what the engine warned of."""
    log = _Log()

    def progress(done: int, _: int) -> None:
        log.done = done

    logger = logging.getLogger("compactor")
    logger.addHandler(log)
    try:
        with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
            workspace = Path(folder)
            report = replay(
                job.recording(setting.scale),
                window=setting.window,
                workspace=workspace,
                keys=Keys(os.urandom(32), workspace / "state"),
                policy=setting.made(),
                progress=progress,
            )
    finally:
        logger.removeHandler(log)
    return report, log.lines


def _row(setting: Setting, results: Sequence[tuple[Report, list[str]]]) -> str:
    reports = [report for report, _ in results]

    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    decisions: Counter[str] = sum((report.decisions for report in reports), Counter())
    requests = total("requests")
    tokens = total("view_tokens") / max(total("raw_tokens"), 1)
    cost = total("view_cost") / max(total("raw_cost"), 1)
    return (
        f"{setting.window:>7} {setting.policy:<8} {len(reports):>8} {requests:>8} {tokens:>6.1%} "
        f"{cost:>6.1%} {100 * total('prefix_breaks') / max(requests, 1):>10.2f} "
        f"{decisions['persist']:>7} {decisions['mask']:>6} {decisions['archive']:>7} "
        f"{decisions['summarize']:>7} "
        f"{total('over_budget'):>6} {total('unreadable'):>10} {total('differing'):>9} "
        f"{total('view_mismatches'):>8} {total('illegal_views'):>7} "
        f"{sum(len(warned) for _, warned in results):>6} {total('seconds'):>7.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
