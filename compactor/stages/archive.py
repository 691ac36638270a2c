"""Stage 3: the middle of a long history gives way to one note, with what the human said in it.

By count where the policy sets a number of messages; by size where masking has not sufficed and
there is no summary to be had.
"""

from itertools import accumulate

from compactor import notes
from compactor.decisions import range_digest
from compactor.messages import JsonObject
from compactor.policy import Stage

from .draft import Draft
from .ranges import boundary, middle, newest, number, request_blocks, said, system_messages

_NEWEST = 3  # exchanges that stay where it goes by size
_NEWEST_SHARE = 0.2  # of the budget, that all but the open one may take


def plan(draft: Draft) -> None:
    """Propose to archive what lies between the first messages and the newest exchanges."""
    start = _start(draft)
    if start is not None and is_crowded(draft):
        end = boundary(draft, len(draft.index) - draft.policy.archive.keep_tail)
        if end is not None:
            _archive(draft, start, end)
    if Stage.SUMMARIZE not in draft.policy.stages:
        fall_back(draft)


def fall_back(draft: Draft) -> None:
    """Propose to archive by size: masking has not sufficed, and no summary takes its place."""
    if draft.range is None and draft.size > middle(draft):
        shrink(draft)


def shrink(draft: Draft) -> None:
    """Propose to archive what takes the view down to the target."""
    start = _start(draft)
    if start is not None:
        _by_size(draft, start)


def is_crowded(draft: Draft) -> bool:
    """Tell whether the view has more messages than the policy allows."""
    most = draft.policy.archive.max_messages
    hidden = sum(one.end - one.start - len(one.decision.messages) for one in draft.ledger.ranges)
    return most is not None and len(draft.index) - hidden > most


def _start(draft: Draft) -> int | None:
    """Return where the middle begins: behind the first messages, or behind a summary of them."""
    index = draft.index
    asked = -1 if index.asked is None else index.asked
    start = boundary(draft, max(draft.policy.archive.keep_head, index.floor, asked + 1))
    held = None if start is None else draft.ledger.hidden(start)
    summarised = held is not None and held.decision.stage == Stage.SUMMARIZE
    return held.end if held is not None and summarised else start


def _by_size(draft: Draft, start: int) -> None:
    """Archive as little as takes the view down to the target; if all is too little, all."""
    latest = newest(draft, start, _NEWEST, _NEWEST_SHARE)
    held = draft.ledger.hidden(start)  # what is archived stays so
    first = (held.end if held else start) + 1
    ends = [at for at in range(first, latest + 1) if draft.index.is_boundary(at)]
    goal, before = draft.policy.target * draft.budget.messages, draft.size
    sums = list(accumulate(map(draft.shown, range(start, latest)), initial=0))
    for end in ends:
        if before - sums[end - start] <= goal or end == ends[-1]:
            _archive(draft, start, end)
            if draft.range is not None and draft.size <= goal:
                break


def _archive(draft: Draft, start: int, end: int) -> None:
    if end <= start:
        return
    digests = [facts.digest for facts in draft.index.messages[start:end]]
    name = draft.name("msgs", range_digest(digests))
    title = notes.archived(name, end - start, readable=draft.readable)
    messages = [draft.wire.user_message(_blocks(draft, title, start, end))]
    draft.hide(Stage.ARCHIVE, start, end, messages + system_messages(draft, start, end), name)


def _blocks(draft: Draft, title: str, start: int, end: int) -> list[JsonObject]:
    """Return the note's blocks: what it says, and those of the current request if it was inside."""
    index, wire = draft.index, draft.wire
    spoken = said(draft, start, end)
    if spoken.kept or spoken.left_out:
        title += "\n" + notes.user_messages(*spoken)
    if draft.pins:
        title += "\n" + notes.pinned(draft.pins)
    if index.request is None or not start <= index.request < end:
        return [wire.text_block(title)]
    title += "\n" + notes.current_request(number(draft, index.request))
    return [wire.text_block(title), *request_blocks(draft, index.request)]
