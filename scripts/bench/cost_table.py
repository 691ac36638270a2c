"""What long sessions cost: our presets, a rolling mask, and sending everything; a row each.

The sessions are those of more than 60 requests, each played as often as `--scale` says, and of
these, window by window, those whose raw history outgrows it. Cost is that of the prompts under
prompt caching (a cached token 0.1, a written one 1.25), median over the sessions: against sending
everything, and against the rolling mask, which at every request keeps the newest three results
and clears all others. Breaks of the cached prefix, tokens and counts are of all sessions together.
"lost" counts unread results that a request does not show at all, "missing" the requests without
the human's current text, "over" those that do not fit. Of our policies the first two are the
views that the replay judges illegal, which may be so for other reasons too: 0 says that both are 0.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

from compactor.index import Index, Item
from compactor.messages import JsonObject
from compactor.policy import Policy
from compactor.replay import Meter, Report
from compactor.tokens import budget
from compactor.wire import wire_format

from .replay_sessions import PROOFS, WORKERS, Job, Setting, find_jobs, run_job

SESSIONS = Path(__file__).resolve().parents[3] / "shared" / "sessions"
LONG = 60  # requests
FEW = 3  # sessions
KEPT = 3  # newest results
CLEARED = "[Old tool result content cleared]"
POLICIES = {"default": "Policy()", "frugal": "frugal", "roomy": "roomy"}
BOUNDS = {"default": 0.38, "frugal": 0.33}  # of the plain sessions, in BOUND_AT tokens
BOUND_AT = 50_000


@dataclass(slots=True)
class Masked:
    """What came of a session under the rolling mask."""

    raw_cost: float = 0.0
    cost: float = 0.0
    breaks: int = 0
    lost: int = 0
    shares: list[float] = field(default_factory=list)  # of the raw tokens, by request


@dataclass(frozen=True, slots=True)
class Figures:
    """What a row says of one session."""

    cost: float
    against_mask: float
    requests: int
    breaks: int
    lost: int
    missing: int
    over: int
    raw_tokens: int
    tokens: int


def main() -> int:
    """Print a table for each scale, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[SESSIONS])
    parser.add_argument("--scale", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--window", nargs="+", type=int, default=[BOUND_AT, 200_000])
    parser.add_argument("--quick", action="store_true", help="few sessions, played once")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bound is missed")
    chosen = parser.parse_args()
    found = (job for job in find_jobs(chosen.paths) if job.requests > LONG)
    jobs = sorted(found, key=lambda job: job.requests)[: FEW if chosen.quick else None]
    if not jobs:
        parser.error(f"no session of more than {LONG} requests")
    print(f"{len(jobs)} sessions of {jobs[0].requests} to {jobs[-1].requests} requests")
    print(
        "scale  window policy       sessions requests   cost against-mask breaks/100 "
        "lost missing over tokens"
    )
    missed: list[str] = []
    with ProcessPoolExecutor(WORKERS) as pool:
        for scale in [1] if chosen.quick else chosen.scale:
            missed += _table(pool, jobs, scale, sorted(chosen.window))
    for reason in missed:
        print(f"MISSED: {reason}")
    return 1 if chosen.check and missed else 0


def _table(
    pool: ProcessPoolExecutor, jobs: Sequence[Job], scale: int, windows: Sequence[int]
) -> list[str]:
    """Print the rows of one scale, and return which bounds are missed."""
    missed: list[str] = []
    masked = dict(zip(jobs, pool.map(_mask, jobs, repeat(scale)), strict=True))
    outgrow = jobs
    for window in windows:
        reports: dict[Job, Report] = {}
        for policy, name in POLICIES.items():
            setting = Setting(window, policy, scale)
            results = pool.map(run_job, outgrow, repeat(setting))
            for job, (report, warned) in zip(outgrow, results, strict=True):
                reports[job] = report
                found = [f"{proof} {n}" for proof in PROOFS if (n := getattr(report, proof))]
                missed += [f"{job.path.name}, {setting}: {what}" for what in (*found, *warned)]
            # How large the raw history is, anchored on recorded usage, each report says alike.
            outgrow = [job for job in outgrow if max(reports[job].raw_sizes) > window]
            if not outgrow:
                print(f"{scale:>5} {window:>7} no session outgrows it")
                return missed
            figures = [_ours(reports[job], masked[job]) for job in outgrow]
            cost = _row(scale, window, name, figures)
            if (scale, window) == (1, BOUND_AT) and cost > BOUNDS.get(policy, cost):
                missed.append(f"{name} costs {cost:.1%}, bound {BOUNDS[policy]:.0%}")
        rows = [_masks(reports[job], masked[job], window) for job in outgrow]
        _row(scale, window, "rolling mask", rows)
    return missed


def _mask(job: Job, scale: int) -> Masked:
    """Work out what the rolling mask sends of a session, and what it costs."""
    wire = wire_format("anthropic")
    index, recording = Index(wire, Policy().not_human), job.recording(scale)
    raw, sent, made = Meter(wire), Meter(wire), Masked()
    history: list[JsonObject] = []
    view: list[Any] = []
    done, cleared, lost = 0, set[tuple[int, int]](), set[tuple[int, int]]()
    for point in recording.requests:
        new = recording.messages[len(history) : point.length]
        history += new
        view += new
        index.sync(history)
        old = index.results[done : max(len(index.results) - KEPT, done)]
        done += len(old)
        for item in filter(_is_longer, old):
            view[item.message] = _without(view[item.message], item.block)
            cleared.add(item.place)
        lost |= cleared & {item.place for item in index.unconsumed()}
        known = dict(zip(map(id, history), index.messages, strict=True))
        raw.take(history, known)
        sent.take(view, known)
        made.shares.append(sent.size / max(raw.size, 1))
    made.raw_cost, made.cost = raw.cost, sent.cost
    made.breaks, made.lost = sent.breaks, len(lost)
    return made


def _is_longer(item: Item) -> bool:
    """Tell whether a result is longer than what would stand in its place."""
    return item.facts.chars > len(CLEARED) or item.facts.media > 0


def _without(message: JsonObject, block: int) -> JsonObject:
    content = list(message["content"])
    content[block] = {**content[block], "content": CLEARED}
    return {**message, "content": content}


def _ours(report: Report, masked: Masked) -> Figures:
    if abs(report.raw_cost - masked.raw_cost) > 1:
        message = f"{report.path}: sending everything costs two different sums"
        raise AssertionError(message)
    return Figures(
        cost=report.cost_ratio,
        against_mask=report.view_cost / masked.cost,
        requests=report.requests,
        breaks=report.prefix_breaks,
        lost=report.illegal_views,
        missing=report.illegal_views,
        over=report.over_budget,
        raw_tokens=report.raw_tokens,
        tokens=report.view_tokens,
    )


def _masks(report: Report, masked: Masked, window: int) -> Figures:
    raw = report.raw_sizes
    sizes = [int(size * share) for size, share in zip(raw, masked.shares, strict=True)]
    room = budget(window, 0, 0).messages
    return Figures(
        cost=masked.cost / masked.raw_cost,
        against_mask=1.0,
        requests=len(sizes),
        breaks=masked.breaks,
        lost=masked.lost,
        missing=0,  # it touches nothing but results
        over=sum(size > room for size in sizes),
        raw_tokens=sum(raw),
        tokens=sum(sizes),
    )


def _row(scale: int, window: int, name: str, figures: Sequence[Figures]) -> float:
    """Print a row, and return the median cost."""

    def total(what: str) -> int:
        return sum(getattr(one, what) for one in figures)

    cost, requests = median(one.cost for one in figures), total("requests")
    print(
        f"{scale:>5} {window:>7} {name:<12} {len(figures):>8} {requests:>8} {cost:>6.1%} "
        f"{median(one.against_mask for one in figures):>12.1%} "
        f"{100 * total('breaks') / requests:>10.2f} {total('lost'):>4} {total('missing'):>7} "
        f"{total('over'):>4} {total('tokens') / total('raw_tokens'):>6.1%}",
        flush=True,
    )
    return cost


if __name__ == "__main__":
    sys.exit(main())
