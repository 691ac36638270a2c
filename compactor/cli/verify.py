"""`compactor verify`: whether a vault still is what was written into it."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import orjson

from compactor.storage import Damaged, Keys, StorageError, Vault
from compactor.storage.findings import Finding, Verdict, worst
from compactor.storage.heads import Heads, KnownHead
from compactor.storage.names import unb32
from compactor.verify import Progress, Report, data
from compactor.verify import verify as run

from .options import vault_options

CODES: Final = {
    Verdict.WHOLE: 0,
    Verdict.IN_USE: 0,
    Verdict.OPEN: 0,
    Verdict.DAMAGED: 1,
    Verdict.UNREADABLE: 3,
    Verdict.MISSING_KEY: 4,
    Verdict.WRONG_KEY: 5,
    Verdict.OLDER: 6,
}
_COLORS: Final = {0: "green", 1: "red", 6: "red"}
_SHOWN = 20  # findings of one session; --json has all
_BLOB = re.compile("[a-z2-7]{32}")
_HINTS: Final = {
    Verdict.MISSING_KEY: "restore the state folder, or read with --identity",
    Verdict.WRONG_KEY: "set COMPACTOR_KEY or COMPACTOR_KEY_FILE to the key it was written under",
    Verdict.OLDER: "if you restored this yourself, remove the kept head: {head}",
    Verdict.UNREADABLE: "make the files readable for you alone, then run it again",
}

_EPILOG = """\b
Examples:
  compactor verify
  compactor verify nightly --vault ~/work --json
  compactor verify nightly --export-head nightly.head
  compactor verify nightly --head nightly.head
\b
Verdicts and exit codes (of several sessions the worst counts; from bad to worse 4 5 3 6 1):
  0  whole: every lane is closed and every byte is what was written
  0  open, in use: a writer is at work now
  0  open tail: a writer ended without closing; no head contradicts what it left
  1  damaged: records, blobs or headers are not what was written
  2  the call was wrong
  3  the vault, a session, or a file that was named cannot be read or written
  4  missing key: the session's key is not here
  5  wrong key: the session was written under another one
  6  older than last seen: a known head is not in it (cut, rolled back or replaced)
\b
Without a known head, a lane cut off at the end of a record looks like an open tail.
"""


@click.command(epilog=_EPILOG)
@click.argument("session", required=False)
@vault_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--head",
    "head_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with the heads in FILE, too, one a line.",
)
@click.option(
    "--export-head",
    "export_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the newest heads to FILE, one a line, if nothing is wrong. Keep it elsewhere.",
)
def verify(  # noqa: PLR0913 - the options of the command
    *,
    session: str | None,
    root: Path,
    keys: Keys,
    as_json: bool,
    head_file: Path | None,
    export_file: Path | None,
) -> None:
    """Verify SESSION, or every session of the vault; changes nothing.

    Checks every byte: records, their order, blobs, what earlier known heads say; then rebuilds
    every prepared view from the transcript and reads everything back that was left out.
    """
    given = _read_heads(head_file, session) if head_file else []
    try:
        vault = Vault.open(root, keys)
    except Damaged as error:
        click.echo(f"error: {error}\nhint: {error.hint}", err=True)
        if as_json:
            _print(Verdict.DAMAGED, [])
        sys.exit(CODES[Verdict.DAMAGED])
    heads = Heads(keys.state, unb32(vault.id))
    names = [session] if session else sorted({*vault.sessions(), *heads.sessions(), *_named(given)})
    reports = []
    with _progress() as progress:
        for name in names:
            known = _kept(heads, name) + [head for head in given if head.session == name]
            reports.append(run(vault, name, heads=known, progress=progress))
    verdict = worst(report.verdict for report in reports)
    if as_json:
        _print(verdict, reports)
    else:
        _show(reports, heads)
    if export_file is not None:
        _export(reports, export_file)
    sys.exit(CODES[verdict])


def _read_heads(path: Path, session: str | None) -> list[KnownHead]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        heads = [KnownHead.parse(line) for line in lines if line.strip()]
    except ValueError as error:
        # BadName and UnicodeDecodeError are ValueErrors, and quote what they read.
        text = f"{path} does not hold heads as --export-head writes them"
        raise click.BadParameter(text, param_hint="--head") from error
    if not heads or (session is not None and session not in _named(heads)):
        text = f"{path} names no head of {session or 'any session'}"
        raise click.BadParameter(text, param_hint="--head")
    return heads


def _named(heads: Sequence[KnownHead]) -> set[str]:
    return {head.session for head in heads}


def _kept(heads: Heads, session: str) -> list[KnownHead]:
    try:
        return heads.load(session)
    except (StorageError, OSError) as error:
        click.echo(f"warning: no kept head of {session}: {error}", err=True)
        return []


def _print(verdict: Verdict, reports: Sequence[Report]) -> None:
    rows = [data(report) for report in reports]
    found = {"verdict": verdict.value, "code": CODES[verdict], "sessions": rows}
    click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))


def _show(reports: Sequence[Report], heads: Heads) -> None:
    width = max((len(report.audit.session) for report in reports), default=0)
    for report in reports:
        verdict, audit = report.verdict, report.audit
        color = _COLORS.get(CODES[verdict], "yellow")
        counts = (
            f"{len(audit.lanes)} lanes, {audit.records} records, {audit.blobs} blobs, "
            f"{report.views} of {audit.requests} views, {report.read} of {report.handles} parts, "
            f"{audit.read:,} bytes, {'head compared' if audit.compared else 'no head known'}"
        )
        click.echo(
            f"{audit.session:<{width}}  {click.style(verdict.value, fg=color)}"
            + (f"  {counts}" if audit.lanes else "")
        )
        shown = sorted(report.findings, key=lambda each: each.verdict is not verdict)[:_SHOWN]
        for finding in shown:
            click.echo(f"  {_line(finding)}")
        if more := len(report.findings) - len(shown):
            click.echo(f"  and {more} more findings")
        if audit.unreferenced or audit.temporaries:
            click.echo(
                f"  remark: {audit.unreferenced} blobs that no record names, "
                f"{audit.temporaries} temporary files (a killed writer leaves them)"
            )
        if hint := _HINTS.get(verdict):
            click.echo(f"hint: {hint.format(head=heads.path(audit.session))}", err=True)
    if not reports:
        click.echo("no sessions", err=True)


def _line(finding: Finding) -> str:
    """Say what was found and where. No text of the vault is in it."""
    kind = "remark" if finding.verdict is Verdict.WHOLE else finding.verdict.value
    places = []
    if finding.lane is not None:
        places.append(f"lane {finding.lane}")
    if finding.first is not None:
        last = "" if finding.last in {None, finding.first} else f" to {finding.last}"
        places.append(f"record {finding.first}{last}")
    if finding.offset is not None:
        places.append(f"bytes {finding.offset} to {finding.offset + (finding.size or 0)}")
    if finding.blob is not None and _BLOB.fullmatch(finding.blob):
        places.append(f"blob {finding.blob}")
    where = f" ({', '.join(places)})" if places else ""
    return f"{kind}: {finding.what}{where}"


def _export(reports: Sequence[Report], path: Path) -> None:
    """Write the heads of the sessions with which nothing is wrong."""
    lines = []
    for report in reports:
        if CODES[report.verdict] == 0 and report.audit.head is not None:
            lines.append(report.audit.head.line() + "\n")
        else:
            click.echo(f"warning: no head of {report.audit.session} was written", err=True)
    if lines:
        path.write_text("".join(lines), encoding="ascii")


@contextmanager
def _progress() -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, whole: bar.update(
            task, description=what, completed=done, total=whole
        )
