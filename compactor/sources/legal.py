"""Make a recorded history one that the Messages API takes, and lose nothing.

Programs write rows when things happen, so a result may stand after a queued
text of the human, or after another reply; calls that were interrupted have no
result at all. Each call's results are moved directly behind it, what has no
counterpart goes (with a warning), and no result is made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from .blocks import clean, settle
from .draft import Block, Draft, blocks_of
from .ids import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The one text that is put in: a history must start with a user message, and
# to drop replies instead would drop every result that hangs on them.
NO_BEGINNING = "[The beginning of this conversation was not recorded.]"

# For the index of an assistant message: its results, and where they stand.
_Answers = dict[int, list[tuple[int, Block]]]


def repair(drafts: Iterable[Draft], warnings: list[str]) -> list[Draft]:
    """Return the drafts as a legal history; the drafts given are used up."""
    cleaned = clean(drafts, warnings)
    answers = _pair(cleaned, warnings)
    history: list[Draft] = []
    lost = False
    for draft in _arrange(cleaned, answers):
        draft.gap |= lost
        kept = settle(draft, warnings)
        lost = draft.gap and not kept
        if kept:
            history.append(draft)
    if history and history[0].role != "user":
        warnings.append(
            f"line {history[0].line}: the history starts with a reply, a note put first"
        )
        history[0].gap = True
        history.insert(0, Draft("user", NO_BEGINNING, history[0].line, meta=True))
    return history


@dataclass(slots=True)
class _Call:
    owner: int
    block: Block
    answered: bool = False


def _pair(drafts: list[Draft], warnings: list[str]) -> _Answers:
    """Find each call's result, and take out what has no counterpart."""
    calls = _calls(drafts)
    answers: _Answers = {}
    for index, draft in enumerate(drafts):
        for block in _of_type(draft, "tool_result"):
            name = block["tool_use_id"]
            call = _asked(calls.get(name, []), index)
            if call is None:
                reason = "a second result for a call" if name in calls else "a result without call"
                warnings.append(f"line {draft.line}: {reason} left out")
                _gap_after(drafts, index)
                continue
            call.answered = True
            block["tool_use_id"] = call.block["id"]
            answers.setdefault(call.owner, []).append((index, block))
            if any(between.role == "assistant" for between in drafts[call.owner + 1 : index]):
                warnings.append(f"line {draft.line}: a late result moved to its call")
    for call in (call for known in calls.values() for call in known):
        # At the very end all calls of a reply may be open, some may not.
        pending = call.owner == len(drafts) - 1 and call.owner not in answers
        if not call.answered and not pending:
            owner = drafts[call.owner]
            owner.content = [block for block in owner.content if block is not call.block]
            warnings.append(f"line {owner.line}: a call without a result left out")
            _gap_after(drafts, call.owner)
    return answers


def _gap_after(drafts: list[Draft], index: int) -> None:
    """Mark the next request: it was made with more than this history holds."""
    for draft in islice(drafts, index + 1, None):
        if draft.role == "assistant":
            draft.gap = True
            return


def _calls(drafts: list[Draft]) -> dict[str, list[_Call]]:
    """All calls by recorded id; their blocks get ids that the provider takes."""
    calls: dict[str, list[_Call]] = {}
    names = Names()
    for index, draft in enumerate(drafts):
        for block in _of_type(draft, "tool_use"):
            known = calls.setdefault(block["id"], [])
            if known and known[-1].owner == index:
                # The same call twice in one reply: the row was written while it
                # streamed, and again when it was whole.
                early = known.pop().block
                draft.content = [item for item in draft.content if item is not early]
                block["id"] = early["id"]
            else:
                block["id"] = names.unique(block["id"])
            known.append(_Call(index, block))
    return calls


def _asked(calls: list[_Call], index: int) -> _Call | None:
    """Pick the call that a result at `index` answers: the nearest open one before it."""
    waiting = [call for call in calls if not call.answered]
    before = [call for call in waiting if call.owner < index]
    return before[-1] if before else next(iter(waiting), None)


def _of_type(draft: Draft, kind: str) -> list[Block]:
    if isinstance(draft.content, str):
        return []
    return [block for block in draft.content if block.get("type") == kind]


def _arrange(drafts: list[Draft], answers: _Answers) -> Iterator[Draft]:
    """Yield each assistant message, then its results, then the other content."""
    start = 0
    while start < len(drafts):
        end = start + 1
        while end < len(drafts) and drafts[end].role != "assistant":
            end += 1
        if drafts[start].role == "assistant":
            yield drafts[start]
        yield from _turn(drafts, range(start, end), answers.get(start, []))
        start = end


def _turn(drafts: list[Draft], places: range, answers: list[tuple[int, Block]]) -> Iterator[Draft]:
    """Yield the user messages of one turn, results first.

    Results stay in the messages they came in; separate user messages are legal.
    """
    batches: dict[int, list[Block]] = {}
    for index, block in answers:
        batches.setdefault(index, []).append(block)
    users = [index for index in places if drafts[index].role == "user"]
    others = {index: other for index in users if (other := _others(drafts[index]))}
    # Other content may share the message of the last result, if nothing that
    # stood before it has to come after it now.
    last = max(batches, default=-1)
    shared = last if last in others and min(others) == last else -1
    for index, blocks in sorted(batches.items()):
        source = drafts[index]
        rest = others.pop(index) if index == shared else []
        meta = source.meta or not rest
        yield Draft("user", [*blocks, *rest], source.line, meta=meta, gap=source.gap)
    for index, other in others.items():
        source = drafts[index]
        content = source.content if isinstance(source.content, str) else other
        yield Draft("user", content, source.line, meta=source.meta, gap=source.gap)


def _others(draft: Draft) -> list[Block]:
    return [block for block in blocks_of(draft.content) if block.get("type") != "tool_result"]
