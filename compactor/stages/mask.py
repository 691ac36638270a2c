"""Stage 2: what the model has consumed becomes one line each, oldest first.

That goes for tool results, for images and documents, and for the arguments of calls that the
policy names. If, at the end, what it has not consumed is too large on its own, those results keep
a short preview, largest first: they are shortened, never hidden.
"""

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from compactor import notes
from compactor.index import Item
from compactor.messages import Kind
from compactor.policy import Stage
from compactor.tokens import Excess, estimate_bytes

from .draft import Draft

_SHORT_HEAD, _SHORT_TAIL = 500, 200
_NOTE_BYTES = 400  # of JSON, of a result of which a note is left, about


class _Candidate(NamedTuple):
    """A block that may be masked, what that saves at the least, and its arguments."""

    item: Item
    gain: int
    keys: dict[str, int]


def plan(draft: Draft) -> None:
    """Propose masks until the view is down to the policy's target, if they pay."""
    candidates = list(_candidates(draft))
    if draft.worth(draft.size - sum(candidate.gain for candidate in candidates)):
        goal = draft.policy.target * draft.budget.messages
        for item, _, keys in candidates:
            if draft.size <= goal:
                break
            if keys:
                draft.mask_inputs(item, keys)
            else:
                draft.mask(item)


def lighten(draft: Draft, excess: Excess) -> Excess:
    """Mask the oldest consumed images, then the largest blocks, down to the provider's limits.

    Returns what is still above them.
    """
    index = draft.index
    size, images = excess
    old = [
        item
        for item in (*index.results, *index.media)
        if item.alterable
        and item.message >= index.floor
        and _allowed(draft, item)
        and index.consumed(item.message)
        and not index.is_request(item.message)
        and draft.current(item) is None
        and not draft.is_hidden(item.message)
    ]
    with_images = [item for item in old if item.facts.images]
    largest = sorted(old, key=lambda item: item.facts.size, reverse=True)
    for item in sorted(with_images, key=lambda item: item.place):
        if images <= 0:
            break
        if draft.mask(item):
            images, size = images - item.facts.images, size - item.facts.size + _NOTE_BYTES
    for item in largest:
        if size <= 0:
            break
        if draft.current(item) is None and draft.mask(item):
            size -= item.facts.size - _NOTE_BYTES
    return Excess(max(size, 0), max(images, 0))


def _allowed(draft: Draft, item: Item) -> bool:
    policy = draft.policy.mask
    return policy.media if item.facts.kind is Kind.MEDIA else policy.may_mask(item.tool)


def fit(draft: Draft) -> None:
    """Do what is left to do for a view that is larger than the budget when all stages have run."""
    _shorten_new(draft)
    if draft.size > draft.budget.messages:
        _shorten_request(draft)
    if draft.size > draft.budget.messages:  # what did not pay alone may make it fit now
        plan(draft)


def _candidates(draft: Draft) -> Iterator[_Candidate]:
    """Go through what may be masked, oldest first."""
    policy, index = draft.policy.mask, draft.index
    after = (index.floor - 1, -1)
    kept = _kept(draft)
    found = [index.behind(index.results, after)]
    if policy.media:
        found.append(index.behind(index.media, after))
    if policy.inputs:
        found.append(index.behind(index.calls, after))
    for item in merge(*found, key=lambda item: item.place):
        decision = draft.current(item)
        if (
            item.alterable
            and not (decision and decision.stage == Stage.MASK)
            and index.consumed(item.message)
            and item.place not in kept
            and not draft.is_hidden(item.message)
        ):
            candidate = _KINDS[item.facts.kind](draft, item)
            if candidate.gain > 0:
                yield candidate


def _result(draft: Draft, item: Item) -> _Candidate:
    policy = draft.policy.mask
    worth = item.facts.chars > policy.min_chars or item.facts.media
    if not worth or not policy.may_mask(item.tool):
        return _Candidate(item, 0, {})
    longest = notes.longest_mask(item.tool, policy.scent_chars)
    return _Candidate(item, draft.size_of(item) - _note(draft, longest), {})


def _media(draft: Draft, item: Item) -> _Candidate:
    """Images and documents of the current request stay."""
    gain = draft.size_of(item) - _note(draft, notes.LONGEST_TITLE)
    return _Candidate(item, 0 if draft.index.is_request(item.message) else gain, {})


def _call(draft: Draft, item: Item) -> _Candidate:
    policy = draft.policy.mask
    blocks = draft.index.messages[item.message].blocks
    if any(block.kind is Kind.THINKING for block in blocks):
        return _Candidate(item, 0, {})  # signed together with what it thought of
    given = draft.wire.long_inputs(draft.index.plain[item.message], item.block)
    keys = {
        key: chars
        for key, chars in given.items()
        if (item.tool, key) in policy.inputs and chars > policy.min_chars
    }
    long = sum(keys.values())
    each = _note(draft, notes.LONGEST_TITLE)
    return _Candidate(item, draft.budget.amount(long // 4, long) - each * len(keys), keys)


def _note(draft: Draft, chars: int) -> int:
    """Return the size of a note of so many characters."""
    return draft.budget.amount(estimate_bytes(chars), chars)


_KINDS = {Kind.RESULT: _result, Kind.MEDIA: _media, Kind.CALL: _call}


def _kept(draft: Draft) -> set[tuple[int, int]]:
    policy = draft.policy.mask
    room = int(policy.keep_share * draft.budget.messages)
    kept: set[tuple[int, int]] = set()
    for result in reversed(draft.index.results):
        room -= draft.size_of(result)
        if len(kept) >= policy.keep_recent or (room < 0 and len(kept) >= policy.keep_least):
            break
        kept.add(result.place)
    return kept


def _shorten_new(draft: Draft) -> None:
    """Shorten unread results where they alone are too large."""
    room = draft.budget.messages
    new = [result for result in draft.index.unconsumed() if result.alterable]
    if draft.size - sum(map(draft.size_of, new)) > room:
        return
    for result in sorted(new, key=draft.size_of, reverse=True):
        if draft.size <= room:
            return
        if draft.current(result) is None:
            draft.persist(result, head=_SHORT_HEAD, tail=_SHORT_TAIL)


def _shorten_request(draft: Draft) -> None:
    """Shorten consumed giant texts of the user, the current request's too: the one exception."""
    policy, index = draft.policy, draft.index
    for item in index.texts:
        if (
            item.facts.chars > policy.request_block_chars
            and item.message >= index.floor
            and index.consumed(item.message)
            and draft.current(item) is None
            and not draft.is_hidden(item.message)
        ):
            draft.persist(item, head=policy.persist.preview_chars, tail=policy.persist.tail_chars)
