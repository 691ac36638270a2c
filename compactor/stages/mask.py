"""Stage 2: results that the model has consumed become one line each, oldest first.

If what it has not consumed is too large on its own, those results keep a short preview, largest
first: they are shortened, never hidden.
"""

from compactor import notes
from compactor.index import Result
from compactor.policy import Stage
from compactor.tokens import estimate_bytes

from .draft import Draft

_SHORT_HEAD, _SHORT_TAIL = 500, 200


def plan(draft: Draft) -> None:
    """Propose masks until the view is down to the policy's target."""
    _mask(draft)
    _shorten_new(draft)
    if draft.size > draft.budget.messages:  # what did not pay alone may make it fit now
        _mask(draft)


def _mask(draft: Draft) -> None:
    candidates = _candidates(draft)
    if draft.worth(draft.size - sum(gain for _, gain in candidates)):
        goal = draft.policy.target * draft.budget.messages
        for result, _ in candidates:
            if draft.size <= goal:
                break
            draft.mask(result)


def _candidates(draft: Draft) -> list[tuple[Result, int]]:
    """Return what may be masked, oldest first, and the tokens that each saves at the least."""
    policy = draft.policy.mask
    kept = _kept(draft)
    found = []
    for result in draft.index.results_after(draft.ledger.masked_to):
        decision = draft.current(result)
        if (
            not result.alterable
            or (decision and decision.stage == Stage.MASK)
            or not draft.index.consumed(result.message)
            or result.place in kept
        ):
            continue
        longest = notes.longest_mask(result.tool, policy.scent_chars)
        gain = draft.tokens(result) - estimate_bytes(longest)
        if gain > 0 and (result.facts.chars > policy.min_chars or result.facts.media):
            found.append((result, gain))
    return found


def _kept(draft: Draft) -> set[tuple[int, int]]:
    policy = draft.policy.mask
    room = int(policy.keep_share * draft.budget.messages)
    kept: set[tuple[int, int]] = set()
    for result in reversed(draft.index.results):
        room -= draft.tokens(result)
        if len(kept) >= policy.keep_recent or (room < 0 and len(kept) >= policy.keep_least):
            break
        kept.add(result.place)
    return kept


def _shorten_new(draft: Draft) -> None:
    """Shorten unread results where that is what makes the prompt fit."""
    room = draft.budget.messages
    new = [result for result in draft.index.unconsumed() if result.alterable]
    if draft.size - sum(map(draft.tokens, new)) > room:
        return
    for result in sorted(new, key=draft.tokens, reverse=True):
        if draft.size <= room:
            return
        if draft.current(result) is None:
            draft.persist(result, head=_SHORT_HEAD, tail=_SHORT_TAIL)
