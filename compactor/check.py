"""What every outgoing view must satisfy.

A view may have the defects that its history has (the provider will judge those), never one of
its own. Pairing, order and roles follow
https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .decisions import DecisionSet
from .index import Index, turn_end
from .ledger import Ledger
from .messages import Block, Kind, Message
from .policy import Stage

_ROLES = ("user", "assistant", "system")


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


def violations(
    index: Index, ledger: Ledger, replaced: Mapping[int, Message], one: DecisionSet
) -> list[Defect]:
    """Find what a set has made wrong in a view, of which `replaced` gives what gave way.

    A view must have no defect that its history lacks, show every result that the model has not
    seen, and leave everything but the results that it hides as it is. Only the exchanges that the
    set changes are looked at: the others passed before.
    """
    found: set[Defect] = set()
    changed = {decision.target.message for decision in one.decisions}
    for start in {index.exchange(position) for position in changed}:
        end = index.exchange_end(start) + 1  # with what shows that the exchange is over
        old = index.messages[start:end]
        new = [replaced.get(start + i) or facts for i, facts in enumerate(old)]
        found |= defects(new) - defects(old)
    for position in changed:
        found |= _changes(index, ledger, position, replaced[position])
    return sorted(found)


def _changes(index: Index, ledger: Ledger, position: int, new: Message) -> set[Defect]:
    old = index.messages[position]
    found: set[Defect] = set()
    if old.role != new.role or len(old.blocks) != len(new.blocks):
        return {Defect(position, "a message that changed its shape")}
    for number, (was, now) in enumerate(zip(old.blocks, new.blocks, strict=True)):
        decision = ledger.decision(position, number)
        if decision is None:
            if was.digest != now.digest:
                found.add(Defect(position, "a block that no decision names was changed"))
        elif was.kind is not Kind.RESULT or was.call_id != now.call_id:
            found.add(Defect(position, "something other than a result was hidden"))
        elif not now.chars or now.tokens >= was.tokens:
            found.add(Defect(position, "a result that was emptied or did not shrink"))
        elif decision.stage == Stage.MASK and not index.consumed(position):
            found.add(Defect(position, "an unread result that was masked"))
    return found
