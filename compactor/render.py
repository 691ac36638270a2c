"""From a history and its sets to the messages that are sent, step by step as both grow."""

from collections.abc import Iterable, Sequence
from typing import Any

from .decisions import DecisionSet
from .index import Edit, Index
from .ledger import empty, extend, resolve
from .messages import JsonObject, Message, link
from .policy import INJECTED, Stage
from .wire import Wire

_HOT = 8  # newest messages, among which clients move their cache marks


class Renderer:
    """The view of one history: its index, its ledger, and the messages that give way.

    The session and the reader of transcripts both go through it, so that what is rebuilt from a
    transcript is made by the code that made it first.
    """

    def __init__(self, wire: Wire, not_human: str = INJECTED) -> None:
        """Start with an empty history and no set."""
        self.wire = wire
        self.index = Index(wire, not_human)
        self.ledger = empty()
        self.changed = 0  # first message of the view that differs from the view before
        self._replaced: dict[int, tuple[JsonObject, Message]] = {}
        self._untouched = 0  # what `changed` was before the newest set
        self.marks: list[list[int]] = []
        self._marked: set[int] = set()
        self._chain: list[bytes] | None = None  # of the view, where it is not the history's

    def update(self, messages: Sequence[object]) -> Edit:
        """Take in the history as it is now.

        Raises:
            BadMessage: for a message that cannot be sent or recorded; nothing has changed then.

        """
        edit = self.index.sync(messages)
        self.changed = edit.start
        revived = edit.added and (
            any(map(self.index.places, self.ledger.dormant)) or self._is_about(edit)
        )
        inside = edit.start + edit.added < len(self.index)
        if edit.removed or inside or revived:
            self._resolve(self.ledger.sets, edit)
        for position in edit.touched:
            if position in self._replaced:
                self._replaced[position] = self._render(position)
        end, shift = edit.start + edit.removed, edit.added - edit.removed
        self._marked = {p for p in self._marked if p < edit.start} | {
            p + shift for p in self._marked if p >= end
        }
        self._marked.update(range(edit.start, edit.start + edit.added), edit.touched)
        self._link()
        return edit

    def _is_about(self, edit: Edit) -> bool:
        """Tell whether a decision is about a block that equals one in the new messages."""
        new = self.index.messages[edit.start : edit.start + edit.added]
        digests = (block.digest for facts in new for block in facts.blocks)
        return not self.ledger.targets.isdisjoint(digests)

    def adopt(self, one: DecisionSet) -> None:
        """Put one more set in force."""
        self._untouched = self.changed
        before = self.ledger.active
        self.ledger = extend(self.ledger, one, self.index)
        for position, decisions in self.ledger.active.items():
            if before.get(position) is not decisions:
                self._replaced[position] = self._render(position)
                self.changed = min(self.changed, position)
        self._link()

    def withdraw(self) -> None:
        """Take the newest set out of force: the check or the disk refused it."""
        self.put(self.ledger.sets[:-1])
        self.changed = self._untouched

    def put(self, sets: Iterable[DecisionSet]) -> None:
        """Put these sets in force in the place of all others."""
        self._resolve(sets, Edit(len(self.index), 0, 0))
        self._link()

    def _resolve(self, sets: Iterable[DecisionSet], edit: Edit) -> None:
        """Work out anew which decisions hold, and keep the replaced messages that still serve."""
        held, kept = self.ledger.active, self._replaced
        self.ledger = resolve(sets, self.index)
        shift, end = edit.added - edit.removed, edit.start + edit.added
        self._replaced = {}
        for position, decisions in self.ledger.active.items():
            new = edit.start <= position < end
            was = position if position < edit.start else position - shift
            if not new and was in kept and held.get(was) == decisions:
                self._replaced[position] = kept[was]
            else:
                self._replaced[position] = self._render(position)
                self.changed = min(self.changed, position)
        for was in kept.keys() - self._replaced.keys():
            self.changed = min(self.changed, was)

    def _render(self, position: int) -> tuple[JsonObject, Message]:
        notes = {
            block: (decision.note, decision.stage == Stage.PERSIST)
            for block, decision in self.ledger.active[position].items()
        }
        message = self.wire.replace(self.index.plain[position], notes)
        return message, self.wire.inspect(message, self.index.is_injected)

    def messages(self, history: list[Any]) -> list[Any]:
        """Return what to send: the caller's own list where nothing is left out.

        `marks` then gives message and block position of each cache mark in it. Clients move marks
        inside dictionaries that the index has seen already; they are looked for where they stood
        last and among the newest messages, since looking everywhere would cost more the longer
        the history is.
        """
        count = len(self.index)
        self._marked.update(range(max(count - _HOT, 0), count))
        marks = {i: self.wire.marks(self.index.plain[i]) for i in self._marked if i < count}
        for position in marks.keys() & self._replaced.keys():
            if marks[position] != self.wire.marks(self._replaced[position][0]):
                self._replaced[position] = self._render(position)
        self._marked = {position for position, blocks in marks.items() if blocks}
        self.marks = [[at, block] for at in sorted(self._marked) for block in marks[at]]
        if not self._replaced:
            return history
        view = list(history)
        for position, (message, _) in self._replaced.items():
            view[position] = message
        return view

    @property
    def estimated(self) -> int:
        """Return the estimated tokens of the view."""
        return self.index.sums[-1] - self.ledger.saved

    @property
    def replaced(self) -> dict[int, Message]:
        """Return the facts of the messages that do not stand in the view as they are."""
        return {position: facts for position, (_, facts) in self._replaced.items()}

    @property
    def chain(self) -> list[bytes]:
        """Return the chain digests of the view: `chain[n]` names its first n messages."""
        return self.index.chain if self._chain is None else self._chain

    def _link(self) -> None:
        if not self._replaced:
            self._chain = None
            return
        if self._chain is None:
            self._chain = self.index.chain[: min(self._replaced) + 1]
        del self._chain[self.changed + 1 :]
        for position in range(len(self._chain) - 1, len(self.index)):
            made = self._replaced.get(position)
            facts = made[1] if made else self.index.messages[position]
            self._chain.append(link(self._chain[-1], facts.digest))
