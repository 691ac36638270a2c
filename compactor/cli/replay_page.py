"""What `compactor replay` prints for people: a table, and on a terminal a chart of the context."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from compactor.policy import STAGES
from compactor.replay import Report

from .terminal import safe

_HEIGHT, _LABEL, _NARROWEST = 12, 11, 40
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_RAW, _VIEW, _WINDOW = "yellow", "green", "red"


def show(reports: Sequence[Report], kept: Path | None) -> None:
    """Print the reports to stdout."""
    console = Console(highlight=False)
    for report in reports:
        if console.is_terminal and report.requests and console.width >= _NARROWEST:
            console.print(_chart(report, min(console.width - 1, 110) - _LABEL))
        for name, value in _facts(report).items():
            console.print(f"[dim]{name:<12}[/]{value}", soft_wrap=True)
    failures = sum(report.failures for report in reports)
    parts = sum(report.decisions.total() for report in reports)
    views = sum(report.requests for report in reports)
    if failures:
        console.print(f"[bold red]{_count(failures, 'proof')} failed[/]")
    elif not views:
        console.print("nothing to prove: no request was recorded in what was read")
    else:
        console.print(
            f"[bold green]proven[/]: {_count(parts, 'left-out part')} read back byte for byte, "
            f"{_count(views, 'view')} rebuilt from the encrypted transcript alone",
            soft_wrap=True,
        )
    if kept is not None:
        names = ", ".join(report.session for report in reports)
        console.print(f"kept in {escape(safe(str(kept)))}: {names}", soft_wrap=True)


def _facts(report: Report) -> dict[str, str]:
    saved = 1 - report.view_tokens / report.raw_tokens if report.raw_tokens else 0.0
    over = f"; {_count(report.over_budget, 'request')} over budget" if report.over_budget else ""
    part = f", part {report.part}" if report.part > 1 else ""
    left_out = [f"{report.decisions[stage]} by {stage}" for stage in STAGES]
    return {
        "session": f"[bold]{escape(safe(Path(report.path).name))}[/]{part}",
        "history": f"{_count(report.messages, 'message')}, {_count(report.requests, 'request')}",
        "tokens sent": f"{report.view_tokens:,} instead of {report.raw_tokens:,} "
        f"({saved:.0%} less, estimated)",
        "largest": f"{report.peak_tokens:,} of a window of {report.window:,}{over}",
        "cost": f"{report.cost_ratio:.0%} of sending everything, under prompt caching; "
        f"{_count(report.prefix_breaks, 'prefix break')}",
        "left out": ", ".join(left_out) if report.decisions else "nothing",
        "vault": f"{report.vault_bytes:,} bytes encrypted, {report.history_bytes:,} of history",
        "proof": f"{report.unreadable} unreadable, {report.differing} differing, "
        f"{_count(report.view_mismatches, 'view mismatch', 'view mismatches')}, "
        f"{_count(report.illegal_views, 'illegal view')}",
        "time": f"{report.seconds:.1f} s",
    }


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _chart(report: Report, width: int) -> Text:
    """Draw the size of the context over the requests: as it was, as it was sent, the window."""
    raw, view = _columns(report.raw_sizes, width), _columns(report.view_sizes, width)
    step = _round_up(max([*raw, report.window], default=1) / _HEIGHT)
    text = Text()
    for row in range(_HEIGHT, 0, -1):
        low, high = step * (row - 1), step * row
        window = low < report.window <= high
        cells = [_cell(old, new, low, step, window) for old, new in zip(raw, view, strict=True)]
        text.append(f"{high:>{_LABEL - 2},} ", style=_WINDOW if window else "dim")
        text.append("┤" if window else "│", style=_WINDOW if window else "dim")
        for (sign, style), run in groupby(cells):
            text.append(sign * len(list(run)), style=style)
        text.append("\n")
    text.append(" " * _LABEL)
    text.append("█ sent  ", style=_VIEW)
    text.append("░ left out  ", style=_RAW)
    text.append("─ window", style=_WINDOW)
    text.append(f"   tokens over {_count(len(report.raw_sizes), 'request')}\n", style="dim")
    return text


def _cell(old: int, new: int, low: int, step: int, window: bool) -> tuple[str, str]:  # noqa: FBT001
    """Return sign and style of one cell: what was sent in eighths, else what was left out."""
    eighths = max(0, min(8, round(8 * (new - low) / step)))
    if eighths == len(_EIGHTHS) - 1 or (eighths and not window):
        return _EIGHTHS[eighths], _VIEW
    if window:
        return "─", _WINDOW
    return ("░", _RAW) if old > low + step / 2 else (" ", "")


def _round_up(step: float) -> int:
    """Round up to 1, 2 or 5 times a power of ten or a half of those, so that labels read well."""
    power = 10 ** max(len(str(int(step))) - 1, 0)
    return next(int(power * n) for n in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if power * n >= step)


def _columns(sizes: Sequence[int], width: int) -> list[int]:
    """Sample sizes down to the width of the chart, keeping each column's largest."""
    if len(sizes) <= width:
        return list(sizes)
    step = len(sizes) / width
    return [max(sizes[int(i * step) : max(int((i + 1) * step), 1)]) for i in range(width)]
