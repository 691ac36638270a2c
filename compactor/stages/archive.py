"""Stage 3: the middle of a long history gives way to one note, with what the human said in it.

By count where the policy sets a number of messages; by size where masking has not sufficed.
"""

from itertools import accumulate

from compactor import notes
from compactor.decisions import range_digest
from compactor.messages import JsonObject
from compactor.policy import Stage

from .draft import CHARS_A_TOKEN, Draft

_NEWEST = 3  # exchanges that stay where it goes by size
_NEWEST_SHARE = 0.2  # of the budget, that all but the open one may take


def plan(draft: Draft) -> None:
    """Propose to archive what lies between the first messages and the newest exchanges."""
    index = draft.index
    asked = -1 if index.asked is None else index.asked
    start = _boundary(draft, max(draft.policy.archive.keep_head, index.floor, asked + 1))
    if start is None:
        return
    if is_crowded(draft):
        end = _boundary(draft, len(draft.index) - draft.policy.archive.keep_tail)
        if end is not None:
            _archive(draft, start, end)
    if draft.range is None and draft.size > _middle(draft):
        _by_size(draft, start)


def is_crowded(draft: Draft) -> bool:
    """Tell whether the view has more messages than the policy allows."""
    most = draft.policy.archive.max_messages
    hidden = sum(one.end - one.start - len(one.decision.messages) for one in draft.ledger.ranges)
    return most is not None and len(draft.index) - hidden > most


def _middle(draft: Draft) -> float:
    """Return the size from which on it goes by size: between trigger and target."""
    return (draft.policy.trigger + draft.policy.target) / 2 * draft.budget.messages


def _boundary(draft: Draft, position: int) -> int | None:
    """Return the first boundary at or behind a position, with an exchange behind it."""
    index = draft.index
    for at in range(max(position, 0), index.last_assistant + 1):
        if index.is_boundary(at):
            return at
    return None


def _by_size(draft: Draft, start: int) -> None:
    """Archive as little as takes the view down to the target; if all is too little, all."""
    latest = _latest(draft, start)
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


def _latest(draft: Draft, start: int) -> int:
    """Return where the exchanges start that stay in any case."""
    index = draft.index
    latest = index.exchange(len(index) - 1)
    room = _NEWEST_SHARE * draft.budget.messages
    for _ in range(_NEWEST - 1):
        before = index.exchange(latest - 1) if latest > start else start
        room -= sum(map(draft.shown, range(before, latest)))
        if before <= start or room < 0:
            break
        latest = before
    return latest


def _archive(draft: Draft, start: int, end: int) -> None:
    if end <= start:
        return
    digests = [facts.digest for facts in draft.index.messages[start:end]]
    name = draft.name("msgs", range_digest(digests))
    title = notes.archived(name, end - start, readable=draft.readable)
    messages = [draft.wire.user_message(_blocks(draft, title, start, end))]
    draft.hide(Stage.ARCHIVE, start, end, messages + _system(draft, start, end), name)


def _blocks(draft: Draft, title: str, start: int, end: int) -> list[JsonObject]:
    """Return the note's blocks: what it says, and those of the current request if it was inside."""
    index, wire = draft.index, draft.wire
    numbers = {at: n for n, at in enumerate(index.human, 1)}
    policy = draft.policy.archive
    share = policy.keep_user_share * draft.budget.messages
    share *= 1 if draft.budget.unit == "chars" else CHARS_A_TOKEN
    room = min(policy.keep_user_chars, int(share))
    said: list[tuple[int, str]] = []
    older = [at for at in index.human if start <= at < end and at != index.request]
    for at in reversed(older):
        blocks = wire.human_blocks(index.plain[at], index.is_injected)
        text = "\n".join(map(wire.human_text, blocks))
        room -= len(text)
        if room < 0:
            break
        said.insert(0, (numbers[at], text))
    if older:
        title += "\n" + notes.user_messages(said, len(older) - len(said))
    if draft.pins:
        title += "\n" + notes.pinned(draft.pins)
    if index.request is None or not start <= index.request < end:
        return [wire.text_block(title)]
    title += "\n" + notes.current_request(numbers[index.request])
    asked = wire.human_blocks(index.plain[index.request], index.is_injected)
    return [wire.text_block(title), *asked]


def _system(draft: Draft, start: int, end: int) -> list[JsonObject]:
    """Return the system messages of a range, which hold on, without cache marks."""
    index = draft.index
    found = [at for at in range(start, end) if index.messages[at].role == "system"]
    return [draft.wire.marked(index.plain[at], None) for at in found]
