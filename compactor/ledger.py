"""The sets in force: which decision holds for which block or range of the history at hand.

The newest decision in force wins. A decision holds wherever its block or its range stands
unchanged; masks and ranges hold only for what the model has consumed there. A range hides the
decisions inside it. Decisions of which the block is gone (or, after a rewind, unread again) are
dormant: they are kept and may hold again.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .decisions import AnyDecision, Decision, DecisionSet, RangeDecision, Span, Target, range_digest
from .index import Index
from .messages import Kind
from .policy import Stage

Active = Mapping[int, Mapping[int, Decision]]


@dataclass(frozen=True, slots=True)
class Hidden:
    """The messages from `start` up to, not including, `end`, and the decision that hides them."""

    start: int
    end: int
    decision: RangeDecision


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sets, oldest first, and what they come to for one history.

    `active` gives, by message and block position, the decision in force for a block, inside
    ranges too; `ranges` are those in force, in order and apart.
    `saved` estimates the tokens and `saved_chars` counts the characters that they take out of the
    view together; `shown` counts the decisions whose note stands in the view, by stage.
    `targets` are the digests of all blocks that decisions were ever about, and of the first
    messages of ranges. `dormant` are those of the decisions that do not hold now.
    `contents` gives what verifies the original behind each handle ever issued.
    """

    sets: tuple[DecisionSet, ...]
    active: Active
    ranges: tuple[Hidden, ...]
    saved: int
    saved_chars: int
    shown: Mapping[str, int]
    targets: frozenset[bytes]
    dormant: frozenset[bytes]
    contents: Mapping[str, bytes]

    def decision(self, message: int, block: int) -> Decision | None:
        """Return the decision that holds for a block."""
        return self.active.get(message, {}).get(block)

    def hidden(self, message: int) -> Hidden | None:
        """Return the range that hides a message."""
        return _around(self.ranges, message)


def empty() -> Ledger:
    """Return a ledger without sets."""
    return Ledger((), {}, (), 0, 0, {}, frozenset(), frozenset(), {})


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
    placed: list[tuple[int, int]] = []
    spans: list[Hidden] = []
    dormant = set(ledger.dormant)
    for decision in decisions:
        contents[decision.handle] = decision.content
        if isinstance(decision, RangeDecision):
            if (start := find(decision, index)) is None:
                dormant.add(decision.span.first)
            else:
                spans.append(Hidden(start, start + decision.span.length, decision))
            continue
        place = locate(decision.target, index)
        if place is None or not _holds(decision, place, index):
            dormant.add(decision.target.digest)
            continue
        message, block = place
        active[message] = {**active.get(message, {}), block: decision}
        placed.append(place)
    ranges = _apart([*ledger.ranges, *spans])
    if spans:
        totals = _totals(active, _places(active), ranges, index)
    else:
        totals = _added(ledger, active, placed, index)
    return Ledger(
        (*ledger.sets, *added),
        active,
        ranges,
        *totals,
        ledger.targets.union(map(_key, decisions)),
        frozenset(dormant),
        contents,
    )


def _holds(decision: Decision, place: tuple[int, int], index: Index) -> bool:
    """Tell whether a decision holds for the block that stands here: it never hides what is unread.

    Of the current request only a giant text is shortened.
    """
    message, number = place
    if decision.stage == Stage.THINKING:
        return True
    block = index.messages[message].blocks[number]
    if block.kind is Kind.RESULT and decision.stage == Stage.PERSIST:
        return True
    shortened = block.kind is Kind.TEXT and decision.stage == Stage.PERSIST
    asked = block.human and message == index.request
    return index.consumed(message) and (shortened or not asked)


def _key(decision: AnyDecision) -> bytes:
    if isinstance(decision, RangeDecision):
        return decision.span.first
    return decision.target.digest


def _apart(ranges: Sequence[Hidden]) -> tuple[Hidden, ...]:
    """Keep of ranges, given oldest first, the newest of those that meet."""
    kept: list[Hidden] = []
    for one in reversed(ranges):
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return tuple(sorted(kept, key=lambda one: one.start))


def _around(ranges: Sequence[Hidden], message: int) -> Hidden | None:
    at = bisect_right(ranges, message, key=lambda one: one.start) - 1
    return ranges[at] if at >= 0 and message < ranges[at].end else None


def _places(active: Active) -> list[tuple[int, int]]:
    return [(message, block) for message, blocks in active.items() for block in blocks]


def _totals(
    active: Active, places: Iterable[tuple[int, int]], ranges: Sequence[Hidden], index: Index
) -> tuple[int, int, Mapping[str, int]]:
    """Return the tokens and characters that decisions at these places save, and their stages."""
    saved = saved_chars = 0
    shown: Counter[str] = Counter()
    for one in ranges:
        saved += index.sums[one.end] - index.sums[one.start] - one.decision.tokens
        saved_chars += index.chars[one.end] - index.chars[one.start] - one.decision.chars
        shown[one.decision.stage] += one.end - one.start
    for message, block in places:
        if _around(ranges, message) is None:
            decision, facts = active[message][block], index.messages[message].blocks[block]
            saved += facts.tokens - decision.tokens
            saved_chars += facts.chars - decision.chars
            shown[decision.stage] += 1
    return saved, saved_chars, shown


def _added(
    ledger: Ledger, active: Active, placed: Sequence[tuple[int, int]], index: Index
) -> tuple[int, int, Mapping[str, int]]:
    """Return the totals of a ledger to which block decisions were added."""
    before = [place for place in {*placed} if ledger.decision(*place)]
    was = _totals(ledger.active, before, ledger.ranges, index)
    now = _totals(active, {*placed}, ledger.ranges, index)
    shown = Counter(ledger.shown)
    shown.update(now[2])
    shown.subtract(was[2])
    return ledger.saved - was[0] + now[0], ledger.saved_chars - was[1] + now[1], shown


def locate(target: Target, index: Index) -> tuple[int, int] | None:
    """Find a target's block: where it stood, else by its occurrence among equal blocks."""
    places = index.places(target.digest)
    hint = (target.message, target.block)
    if hint in places:
        return hint
    return places[target.occurrence] if target.occurrence < len(places) else None


def find(decision: RangeDecision, index: Index) -> int | None:
    """Return where a range decision holds: its messages stand there, consumed, the request safe."""
    start = find_span(decision.span, index)
    if start is None:
        return None
    end, request = start + decision.span.length, index.request
    asked = request is not None and start <= request < end
    safe = not asked or index.messages[request or 0].digest == decision.request
    whole = index.is_boundary(start) and index.is_boundary(end)
    return start if whole and safe and index.consumed(end - 1) else None


def find_span(span: Span, index: Index) -> int | None:
    """Return where the messages of a span stand: where they stood, else the first place."""
    starts = sorted(index.starts(span.first), key=lambda start: start != span.start)
    for start in starts:
        messages = index.messages[start : start + span.length]
        if range_digest([facts.digest for facts in messages]) == span.digest:
            return start
    return None


def target(message: int, block: int, index: Index) -> Target:
    """Name the block that stands here."""
    digest = index.messages[message].blocks[block].digest
    places = index.places(digest)
    return Target(digest, message, block, places.index((message, block)))


def span(start: int, end: int, index: Index) -> Span:
    """Name the messages from `start` up to, not including, `end`."""
    digests = [facts.digest for facts in index.messages[start:end]]
    return Span(range_digest(digests), digests[0], start, end - start)
