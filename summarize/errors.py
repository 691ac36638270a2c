"""What can be wrong with a summary: its errors.

SummaryError (ValueError)
├── Rejected    what a summarizer gave cannot be used; `reason` says why
└── BadState    a state that is none: a field that is missing or unknown, of another type
"""

from collections.abc import Mapping


class SummaryError(ValueError):
    """A summary that cannot be had or used. No text of it holds content of a conversation."""


class Rejected(SummaryError):
    """What a summarizer gave cannot be used.

    Args:
        reason: one of a few words, without content: `"error: APITimeoutError"`, `"empty"`,
            `"cut off"`, `"not the schema"`, `"not shorter"`, `"unknown path"`, …
        calls: calls of a model that were made for it.
        usage: what the provider reported for them, added up: they are paid for all the same.

    """

    def __init__(
        self, reason: str, *, calls: int = 0, usage: Mapping[str, int] | None = None
    ) -> None:
        """Keep the reason, and what it has cost to come to it."""
        super().__init__(f"the summary was rejected: {reason}")
        self.reason = reason
        self.calls = calls
        self.usage: Mapping[str, int] = dict(usage or {})


class BadState(SummaryError):
    """A value that is no session state."""
