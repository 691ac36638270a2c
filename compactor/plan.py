"""Decide what to leave out of the next request: history, sets and budget in, a set out."""

from .decisions import DecisionSet
from .index import Index
from .ledger import Ledger
from .policy import Policy, Stage
from .stages import PLANNERS, Draft
from .tokens import Budget
from .wire import Wire

ARRIVAL, TRIGGER = "arrival", "trigger"


def plan(  # noqa: PLR0913 - everything that a decision may depend on
    wire: Wire, index: Index, ledger: Ledger, budget: Budget, policy: Policy, *, readable: bool
) -> DecisionSet | None:
    """Return the set to take now, or None when there is nothing to leave out.

    New results are shortened whenever they are too large; the other stages run only when the
    view is above the trigger, one after the other while it is above the target, and their
    decisions are one set.
    """
    if index.open_ended():
        return None
    before = budget.size(index.sums[-1] - ledger.saved)
    draft = Draft(wire, index, ledger, budget, policy, readable, size=before)
    if Stage.PERSIST in policy.stages:
        PLANNERS[Stage.PERSIST](draft)
    reason = ARRIVAL
    if draft.size > budget.messages * trigger(policy, budget):
        arrived = dict(draft.decisions), draft.size
        for stage in policy.stages:
            if stage != Stage.PERSIST and draft.size > policy.target * budget.messages:
                PLANNERS[stage](draft)
        if draft.worth(draft.size, before=arrived[1]):
            reason = TRIGGER
        else:
            draft.decisions, draft.size = arrived
    decisions = tuple(draft.decisions[place] for place in sorted(draft.decisions))
    return DecisionSet(len(index), reason, before, draft.size, decisions) if decisions else None


def trigger(policy: Policy, budget: Budget) -> float:
    """Return the share of the budget above which compaction starts."""
    return policy.trigger - (0 if budget.anchor else policy.unanchored)
