"""Has wanted summaries made: by the host's summarizer, else by the one that needs no model."""

import logging

from .policy import SummaryPolicy
from .stages import Shelved, Wanted
from .summarize import Rejected, Summarizer, Summary
from .summarize.checks import check
from .summarize.extractive import ExtractiveSummarizer

_LOG = logging.getLogger("compactor")
_TRIES = 2


class Summaries:
    """Asks summarizers, and remembers how often the host's has failed in a row."""

    def __init__(self, summarizer: Summarizer | None) -> None:
        """Use the host's summarizer, where there is one."""
        self._own = summarizer
        self._spare = ExtractiveSummarizer()
        self._failures = 0

    def make(self, wanted: Wanted, policy: SummaryPolicy) -> Shelved:
        """Return what came of it. Never raises because of a summarizer; may take its time."""
        rejected: list[str] = []
        summary = self._ask_own(wanted, policy, rejected)
        if summary is None:
            summary = _ask(self._spare, wanted, rejected)
        for reason in rejected:
            _LOG.warning("a summary was rejected: %s", reason)
        return Shelved(wanted, summary, tuple(rejected))

    def _ask_own(
        self, wanted: Wanted, policy: SummaryPolicy, rejected: list[str]
    ) -> Summary | None:
        if self._own is None:
            return None
        if self._failures >= policy.failures and not wanted.manual:
            rejected.append(f"{self._own.name} failed {self._failures} times in a row")
            return None
        _LOG.info("summarising %d messages (%s)", wanted.span.length, self._own.name)
        for _ in range(_TRIES):
            summary = _ask(self._own, wanted, rejected)
            if summary is not None:
                self._failures = 0
                return summary
        self._failures += 1
        return None


def _ask(summarizer: Summarizer, wanted: Wanted, rejected: list[str]) -> Summary | None:
    try:
        summary = summarizer.summarize(wanted.given)
        if not isinstance(summarizer, ExtractiveSummarizer):  # it invents nothing
            check(summary, wanted.given)
    except Rejected as error:
        rejected.append(f"{summarizer.name}: {error.reason}")
    except Exception as error:  # noqa: BLE001 - a summarizer is foreign code; the view goes on
        rejected.append(f"{summarizer.name}: error: {type(error).__name__}")
    else:
        return summary
    return None
