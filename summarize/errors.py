"""What can be wrong with a summary: its errors.

SummaryError (ValueError)
├── Rejected    what a summarizer gave cannot be used; `reason` says why
└── BadState    a state that is none: a field that is missing or unknown, of another type
"""


class SummaryError(ValueError):
    """A summary that cannot be had or used. No text of it holds content of a conversation."""


class Rejected(SummaryError):
    """What a summarizer gave cannot be used.

    Args:
        reason: one of a few words, without content: `"error: APITimeoutError"`, `"empty"`,
            `"cut off"`, `"not the schema"`, `"not shorter"`, `"unknown path"`, …

    """

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"the summary was rejected: {reason}")
        self.reason = reason


class BadState(SummaryError):
    """A value that is no session state."""
