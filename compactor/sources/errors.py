"""What reading a recorded session can raise.

    ValueError
    └── SourceError        path, hint
        └── UnknownFormat  no importer knows the file

A file that cannot be opened raises the system's own `OSError`. Damage inside
a file raises nothing: it is reported in `Recording.warnings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SourceError(ValueError):
    """A recorded session cannot be imported; `hint` says what to do next."""

    def __init__(self, message: str, *, path: Path, hint: str) -> None:
        """Keep the file and the hint for whoever prints the error."""
        super().__init__(message)
        self.path = path
        self.hint = hint


class UnknownFormat(SourceError):
    """The beginning of the file fits none of the known formats."""
