"""What `compactor replay` prints for people: a table, and on a terminal a chart of the context."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from compactor.replay import Report

_WIDTH, _HEIGHT = 72, 12
_RAW, _VIEW, _WINDOW = "yellow", "green", "red"


def show(reports: Sequence[Report], kept: Path | None) -> None:
    """Print the reports to stdout."""
    console = Console(highlight=False)
    for report in reports:
        if console.is_terminal:
            console.print(_chart(report))
        console.print(_table(report))
    failures = sum(report.failures for report in reports)
    parts = sum(report.decisions.total() for report in reports)
    views = sum(report.requests for report in reports)
    if failures:
        console.print(f"[bold red]{failures} proofs failed[/]")
    else:
        console.print(
            f"[bold green]proven[/]: {parts} left-out parts read back byte for byte, "
            f"{views} views rebuilt from the encrypted transcript alone"
        )
    if kept is not None:
        names = ", ".join(report.session for report in reports)
        console.print(f"kept in {escape(str(kept))}: {names}")


def _table(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    saved = 1 - report.view_tokens / report.raw_tokens if report.raw_tokens else 0.0
    rows = {
        "session": f"[bold]{escape(Path(report.path).name)}[/]",
        "history": f"{report.messages} messages, {report.requests} requests",
        "tokens sent": f"{report.view_tokens:,} instead of {report.raw_tokens:,} "
        f"({saved:.0%} less, estimated)",
        "largest": f"{report.peak_tokens:,} of a window of {report.window:,}"
        + (f"; {report.over_budget} requests over budget" if report.over_budget else ""),
        "cost": f"{report.cost_ratio:.0%} of sending everything, under prompt caching; "
        f"{report.prefix_breaks} prefix breaks",
        "left out": ", ".join(f"{count} by {stage}" for stage, count in report.decisions.items())
        or "nothing",
        "vault": f"{report.vault_bytes:,} bytes encrypted, {report.history_bytes:,} of history",
        "proof": f"{report.unreadable} unreadable, {report.differing} differing, "
        f"{report.view_mismatches} view mismatches, {report.illegal_views} illegal views",
        "time": f"{report.seconds:.1f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _chart(report: Report) -> Text:
    """Draw the size of the context over the requests: as it was, as it was sent, the window."""
    raw, view = _columns(report.raw_sizes), _columns(report.view_sizes)
    top = max([*raw, report.window], default=1)
    text = Text()
    for row in range(_HEIGHT, 0, -1):
        low, high = top * (row - 1) / _HEIGHT, top * row / _HEIGHT
        empty = ("─", _WINDOW) if low < report.window <= high else (" ", "")
        cells = [
            ("█", _VIEW) if new > low else ("░", _RAW) if old > low else empty
            for old, new in zip(raw, view, strict=True)
        ]
        text.append(f"{int(high):>10,} ", style="dim")
        for (sign, style), run in groupby(cells):
            text.append(sign * len(list(run)), style=style)
        text.append("\n")
    text.append(" " * 11)
    text.append("█ sent  ", style=_VIEW)
    text.append("░ left out  ", style=_RAW)
    text.append("─ window", style=_WINDOW)
    text.append(f"   tokens over {len(report.raw_sizes)} requests\n", style="dim")
    return text


def _columns(sizes: Sequence[int]) -> list[int]:
    """Sample sizes down to the width of the chart, keeping each column's largest."""
    if len(sizes) <= _WIDTH:
        return list(sizes)
    step = len(sizes) / _WIDTH
    return [max(sizes[int(i * step) : max(int((i + 1) * step), 1)]) for i in range(_WIDTH)]
