"""`compactor replay`: recorded sessions through the engine, and the proof of the way back."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson

from compactor.policy import STAGES
from compactor.replay import Report, scaled
from compactor.replay import replay as run
from compactor.sources import load
from compactor.storage import Keys
from compactor.transcript import FOLDER

from .terminal import safe

_SUMS = (
    *("messages", "requests", "raw_tokens", "view_tokens", "prefix_breaks"),
    *("history_bytes", "vault_bytes", "unreadable", "differing"),
    *("view_mismatches", "illegal_views"),
)
_WARNINGS = 5
_ALL_STAGES = (*STAGES, "summarize")

_EPILOG = """\b
Examples:
  compactor replay scripts/demo-session.jsonl
  compactor replay ~/.claude/projects/*/*.jsonl --window 50000 --json
  compactor replay session.jsonl --vault . --until 37
\b
Exit codes:
  0  everything that was left out read back byte for byte, every view was rebuilt
  1  a proof failed: unreadable, differing, a view mismatch or an illegal view
  2  the call was wrong, or a file is not a recorded session of a known format
  3  the vault could not be written or read
"""


@click.command(epilog=_EPILOG)
@click.argument(
    "sessions",
    nargs=-1,
    required=True,
    metavar="SESSION...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--window",
    type=click.IntRange(min=1_000),
    default=200_000,
    show_default=True,
    help="Context window of the model, in tokens.",
)
@click.option(
    "--vault",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the transcripts in this workspace's .transcripts (default: a temporary one, "
    "deleted afterwards).",
)
@click.option(
    "--scale",
    type=click.IntRange(min=1),
    default=1,
    metavar="K",
    help="Play each session K times over as one conversation.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--until", type=click.IntRange(min=1), metavar="N", help="Stop each session after N requests."
)
def replay(  # noqa: PLR0913, PLR0917 - the options of the command
    sessions: tuple[Path, ...],
    window: int,
    vault: Path | None,
    scale: int,
    as_json: bool,  # noqa: FBT001 - click passes options by name
    until: int | None,
) -> None:
    """Feed recorded SESSIONs through the engine, request by request.

    Reports what would have been sent with and without compaction, what that costs under prompt
    caching, and what was left out; then reads every left-out part back from the encrypted
    transcript and compares it byte for byte, and rebuilds every prepared view from the transcript
    alone and compares digests. Tokens are estimates, anchored where the recording holds usage.

    Reads sessions of Claude Code and of pi (*.jsonl).
    """
    if os.environ.get("COMPACTOR", "").strip().lower() == "off":
        message = "COMPACTOR=off is set: there is nothing to replay with compaction off"
        raise click.UsageError(message)
    reports = []
    with _place(vault) as (workspace, keys):
        for path in sessions:
            recording = scaled(load(path), scale)
            _warn(path, recording.warnings)
            with _progress(path.name) as progress:
                report = run(
                    recording,
                    window=window,
                    workspace=workspace,
                    keys=keys,
                    until=until,
                    progress=progress,
                )
            reports.append(report)
    if as_json:
        click.echo(orjson.dumps(_data(reports), option=orjson.OPT_INDENT_2))
    else:
        from .replay_page import show

        show(reports, kept=vault and vault / FOLDER)
    sys.exit(1 if any(report.failures for report in reports) else 0)


def _warn(path: Path, warnings: list[str]) -> None:
    for warning in warnings[:_WARNINGS]:
        click.echo(safe(f"warning: {path}: {warning}"), err=True)
    if len(warnings) > _WARNINGS:
        more = len(warnings) - _WARNINGS
        click.echo(safe(f"warning: {path}: {more} more like these"), err=True)


@contextmanager
def _place(vault: Path | None) -> Iterator[tuple[Path, Keys]]:
    """Give the workspace and the keys: the user's own, or ones that leave nothing behind."""
    if vault is not None:
        vault.mkdir(parents=True, exist_ok=True)
        keys = Keys.default()
        if keys.made:
            click.echo(
                f"note: a host key was made: {keys.state / 'host.key'}\n"
                "note: back that folder up, or set a recovery key (compactor keys --help); "
                "without it these transcripts never open again",
                err=True,
            )
        yield vault, keys
        return
    with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
        # The key lives in memory only; what is in the folder opens for nobody afterwards.
        workspace = Path(folder)
        yield workspace, Keys(os.urandom(32), workspace / "state")


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(safe(title)), total=None)
        yield lambda done, steps: progress.update(task, completed=done, total=steps)


def _data(reports: list[Report]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        name: sum(getattr(report, name) for report in reports) for name in _SUMS
    }
    raw = sum(report.raw_cost for report in reports)
    totals |= {
        "peak_tokens": max((report.peak_tokens for report in reports), default=0),
        "window": max((report.window for report in reports), default=0),
        "cost_ratio": sum(report.view_cost for report in reports) / raw if raw else 1.0,
        "decisions": {
            stage: sum(report.decisions[stage] for report in reports) for stage in _ALL_STAGES
        },
        "seconds": sum(report.seconds for report in reports),
    }
    return {"sessions": [_row(report) for report in reports], "totals": totals}


def _row(report: Report) -> dict[str, Any]:
    names = (
        *("path", "messages", "requests", "raw_tokens", "view_tokens", "peak_tokens", "window"),
        *("cost_ratio", "prefix_breaks", "history_bytes", "vault_bytes", "unreadable"),
        *("differing", "view_mismatches", "illegal_views", "over_budget", "seconds"),
    )
    row = {name: getattr(report, name) for name in names}
    return row | {"decisions": {stage: report.decisions[stage] for stage in _ALL_STAGES}}
