"""Decide what to leave out of the next request: history, sets and budget in, a set out."""

from .decisions import DecisionSet
from .index import Index
from .ledger import Ledger
from .policy import Policy, Stage
from .stages import PLANNERS, Draft, archive, mask
from .tokens import Budget
from .wire import Wire

ARRIVAL, TRIGGER, COUNT = "arrival", "trigger", "count"


def plan(  # noqa: PLR0913 - everything that a decision may depend on
    wire: Wire, index: Index, ledger: Ledger, budget: Budget, policy: Policy, *, readable: bool
) -> DecisionSet | None:
    """Return the set to take now, or None when there is nothing to leave out.

    New results are shortened whenever they are too large; the other stages run only when the
    view is above the trigger (or, to archive, has too many messages), one after the other while
    it is above the target, and their decisions are one set.
    """
    if index.open_ended():
        return None
    before = budget.size(index.sums[-1] - ledger.saved)
    draft = Draft(wire, index, ledger, budget, policy, readable, size=before)
    if Stage.PERSIST in policy.stages:
        PLANNERS[Stage.PERSIST](draft)
    reason = ARRIVAL
    crowded = Stage.ARCHIVE in policy.stages and archive.is_crowded(draft)
    if draft.size > budget.messages * trigger(policy, budget):
        reason = _compact(draft)
    elif crowded:
        PLANNERS[Stage.ARCHIVE](draft)
        reason = ARRIVAL if draft.range is None else COUNT
    made = draft.decisions
    return DecisionSet(len(index), reason, before, draft.size, made) if made else None


def _compact(draft: Draft) -> str:
    """Let the stages that break the cached prefix propose, if it pays; return the reason."""
    arrived = dict(draft.blocks), draft.size
    for stage in draft.policy.stages:
        if stage != Stage.PERSIST and draft.size > draft.policy.target * draft.budget.messages:
            PLANNERS[stage](draft)
    if Stage.MASK in draft.policy.stages and draft.size > draft.budget.messages:
        mask.fit(draft)
    if draft.worth(draft.size, before=arrived[1]):
        return TRIGGER
    draft.keep_only(*arrived)
    return ARRIVAL


def trigger(policy: Policy, budget: Budget) -> float:
    """Return the share of the budget above which compaction starts."""
    return policy.trigger - (0 if budget.anchor else policy.unanchored)
