"""What is said of a view beside its messages: its sizes, and what takes the room in it."""

import heapq
from typing import Any

from .arguments import Room
from .decisions import DecisionSet
from .policy import Policy, Stage
from .render import Renderer
from .tokens import DEFAULT_WINDOW, Budget
from .view import Contributor, Stats, View

_LARGEST = 5


def stats(renderer: Renderer, room: Budget, rewritten: range) -> Stats:
    """Return the sizes of a view; `rewritten` are positions that the provider's cache lost."""
    index, ledger = renderer.index, renderer.ledger
    view_tokens = room.size(renderer.estimated)
    made = next((one.decision.summary for one in ledger.ranges if one.decision.summary), {})
    return Stats(
        original_chars=index.chars[-1],
        view_chars=index.chars[-1] - ledger.saved_chars,
        original_tokens=view_tokens + room.scaled(ledger.saved),
        view_tokens=view_tokens,
        window=room.window,
        persisted=ledger.shown.get(Stage.PERSIST, 0),
        masked=ledger.shown.get(Stage.MASK, 0),
        archived_messages=ledger.shown.get(Stage.ARCHIVE, 0),
        summarized_messages=ledger.shown.get(Stage.SUMMARIZE, 0),
        rewritten_tokens=sum(
            facts.tokens
            for position in rewritten
            if position < len(index)
            for facts in renderer.facts(position)
        ),
        summarizer=made.get("by"),
        summary_rejected=tuple(made.get("rejected", ())),
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


def describe(  # noqa: PLR0913, PLR0917 - a view's parts
    renderer: Renderer,
    shown: list[Any],
    one: DecisionSet | None,
    measured: Stats,
    space: Room,
    largest: Largest,
    stable: int,
    rewrites: int | None,
    degraded: str | None,
) -> View:
    """Put a view together; `stable` and `rewrites` are positions of the history."""
    full = space.is_full(measured.view_tokens, measured.view_chars)
    limits, index = space.limits, renderer.index
    if any(limits.excess(index.size, index.images)):
        full = full or any(limits.excess(*renderer.weight()))
    return View(
        messages=shown,
        changed=renderer.is_changed,
        decisions=one.decisions if one else (),
        rewrites_from=None if rewrites is None else renderer.offset(rewrites),
        stable_prefix=renderer.offset(stable),
        stats=measured,
        over_budget=full,
        largest=largest.of(renderer) if full else (),
        unfinished=index.open_ended(),
        degraded=degraded,
    )


def untouched(messages: list[Any], policy: Policy) -> View:
    """Return the history itself: switched off, nothing is looked at or counted."""
    measured = Stats(
        original_chars=0,
        view_chars=0,
        original_tokens=0,
        view_tokens=0,
        window=policy.window or DEFAULT_WINDOW,
        persisted=0,
        masked=0,
        archived_messages=0,
        summarized_messages=0,
        rewritten_tokens=0,
    )
    return View(
        messages=messages,
        changed=False,
        decisions=(),
        rewrites_from=None,
        stable_prefix=0,
        stats=measured,
        over_budget=False,
        largest=(),
        unfinished=False,
        degraded=None,
    )
