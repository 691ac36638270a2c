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

from compactor.policy import STAGES, Stage
from compactor.policy_files import PRESETS, read
from compactor.replay import Report, scaled
from compactor.replay import replay as run
from compactor.sources import Recording, conversations, formats
from compactor.storage import Keys
from compactor.tokens import DEFAULT_WINDOW
from compactor.transcript import FOLDER

from .terminal import safe

_SUMS = (
    *("messages", "requests", "raw_tokens", "view_tokens", "prefix_breaks"),
    *("history_bytes", "vault_bytes", "unreadable", "differing"),
    *("view_mismatches", "illegal_views"),
)
_WARNINGS = 5

_EPILOG = f"""\b
Formats:
  {", ".join(formats())}
\b
Examples:
  compactor replay scripts/demo-session.jsonl
  compactor replay ~/.claude/projects/*/*.jsonl --window 50000 --json
  compactor replay session.jsonl --vault . --until 37
  compactor replay session.jsonl --policy frugal --policy-file mine.toml
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
    help=f"Context window of the model, in tokens (default: the policy's, else {DEFAULT_WINDOW}).",
)
@click.option(
    "--policy",
    "preset",
    type=click.Choice(list(PRESETS)),
    help="The preset to replay with (default: the policy file's, else default).",
)
@click.option(
    "--policy-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.toml",
    help="Settings to lay over the preset, as in the user's policy.toml.",
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
@click.option(
    "--summarize",
    is_flag=True,
    help="Let the last stage run too, with the summarizer that needs no model.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--until", type=click.IntRange(min=1), metavar="N", help="Stop each session after N requests."
)
def replay(  # noqa: PLR0913, PLR0917 - the options of the command
    sessions: tuple[Path, ...],
    window: int | None,
    preset: str | None,
    policy_file: Path | None,
    vault: Path | None,
    scale: int,
    summarize: bool,  # noqa: FBT001 - click passes options by name
    as_json: bool,  # noqa: FBT001
    until: int | None,
) -> None:
    """Feed recorded SESSIONs through the engine, request by request.

    Reports what would have been sent with and without compaction, what that costs under prompt
    caching, and what was left out; then reads every left-out part back from the encrypted
    transcript and compares it byte for byte, and rebuilds every prepared view from the transcript
    alone and compares digests. Tokens are estimates, anchored where the recording holds usage.

    A file may hold several conversations: each is replayed by itself. No settings are in force
    but those of the options.
    """
    if os.environ.get("COMPACTOR", "").strip().lower() == "off":
        message = "COMPACTOR=off is set: there is nothing to replay with compaction off"
        raise click.UsageError(message)
    policy = read(policy_file, preset)
    if not summarize:
        policy = policy.but(stages=tuple(s for s in policy.stages if s != Stage.SUMMARIZE))
    size = window or policy.window or DEFAULT_WINDOW
    reports = []
    with _place(vault) as (workspace, keys):
        for path in sessions:
            for recording in conversations(path):
                _warn(recording)
                with _progress(path.name) as progress:
                    report = run(
                        scaled(recording, scale),
                        window=size,
                        workspace=workspace,
                        keys=keys,
                        policy=policy,
                        until=until,
                        release=True,
                        progress=progress,
                    )
                reports.append(report)
                del recording  # the next one is read into memory that this one leaves
    if as_json:
        click.echo(orjson.dumps(_data(reports), option=orjson.OPT_INDENT_2))
    else:
        from .replay_page import show

        show(reports, kept=vault and vault / FOLDER)
    sys.exit(1 if any(report.failures for report in reports) else 0)


def _warn(recording: Recording) -> None:
    warnings, part = recording.warnings, recording.part
    place = f"{recording.path}, part {part}" if part > 1 else f"{recording.path}"
    for warning in warnings[:_WARNINGS]:
        click.echo(safe(f"warning: {place}: {warning}"), err=True)
    if len(warnings) > _WARNINGS:
        more = len(warnings) - _WARNINGS
        click.echo(safe(f"warning: {place}: {more} more like these"), err=True)


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
            stage: sum(report.decisions[stage] for report in reports) for stage in STAGES
        },
        "seconds": sum(report.seconds for report in reports),
    }
    return {"sessions": [_row(report) for report in reports], "totals": totals}


def _row(report: Report) -> dict[str, Any]:
    names = (
        *(
            "path",
            "part",
            "messages",
            "requests",
            "raw_tokens",
            "view_tokens",
            "peak_tokens",
            "window",
        ),
        *("cost_ratio", "prefix_breaks", "history_bytes", "vault_bytes", "unreadable"),
        *("differing", "view_mismatches", "illegal_views", "over_budget", "seconds"),
    )
    row = {name: getattr(report, name) for name in names}
    return row | {"decisions": {stage: report.decisions[stage] for stage in STAGES}}
