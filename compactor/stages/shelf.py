"""Summaries that are wanted, and those that were made: planning is pure, others make them."""

from dataclasses import dataclass

from compactor.decisions import Span
from compactor.summarize import Summary, SummaryInput


@dataclass(frozen=True, slots=True)
class Manual:
    """A compaction that somebody asked for; `focus`: what its summary should look at."""

    focus: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A summary that is due: of which messages, from what.

    `turn` counts the summaries of this stretch, one folded over the other, from 1. `manual`:
    somebody asked for it.
    """

    span: Span
    given: SummaryInput
    turn: int
    manual: bool = False


@dataclass(frozen=True, slots=True)
class Shelved:
    """What came of a wanted summary (None: none could be had), and why others were rejected."""

    wanted: Wanted
    summary: Summary | None
    rejected: tuple[str, ...] = ()
