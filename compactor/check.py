"""What every outgoing view must satisfy.

A view may have the defects that its history has (the provider will judge those), never one of
its own. Pairing, order and roles follow
https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .decisions import Decision, DecisionSet, RangeDecision
from .index import LONG_TEXT, turn_end
from .messages import Block, Kind, Message
from .policy import Stage
from .render import Renderer

_ROLES = ("user", "assistant", "system")
_HIDEABLE = (Kind.RESULT, Kind.MEDIA, Kind.CALL, Kind.TEXT)


@dataclass(frozen=True, slots=True, order=True)
class Defect:
    """One thing that is wrong with a sequence of messages; `message` is its position."""

    message: int
    what: str


def defects(messages: Sequence[Message], start: int = 0) -> set[Defect]:
    """Find what a provider would refuse in the exchanges from `start` on.

    Args:
        messages: facts of the whole sequence.
        start: the position where an exchange starts; what stands before is not looked at.

    """
    found: set[Defect] = set()
    if messages and start == 0 and messages[0].role == "assistant":
        found.add(Defect(0, "starts with an assistant message"))
    position = start
    while position < len(messages):
        end = turn_end(messages, position)
        found |= _turn(messages, position, end)
        position = end
    return found


def _turn(messages: Sequence[Message], start: int, end: int) -> set[Defect]:
    found: set[Defect] = set()
    waiting: dict[str, int] = {}
    others = False  # whether anything but results has followed the calls
    for position in range(start, end):
        message = messages[position]
        if message.role not in _ROLES:
            found.add(Defect(position, "a role that does not exist"))
        if not message.blocks and position != len(messages) - 1 and message.role != "system":
            found.add(Defect(position, "an empty message"))
        for block in message.blocks:
            what = None
            if block.kind is Kind.CALL:
                what = _call(message, block, waiting)
                waiting[str(block.call_id)] = position
            elif block.kind is Kind.RESULT:
                what = _result(block, waiting, others=others)
            elif message.role == "user":
                others = True
            if what:
                found.add(Defect(position, what))
    if end < len(messages):
        found |= {Defect(position, "a call without its result") for position in waiting.values()}
    return found


def _call(message: Message, block: Block, waiting: Mapping[str, int]) -> str | None:
    if message.role != "assistant":
        return "a call outside an assistant message"
    return "two calls with one id" if block.call_id in waiting else None


def _result(block: Block, waiting: dict[str, int], *, others: bool) -> str | None:
    if waiting.pop(str(block.call_id), None) is None:
        return "a result without its call"
    return "a result that stands after other content" if others else None


def violations(renderer: Renderer, one: DecisionSet) -> list[Defect]:
    """Find what a set has made wrong in a view.

    A view must have no defect that its history lacks, show every result that the model has not
    seen and the current request, and leave everything but what decisions name as it is. Only the
    exchanges that the set changes are looked at: the others passed before.
    """
    index, found = renderer.index, set[Defect]()
    for start, end in _windows(renderer, one):
        positions = range(start, min(end, len(index)))
        shown = [facts for position in positions for facts in renderer.facts(position)]
        if spoilt := Counter(defect.what for defect in defects(shown)):
            before = Counter(defect.what for defect in defects(index.messages[start:end]))
            found |= {Defect(start, what) for what in spoilt - before}
    for decision in one.decisions:
        if isinstance(decision, RangeDecision):
            found |= _range(renderer, decision)
        elif renderer.ledger.hidden(decision.message) is None:
            found |= _changes(renderer, decision.message)
    return sorted(found)


def _windows(renderer: Renderer, one: DecisionSet) -> set[tuple[int, int]]:
    """Return the runs of exchanges that a set changes, each with what shows that it is over."""
    index, found = renderer.index, set[tuple[int, int]]()
    for decision in one.decisions:
        start = index.exchange(decision.message)
        end = index.exchange_end(start)
        if isinstance(decision, RangeDecision):
            start = index.exchange(max(decision.span.start - 1, 0))
            end = index.exchange_end(decision.span.start + decision.span.length)
        found.add((start, end + 1))
    return found


def _range(renderer: Renderer, decision: RangeDecision) -> set[Defect]:
    index, start = renderer.index, decision.span.start
    end = start + decision.span.length
    found: set[Defect] = set()
    if all(hidden.decision != decision for hidden in renderer.ledger.ranges):
        found.add(Defect(start, "a range that does not stand between exchanges, consumed"))
    shown = {block.digest for facts in renderer.facts(start) for block in facts.blocks}
    if index.request is not None and start <= index.request < end:
        asked = index.messages[index.request].blocks
        if any(block.human and block.digest not in shown for block in asked):
            found.add(Defect(index.request, "the current request was left out"))
    if sum(facts.tokens for facts in renderer.facts(start)) >= index.sums[end] - index.sums[start]:
        found.add(Defect(start, "a range that did not shrink"))
    return found


def _changes(renderer: Renderer, position: int) -> set[Defect]:
    index, ledger = renderer.index, renderer.ledger
    old, new = index.messages[position], renderer.facts(position)[0]
    found: set[Defect] = set()
    stays = [
        number
        for number, block in enumerate(old.blocks)
        if not (block.kind is Kind.THINKING and ledger.decision(position, number))
    ]
    if not stays and new.role == old.role and len(new.blocks) == 1:
        return found
    if old.role != new.role or len(stays) != len(new.blocks):
        return {Defect(position, "a message that changed its shape")}
    for number, now in zip(stays, new.blocks, strict=True):
        was, decision = old.blocks[number], ledger.decision(position, number)
        if decision is None:
            if was.digest != now.digest:
                found.add(Defect(position, "a block that no decision names was changed"))
        elif was.kind not in _HIDEABLE or (was.call_id, was.tool) != (now.call_id, now.tool):
            found.add(Defect(position, "something that must stay was hidden"))
        elif was.human and position == index.request and not _is_long_request(was, decision):
            found.add(Defect(position, "the current request was left out"))
        elif not now.chars or now.tokens >= was.tokens:
            found.add(Defect(position, "a block that was emptied or did not shrink"))
        elif decision.stage == Stage.MASK and not index.consumed(position):
            found.add(Defect(position, "an unread block that was masked"))
    return found


def _is_long_request(block: Block, decision: Decision) -> bool:
    """Tell whether this is the one case in which a part of the request is shortened."""
    return block.kind is Kind.TEXT and decision.stage == Stage.PERSIST and block.chars >= LONG_TEXT
