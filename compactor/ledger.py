"""The sets in force: which decision holds for which block of the history at hand.

For one block the newest decision in force wins. A decision holds wherever its block stands
unchanged; a mask holds only for what the model has consumed there. Decisions whose block is gone
(or, after a rewind, unread again) are dormant: they are kept and may hold again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .decisions import Decision, DecisionSet, Target
from .index import Index
from .policy import Stage


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sets, oldest first, and what they come to for one history.

    `active` gives, by message and block position, the decision in force.
    `saved` estimates the tokens and `saved_chars` counts the characters that they take out of the
    view together; `shown` counts the decisions in force by stage.
    `masked_to` is the newest masked place: masks go oldest first, what stands before had its turn.
    `targets` are the digests of all blocks that decisions were ever about.
    `dormant` are the digests of blocks whose decision does not hold now.
    `contents` gives the SHA-256 behind each handle ever issued.
    """

    sets: tuple[DecisionSet, ...]
    active: Mapping[int, Mapping[int, Decision]]
    saved: int
    saved_chars: int
    shown: Mapping[str, int]
    masked_to: tuple[int, int]
    targets: frozenset[bytes]
    dormant: frozenset[bytes]
    contents: Mapping[str, bytes]

    def decision(self, message: int, block: int) -> Decision | None:
        """Return the decision that holds for a block."""
        return self.active.get(message, {}).get(block)


def empty() -> Ledger:
    """Return a ledger without sets."""
    return Ledger((), {}, 0, 0, {}, (-1, -1), frozenset(), frozenset(), {})


def resolve(sets: Iterable[DecisionSet], index: Index) -> Ledger:
    """Work out from nothing what these sets come to for the indexed history."""
    return _extended(empty(), sets, index)


def extend(ledger: Ledger, one: DecisionSet, index: Index) -> Ledger:
    """Return the ledger with one more set."""
    return _extended(ledger, (one,), index)


def _extended(ledger: Ledger, sets: Iterable[DecisionSet], index: Index) -> Ledger:
    added = tuple(sets)
    decisions = [decision for one in added for decision in one.decisions]
    active, contents = dict(ledger.active), dict(ledger.contents)
    saved, saved_chars = ledger.saved, ledger.saved_chars
    shown, dormant = Counter(ledger.shown), set(ledger.dormant)
    masked_to = ledger.masked_to
    for decision in decisions:
        contents[decision.handle] = decision.content
        place = locate(decision.target, index)
        if place is None or (decision.stage == Stage.MASK and not index.consumed(place[0])):
            dormant.add(decision.target.digest)
            continue
        message, block = place
        facts = index.messages[message].blocks[block]
        before = active.get(message, {}).get(block)
        saved += (before.tokens if before else facts.tokens) - decision.tokens
        saved_chars += (len(before.note) if before else facts.chars) - len(decision.note)
        shown[decision.stage] += 1
        if before:
            shown[before.stage] -= 1
        if decision.stage == Stage.MASK:
            masked_to = max(masked_to, place)
        active[message] = {**active.get(message, {}), block: decision}
    return Ledger(
        (*ledger.sets, *added),
        active,
        saved,
        saved_chars,
        shown,
        masked_to,
        ledger.targets.union(decision.target.digest for decision in decisions),
        frozenset(dormant),
        contents,
    )


def locate(target: Target, index: Index) -> tuple[int, int] | None:
    """Find a target's block: where it stood, else by its occurrence among equal blocks."""
    places = index.places(target.digest)
    hint = (target.message, target.block)
    if hint in places:
        return hint
    return places[target.occurrence] if target.occurrence < len(places) else None


def target(message: int, block: int, index: Index) -> Target:
    """Name the block that stands here."""
    digest = index.messages[message].blocks[block].digest
    places = index.places(digest)
    return Target(digest, message, block, places.index((message, block)))
