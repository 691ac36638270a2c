"""A stretch of a history becomes a state: what is needed to go on without it."""

from .errors import BadState, Rejected, SummaryError
from .events import Event, What
from .record import Record, record
from .state import SessionState
from .summarizer import Summarizer, Summary, SummaryInput

__all__ = [
    "BadState",
    "Event",
    "Record",
    "Rejected",
    "SessionState",
    "Summarizer",
    "Summary",
    "SummaryError",
    "SummaryInput",
    "What",
    "record",
]
