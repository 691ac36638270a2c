"""Stage 1: oversized new tool results give way to a preview before any cache holds them."""

from compactor.index import Item

from .draft import Draft


def plan(draft: Draft) -> None:
    """Propose previews for the newest batch of results.

    A single result above its tool's limit is replaced in any case; if the batch is still above
    `batch_chars`, results above `item_chars` follow, largest first, until it fits.
    """
    policy = draft.policy.persist
    batch = draft.index.unconsumed()
    shown = {result.place: _shown(draft, result) for result in batch}
    for result in batch:
        limit = policy.limit(result.tool)
        if limit is not None and _open(draft, result) and result.facts.chars > limit:
            shown[result.place] = _persist(draft, result)
    total = sum(shown.values())
    for result in sorted(batch, key=lambda r: r.facts.chars, reverse=True):
        if total <= policy.batch_chars or result.facts.chars <= policy.item_chars:
            break
        if _open(draft, result) and policy.limit(result.tool) is not None:
            total -= shown[result.place] - _persist(draft, result)


def _open(draft: Draft, result: Item) -> bool:
    return result.alterable and draft.current(result) is None


def _shown(draft: Draft, result: Item) -> int:
    decision = draft.current(result)
    return len(decision.note) if decision else result.facts.chars


def _persist(draft: Draft, result: Item) -> int:
    head, tail = draft.policy.persist.preview(result.tool)
    draft.persist(result, head=head, tail=tail)
    return _shown(draft, result)
