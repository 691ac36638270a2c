"""Histories that start with a view of ours: a caller wrote `messages[:] = view.messages`."""

from typing import Any

_Stands = tuple[list[Any], list[Any]]  # a view, and the history that it stands for


class WrittenBack:
    """Maps such a history back to the messages that the view stood for."""

    def __init__(self) -> None:
        """Know of no view yet."""
        self._given: tuple[list[Any], int] | None = None
        self._taken: _Stands = ([], [])

    def gave(self, view: list[Any] | None) -> None:
        """Note the last view; None where it was the history itself. It may grow afterwards."""
        self._given = None if view is None else (view, len(view))

    def took(self, view: list[Any], history: list[Any]) -> None:
        """Note that the caller took `view` for its history; it stands for `history`."""
        self._taken = view, history

    def mapped(self, messages: list[Any], last: list[Any]) -> list[Any]:
        """Return the history that `messages` stand for; most often these themselves.

        `last` is the history that the last view stood for.
        """
        if self._given is not None:
            view = self._given[0][: self._given[1]]
            if _starts(messages, view):
                self.took(view, list(last))
        view, history = self._taken
        if view and _starts(messages, view):
            return [*history, *messages[len(view) :]]
        return messages


def _starts(messages: list[Any], view: list[Any]) -> bool:
    return len(messages) >= len(view) and messages[: len(view)] == view
