"""Decide what to leave out of the next request: history, sets and budget in, a set out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise

from .decisions import DecisionSet
from .index import Index
from .ledger import Ledger
from .policy import Policy, Stage
from .stages import PLANNERS, Draft, Manual, Shelved, Wanted, archive, mask
from .tokens import Budget, Excess
from .wire import Wire

ARRIVAL, TRIGGER, COUNT, MANUAL = "arrival", "trigger", "count", "manual"
RESCUE, UNDO = "rescue", "undo"
NO_EXCESS = Excess(0, 0)
_REFILLS = 3  # compactions in a row that were soon full again


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a plan depends on beside history, sets, budget and policy.

    `readable`: the request offers the tool that reads handles. `cold`: the provider's cache holds
    nothing of the prompt any more. `held_back`: the last compaction was undone. `excess`: bytes
    and images above the provider's limits. `same_policy`: the settings are those of the request
    before. `pins`: texts for the note of every range. `manual`: somebody asked for a compaction.
    `shelf`: summaries that were made; `can_wait`: one that is not there may be asked for.
    `read_only`: tools of the request that say that they change nothing. `bound`: thinking is void
    once what was sent before it has changed; `void_from`: an undo has done that to what was said
    since that message. `rescue`: the provider refused the request.
    """

    readable: bool = False
    cold: bool = False
    held_back: bool = False
    excess: Excess = NO_EXCESS
    same_policy: bool = True
    pins: Mapping[str, str] = field(default_factory=dict)
    manual: Manual | None = None
    shelf: tuple[Shelved, ...] = ()
    can_wait: bool = False
    read_only: frozenset[str] = frozenset()
    bound: bool = False
    void_from: int | None = None
    rescue: bool = False


def plan(  # noqa: PLR0913, PLR0917 - everything that a decision may depend on
    wire: Wire, index: Index, ledger: Ledger, budget: Budget, policy: Policy, now: Situation
) -> DecisionSet | Wanted | None:
    """Return the set to take now, or None when there is nothing to leave out.

    New results are shortened whenever they are too large; the other stages run only when the
    view is above the trigger (or, to archive, has too many messages), one after the other while
    it is above the target, and their decisions are one set. Where a summary is due that is not on
    the shelf, that is returned as wanted: with it on the shelf the same call gives the set.
    """
    if index.open_ended():
        return None
    before = size(index, ledger, budget)
    draft = Draft(
        *(wire, index, ledger, budget, policy, now.readable, before),
        pins=now.pins,
        manual=now.manual,
        shelf=now.shelf,
        can_wait=now.can_wait,
        read_only=now.read_only,
    )
    if Stage.PERSIST in policy.stages:
        PLANNERS[Stage.PERSIST](draft)
    arrived = frozenset(draft.blocks)
    reason = ARRIVAL
    share = (
        1.0
        if now.held_back or is_thrashing(index, ledger, policy)
        else trigger(policy, budget, cold=now.cold)
    )
    settled = now.same_policy and _is_settled(index, ledger)
    due = draft.size > budget.messages * share or any(now.excess)
    if now.rescue:
        reason = _rescue(draft, now.excess)
    elif now.manual or (due and not settled):
        reason = _compact(draft, now.excess)
        if draft.wanted is not None:
            return draft.wanted
    if reason == ARRIVAL and _crowded(draft) and not (settled or now.held_back):
        PLANNERS[Stage.ARCHIVE](draft)
        reason = ARRIVAL if draft.range is None else COUNT
    if now.bound and reason != ARRIVAL:
        draft.drop_thinking(_rewritten(draft, arrived))
    if now.bound and now.void_from is not None:
        known = len(draft.blocks)
        draft.drop_thinking(now.void_from)
        reason = UNDO if reason == ARRIVAL and len(draft.blocks) > known else reason
    made = draft.decisions
    if not made:
        return None
    new = tuple(n for n, one in enumerate(made) if getattr(one, "place", None) in arrived)
    chain = b"" if reason in {ARRIVAL, UNDO} else index.chain[-1]
    return DecisionSet(len(index), reason, before, draft.size, made, new, chain)


def without_thinking(draft: Draft, start: int, reason: str) -> DecisionSet | None:
    """Return the set by which the thinking leaves the view from a message on."""
    before = draft.size
    draft.drop_thinking(start)
    made, chain = draft.decisions, draft.index.chain[-1]
    if not made:
        return None
    return DecisionSet(len(draft.index), reason, before, draft.size, made, chain=chain)


def _rewritten(draft: Draft, arrived: frozenset[tuple[int, int]]) -> int:
    """Return the first message of which what was sent changes."""
    places = [one.message for one in draft.decisions if getattr(one, "place", None) not in arrived]
    return min(places, default=len(draft.index))


def size(index: Index, ledger: Ledger, budget: Budget) -> int:
    """Return the size of the view in the budget's unit."""
    if budget.unit == "chars":
        return index.chars[-1] - ledger.saved_chars
    return budget.size(index.sums[-1] - ledger.saved)


def _compact(draft: Draft, excess: Excess) -> str:
    """Let the stages that break the cached prefix propose, if it pays; return the reason."""
    arrived = dict(draft.blocks), draft.size
    draft.began = draft.size  # new results cost no prefix
    if any(excess) and Stage.MASK in draft.policy.stages:
        mask.lighten(draft, excess)
    for stage in draft.policy.stages:
        large = draft.size > draft.policy.target * draft.budget.messages
        asked = stage == Stage.SUMMARIZE and draft.manual is not None
        crowded = stage == Stage.ARCHIVE and _crowded(draft)
        if stage != Stage.PERSIST and (large or crowded or asked):
            PLANNERS[stage](draft)
    if Stage.MASK in draft.policy.stages and draft.size > draft.budget.messages:
        mask.fit(draft)
    if draft.manual is not None:
        return MANUAL
    if any(excess) or draft.worth(draft.size, before=arrived[1]):
        return TRIGGER
    draft.keep_only(*arrived)
    return ARRIVAL


def _rescue(draft: Draft, excess: Excess) -> str:
    """Go down to the target at once, whatever the policy's stages are; nobody is asked anything."""
    goal = draft.policy.target * draft.budget.messages
    too_many_bytes = any(excess)
    if not too_many_bytes or any(mask.lighten(draft, excess)):
        if draft.size > goal:
            mask.plan(draft)
        if draft.size > goal:
            archive.shrink(draft)
    if draft.size > draft.budget.messages:
        mask.fit(draft)
    return RESCUE


def _is_settled(index: Index, ledger: Ledger) -> bool:
    """Tell whether this very history was compacted already: it is not done twice."""
    return bool(ledger.sets) and ledger.sets[-1].chain == index.chain[-1]


def _crowded(draft: Draft) -> bool:
    return Stage.ARCHIVE in draft.policy.stages and archive.is_crowded(draft)


def trigger(policy: Policy, budget: Budget, *, cold: bool = False) -> float:
    """Return the share of the budget above which compaction starts."""
    share = min(policy.cold_trigger, policy.trigger) if cold else policy.trigger
    guessed = budget.anchor is None and budget.unit == "tokens"
    return share - (policy.unanchored if guessed else 0)


def is_thrashing(index: Index, ledger: Ledger, policy: Policy) -> bool:
    """Tell whether the last compactions were full again within a few exchanges of one another.

    Then the next one waits until the prompt would not fit: each costs the cached prefix.
    """
    taken = [one.at for one in ledger.sets if one.reason == TRIGGER][-_REFILLS:]
    if len(taken) < _REFILLS or taken[-1] > len(index):
        return False
    return all(_is_short(index, gap, policy.breaker_turns) for gap in pairwise(taken))


def _is_short(index: Index, gap: tuple[int, int], turns: int) -> bool:
    """Tell whether no more exchanges than so many start in a stretch of the history."""
    starts = filter(index.is_boundary, range(*gap))
    return next(islice(starts, turns, None), None) is None
