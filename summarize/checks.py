"""What a summary must keep before it is taken (being written)."""

from .errors import Rejected
from .summarizer import Summary, SummaryInput


def check(summary: Summary, given: SummaryInput) -> None:
    """Refuse a summary that says nothing, or too much."""
    if summary.state.is_empty:
        raise Rejected("empty")
    if summary.state.chars > given.state_chars:
        raise Rejected("not shorter")
