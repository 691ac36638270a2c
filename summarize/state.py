"""What a summary says of a session: a few bounded lists of short strings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from .errors import BadState

MOST_ITEMS = 40  # in one list
LONGEST_ITEM = 600  # characters; longer ones are cut
MOST_CHARS = 16_000  # of all items together
_CUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What has to be known to go on without the messages that it stands for.

    `goal`: what the human wants in the end. `constraints`: what must, must not and should be, by
    the human's word, the latest value where the same thing was said twice. `decisions`: what was
    settled, and why. `facts`: what was found to be true (values, places, versions). `errors`: what
    went wrong, with the exact line. `remaining`: work that is left. `next_step`: what was about to
    be done. At most 40 items a list, 600 characters an item, 16,000 in all.
    """

    goal: str = ""
    constraints: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    next_step: str = ""

    @property
    def chars(self) -> int:
        """Characters of all items, with one for the end of each."""
        return sum(len(item) + 1 for _, item in self._items())

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not any(True for _, _ in self._items())

    def encode(self) -> dict[str, Any]:
        """Encode as a JSON object; what is empty is left out."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v}

    @classmethod
    def decode(cls, value: object) -> Self:
        """Read what `encode` made, or what a model wrote; items are trimmed and bounded.

        Raises:
            BadState: for what is no object of these fields with strings and lists of strings.

        """
        if not isinstance(value, Mapping):
            message = "a state is an object"
            raise BadState(message)
        kinds = {one.name: isinstance(one.default, tuple) for one in fields(cls)}
        if not value.keys() <= kinds.keys():
            message = "a state has a field that is none"
            raise BadState(message)
        made: dict[str, Any] = {}
        for name, given in value.items():
            whole = given if kinds[name] else [given]
            if not isinstance(whole, list | tuple) or not all(isinstance(s, str) for s in whole):
                message = f"{name}: {'a list of text' if kinds[name] else 'text'} is needed"
                raise BadState(message)
            items = _tidied(whole)
            made[name] = items if kinds[name] else "".join(items)
        return cls(**made).fitted(MOST_CHARS)

    def fitted(self, chars: int) -> Self:
        """Return a state of at most so many characters: the least needed items go, whole.

        Of each list the newest (last) stay. Constraints, what remains, the next step and the goal
        stay longest; then decisions, facts and errors.
        """
        kept: dict[str, Any] = {one.name: one.default for one in fields(self)}
        room = chars
        for name in ("next_step", "goal"):
            text = getattr(self, name)
            if text and len(text) < room:
                kept[name] = text
                room -= len(text) + 1
        for name in ("constraints", "remaining", "decisions", "facts", "errors"):
            for item in reversed(getattr(self, name)[-MOST_ITEMS:]):
                if len(item) < room:
                    kept[name] = (item, *kept[name])
                    room -= len(item) + 1
        return replace(self, **kept)

    def _items(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for one in fields(self):
            value = getattr(self, one.name)
            found += [(one.name, item) for item in ((value,) if isinstance(value, str) else value)]
        return [(name, item) for name, item in found if item]


def _tidied(items: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return items in one line each, bounded, without empty ones and repetitions."""
    text = (item.encode("utf-8", "replace").decode() for item in items)  # a file takes no surrogate
    lines = (" ".join(item.split()) for item in text)
    cut = (s if len(s) <= LONGEST_ITEM else s[: LONGEST_ITEM - 1] + _CUT for s in lines if s)
    return tuple(dict.fromkeys(cut))
