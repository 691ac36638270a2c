"""What is said of a view beside its messages: its sizes, and what takes the room in it."""

import heapq

from .decisions import DecisionSet
from .policy import Stage
from .render import Renderer
from .tokens import Budget
from .view import Contributor, Stats

_LARGEST = 5


def stats(renderer: Renderer, one: DecisionSet | None, room: Budget, rewritten: range) -> Stats:
    """Return the sizes of a view; `rewritten` are positions that the provider's cache lost."""
    index, ledger = renderer.index, renderer.ledger
    view_tokens = one.after if one else room.size(renderer.estimated)
    return Stats(
        original_chars=index.chars[-1],
        view_chars=index.chars[-1] - ledger.saved_chars,
        original_tokens=view_tokens + ledger.saved,
        view_tokens=view_tokens,
        window=room.window,
        persisted=ledger.shown.get(Stage.PERSIST, 0),
        masked=ledger.shown.get(Stage.MASK, 0),
        archived_messages=ledger.shown.get(Stage.ARCHIVE, 0),
        rewritten_tokens=sum(
            facts.tokens
            for position in rewritten
            if position < len(index)
            for facts in renderer.facts(position)
        ),
    )


class Largest:
    """Finds the largest blocks of a view; what it shares with the last one is known."""

    def __init__(self) -> None:
        """Start with a view that nobody has looked at."""
        self._counted = 0  # messages of the history whose place in the view was searched
        self._found: tuple[Contributor, ...] = ()

    def of(self, renderer: Renderer) -> tuple[Contributor, ...]:
        """Name the largest blocks of the view as it is now."""
        counted, found = self._counted, self._found
        if renderer.changed < counted:
            counted, found = 0, ()
        at = renderer.offset(counted)
        new = []
        for position in range(counted, len(renderer.index)):
            for facts in renderer.facts(position):
                new += [
                    Contributor(at, number, block.kind, renderer.index.tool(block), block.tokens)
                    for number, block in enumerate(facts.blocks)
                ]
                at += 1
        largest = heapq.nlargest(_LARGEST, [*found, *new], key=lambda each: each.tokens)
        self._counted, self._found = len(renderer.index), tuple(largest)
        return self._found
