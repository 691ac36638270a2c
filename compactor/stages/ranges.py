"""Where ranges may begin and end, and what stays of those that leave: the human's words."""

from bisect import bisect_left
from typing import NamedTuple

from compactor.messages import JsonObject

from .draft import CHARS_A_TOKEN, Draft


def middle(draft: Draft) -> float:
    """Return the size above which masking has not sufficed: between trigger and target."""
    return (draft.policy.trigger + draft.policy.target) / 2 * draft.budget.messages


def boundary(draft: Draft, position: int) -> int | None:
    """Return the first boundary at or behind a position, with an exchange behind it."""
    index = draft.index
    for at in range(max(position, 0), index.last_assistant + 1):
        if index.is_boundary(at):
            return at
    return None


def newest(draft: Draft, start: int, exchanges: int, share: float) -> int:
    """Return where the newest exchanges begin that stay: the open one and as many more as fit."""
    index = draft.index
    at = index.exchange(len(index) - 1)
    room = share * draft.budget.messages
    for _ in range(exchanges - 1):
        before = index.exchange(at - 1) if at > start else start
        room -= sum(map(draft.shown, range(before, at)))
        if before <= start or room < 0:
            break
        at = before
    return at


class Said(NamedTuple):
    """Messages of the human by their number, oldest first, and how many had no room."""

    kept: list[tuple[int, str]]
    left_out: int


def said(draft: Draft, start: int, end: int) -> Said:
    """Return what the human said in a range beside the current request; the newest go first."""
    index, wire, policy = draft.index, draft.wire, draft.policy.archive
    room = min(policy.keep_user_chars, share_chars(draft, policy.keep_user_share))
    older = [at for at in index.human if start <= at < end and at != index.request]
    kept: list[tuple[int, str]] = []
    for at in reversed(older):
        text = "\n".join(map(wire.human_text, request_blocks(draft, at)))
        room -= len(text)
        if room < 0:
            break
        kept.insert(0, (number(draft, at), text))
    return Said(kept, len(older) - len(kept))


def number(draft: Draft, at: int) -> int:
    """Return which of the human's messages stands here, counted from 1."""
    return bisect_left(draft.index.human, at) + 1


def share_chars(draft: Draft, share: float) -> int:
    """Return about how many characters a share of the budget is."""
    scale = 1 if draft.budget.unit == "chars" else CHARS_A_TOKEN
    return int(share * draft.budget.messages * scale)


def request_blocks(draft: Draft, at: int) -> list[JsonObject]:
    """Return the blocks of a message in which the human speaks, as they are."""
    return draft.wire.human_blocks(draft.index.plain[at], draft.index.is_injected)


def system_messages(draft: Draft, start: int, end: int) -> list[JsonObject]:
    """Return the system messages of a range, which hold on, without cache marks."""
    index, wire = draft.index, draft.wire
    found = [at for at in range(start, end) if index.messages[at].role == "system"]
    return wire.joined([wire.marked(index.plain[at], None) for at in found])
