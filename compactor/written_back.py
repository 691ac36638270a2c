"""Histories that start with a view of ours: a caller wrote `messages[:] = view.messages`."""

from typing import Any

_FEW = 64  # messages
_Stands = tuple[list[Any], list[Any]]  # a view, and the history that it stands for


class WrittenBack:
    """Maps such a history back to the messages that the view stood for."""

    def __init__(self) -> None:
        """Know of no view yet."""
        self._given: tuple[list[Any], int] | None = None
        self._known: list[_Stands] = []  # the newest last

    def gave(self, view: list[Any] | None) -> None:
        """Note the last view; None where it was the history itself. It may grow afterwards."""
        self._given = None if view is None else (view, len(view))

    def took(self, view: list[Any], history: list[Any]) -> None:
        """Note that `view` may stand at the start of what comes, for `history`."""
        self._known = [*self._known[-1:], (view, history)]

    def settle(self, last: list[Any]) -> None:
        """Keep what the last view stood for, `last`, before that is forgotten."""
        if self._given is not None:
            self.took(self._given[0][: self._given[1]], last)
            self._given = None

    def mapped(self, messages: list[Any], plain: list[Any], sent: int) -> list[Any]:
        """Return the history that `messages` stand for; most often these themselves.

        The last view stood for the first `sent` messages of `plain`.
        """
        if self._given is not None and _starts(messages, *self._given):
            self.settle(plain[:sent])
        for view, history in reversed(self._known):
            if _starts(messages, view, len(view)):
                return [*history, *messages[len(view) :]]
        return messages


def _starts(messages: list[Any], view: list[Any], length: int) -> bool:
    """Tell whether a history starts with so many messages of a view.

    Mostly it does not, and the first masks stand near its start: little is looked at then.
    """
    if len(messages) < length:
        return False
    start, end = 0, min(_FEW, length)
    while start < end and messages[start:end] == view[start:end]:
        start, end = end, min(2 * end, length)
    return start == length
