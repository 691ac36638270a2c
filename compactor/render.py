"""From a history and its sets to the messages that are sent, step by step as both grow.

Positions are those of the history throughout: a range's notes stand at its first message, and
nothing at the others. `offset` says where a position is in the view.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .decisions import DecisionSet, RangeDecision
from .index import Edit, Index
from .ledger import Hidden, empty, extend, resolve
from .messages import JsonObject, Message, Note, link
from .notes import THINKING
from .policy import INJECTED, Stage
from .wire import Wire

_HOT = 8  # newest messages, among which clients move their cache marks


@dataclass(frozen=True, slots=True)
class _Notes:
    """What stands in a range's place: messages, their facts, and the mark on the first of them."""

    decision: RangeDecision
    messages: tuple[JsonObject, ...]
    facts: tuple[Message, ...]
    mark: object = None


class Renderer:
    """The view of one history: its index, its ledger, and the messages that give way.

    The session and the reader of transcripts both go through it, so that what is rebuilt from a
    transcript is made by the code that made it first.
    """

    def __init__(self, wire: Wire, not_human: str = INJECTED) -> None:
        """Start with an empty history and no set."""
        self.wire = wire
        self.not_human = not_human
        self.index = Index(wire, not_human)
        self.ledger = empty()
        self.changed = 0  # first message of the view that differs from the view before
        self._replaced: dict[int, tuple[JsonObject, Message]] = {}
        self._notes: dict[int, _Notes] = {}  # by the first message of the range
        self._untouched = 0  # what `changed` was before the newest set
        self.marks: list[list[int]] = []
        self._marked: set[int] = set()
        self._chain: list[bytes] | None = None  # of the view, where it is not the history's
        self._view: list[Any] | None = None  # the last view, and how much of the history it shows
        self._shown = 0
        self._weight = (0, 0, 0)  # of how many messages of the history, their bytes, their images

    def update(self, messages: list[Any], *, full: bool = False) -> Edit:
        """Take in the history as it is now; with `full` every message is looked at anew.

        Raises:
            BadMessage: for a message that cannot be sent or recorded; nothing has changed then.

        """
        edit = self.index.sync(messages, full=full)
        self.changed = edit.start
        revived = edit.added and (
            any(map(self._stands, self.ledger.dormant)) or self._is_about(edit)
        )
        inside = edit.start + edit.added < len(self.index)
        if edit.removed or inside or revived:
            known = self.ledger.contents
            self._resolve(self.ledger.sets, edit)
            self.ledger = replace(self.ledger, contents=known)
        for position in edit.touched:
            if position in self._replaced:
                self._replaced[position] = self._render(position)
        if not self.index.kept:
            self._view = None
        end, shift = edit.start + edit.removed, edit.added - edit.removed
        self._marked = {p for p in self._marked if p < edit.start} | {
            p + shift for p in self._marked if p >= end
        }
        self._marked.update(range(edit.start, edit.start + edit.added), edit.touched)
        self._link()
        return edit

    def _stands(self, digest: bytes) -> bool:
        """Tell whether a block or a message of this digest stands in the history."""
        return bool(self.index.places(digest) or self.index.starts(digest))

    def _is_about(self, edit: Edit) -> bool:
        """Tell whether a decision is about a block that equals one in the new messages."""
        new = self.index.messages[edit.start : edit.start + edit.added]
        digests = (block.digest for facts in new for block in facts.blocks)
        return not self.ledger.targets.isdisjoint(digests)

    def adopt(self, one: DecisionSet) -> None:
        """Put one more set in force."""
        self._untouched = self.changed
        self._view = None
        before = self.ledger
        self.ledger = extend(self.ledger, one, self.index)
        if self.ledger.ranges != before.ranges:
            self._place_ranges(before.ranges, Edit(len(self.index), 0, 0))
        for position, decisions in self.ledger.active.items():
            if before.active.get(position) is not decisions:
                self._replaced[position] = self._render(position)
                self._note_change(position)
        self._link()

    def withdraw(self) -> None:
        """Take the newest set out of force: the check or the disk refused it."""
        self.put(self.ledger.sets[:-1])
        self.changed = self._untouched

    def put(self, sets: Iterable[DecisionSet], *, forget: bool = True) -> None:
        """Put these sets in force in the place of all others.

        Unless told to forget them, handles that the others named stay known.
        """
        known = {} if forget else self.ledger.contents
        self._resolve(sets, Edit(len(self.index), 0, 0))
        self.ledger = replace(self.ledger, contents={**known, **self.ledger.contents})
        self._link()

    def know(self, contents: Mapping[str, bytes]) -> None:
        """Keep handles known that sets had once, with what they name."""
        self.ledger = replace(self.ledger, contents={**contents, **self.ledger.contents})

    def _resolve(self, sets: Iterable[DecisionSet], edit: Edit) -> None:
        """Work out anew which decisions hold, and keep the replaced messages that still serve."""
        self._view = None
        held, kept, ranges = self.ledger.active, self._replaced, self.ledger.ranges
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
                self._note_change(position)
        for was in kept.keys() - self._replaced.keys():
            self._note_change(was)
        self._place_ranges(ranges, edit)

    def _note_change(self, position: int) -> None:
        if self.ledger.hidden(position) is None:
            self.changed = min(self.changed, position)

    def _place_ranges(self, before: Sequence[Hidden], edit: Edit) -> None:
        """Make the notes of the ranges in force, and see where the first one changed."""
        end, shift = edit.start + edit.removed, edit.added - edit.removed
        held = {
            (one.start + shift if one.start >= end else one.start, one.decision) for one in before
        }
        now = {(one.start, one.decision) for one in self.ledger.ranges}
        self.changed = min([self.changed, *(start for start, _ in held ^ now)])
        kept = {notes.decision: notes for notes in self._notes.values()}
        self._notes = {
            start: kept.get(decision) or self._make_notes(decision) for start, decision in now
        }

    def _make_notes(self, decision: RangeDecision, mark: object = None) -> _Notes:
        note, *others = decision.messages
        messages = (note if mark is None else self.wire.marked(note, mark), *others)
        facts = tuple(self.wire.inspect(each, self.index.is_injected) for each in messages)
        return _Notes(decision, messages, facts, mark)

    def _render(self, position: int) -> tuple[JsonObject, Message]:
        notes = {
            block: Note(
                THINKING if decision.stage == Stage.THINKING else decision.note,
                keep_media=decision.stage == Stage.PERSIST,
                keys=decision.keys,
                drop=decision.stage == Stage.THINKING,
            )
            for block, decision in self.ledger.active[position].items()
        }
        message = self.wire.replace(self.index.plain[position], notes)
        return message, self.wire.inspect(message, self.index.is_injected)

    def messages(self, history: list[Any]) -> list[Any]:
        """Return what to send: the caller's own list where nothing is left out.

        `marks` then gives message and block position of each cache mark in it. Clients move marks
        inside dictionaries that the index has seen already; they are looked for where they stood
        last and among the newest messages, since looking everywhere would cost more the longer
        the history is. A range's notes take over the newest mark inside it.
        """
        count = len(self.index)
        self._marked.update(range(max(count - _HOT, 0), count))
        marks = {i: self.wire.marks(self.index.plain[i]) for i in self._marked if i < count}
        for position in marks.keys() & self._replaced.keys():
            if marks[position] != self.wire.marks(self._replaced[position][0]):
                self._replaced[position] = self._render(position)
                self._view = None
        self._marked = {position for position, blocks in marks.items() if blocks}
        self._mark_notes(marks)
        self.marks = self._marks(marks)
        if not self.is_changed:
            return history
        if self._view is None:
            self._weight = (0, 0, 0)
            self._view = list(history)
            for position, (message, _) in self._replaced.items():
                self._view[position] = message
            for one in reversed(self.ledger.ranges):
                self._view[one.start : one.end] = self._notes[one.start].messages
        else:  # what is new came behind, and nothing of it gives way
            self._view += history[self._shown :]
        self._shown = count
        return list(self._view)

    def _mark_notes(self, marks: Mapping[int, Mapping[int, object]]) -> None:
        marked = sorted(self._marked)
        for one in self.ledger.ranges:
            at = bisect_left(marked, one.end) - 1
            mark = None
            if at >= 0 and marked[at] >= one.start:
                mark = _last_mark(marks[marked[at]])
            if mark != self._notes[one.start].mark:
                self._notes[one.start] = self._make_notes(one.decision, mark)
                self._view = None

    def _marks(self, marks: Mapping[int, Mapping[int, object]]) -> list[list[int]]:
        """Return the places of cache marks in the view."""
        places = [
            [self.offset(at), block - self._dropped(at, block)]
            for at in self._marked
            if self.ledger.hidden(at) is None
            for block in marks[at]
        ]
        for start, notes in self._notes.items():
            if notes.mark is not None:
                places.append([self.offset(start), len(notes.facts[0].blocks) - 1])
        return sorted(places)

    def _dropped(self, message: int, block: int) -> int:
        """Count the blocks before one that are gone from a message."""
        held = self.ledger.active.get(message, {})
        return sum(n < block and one.stage == Stage.THINKING for n, one in held.items())

    def offset(self, position: int) -> int:
        """Return how many messages of the view come from before a position of the history."""
        at = position
        for one in self.ledger.ranges:
            if one.start >= position:
                break
            at -= min(one.end, position) - one.start - len(self._notes[one.start].messages)
        return at

    def facts(self, position: int) -> tuple[Message, ...]:
        """Return the facts of what the view shows at a position of the history."""
        if (notes := self._notes.get(position)) is not None:
            return notes.facts
        if self.ledger.hidden(position) is not None:
            return ()
        made = self._replaced.get(position)
        return (made[1] if made else self.index.messages[position],)

    @property
    def view(self) -> list[Any] | None:
        """The last view, as long as nothing has changed; None too where it is the history."""
        return self._view if self.is_changed else None

    @property
    def is_changed(self) -> bool:
        """Whether anything of the history is left out."""
        return bool(self._replaced or self._notes)

    def weight(self) -> tuple[int, int]:
        """Return the bytes of JSON and the images of the view; of what it shows newly, if known."""
        known, size, images = (0, 0, 0) if self._view is None else self._weight
        for at in range(known, len(self.index)):
            for facts in self.facts(at):
                size, images = size + facts.size, images + facts.images
        self._weight = len(self.index), size, images
        return size, images

    @property
    def estimated(self) -> int:
        """Return the estimated tokens of the view."""
        return self.index.sums[-1] - self.ledger.saved

    @property
    def chain(self) -> list[bytes]:
        """The view's chain digests: `chain[n]` names what it shows of the first n messages."""
        return self.index.chain if self._chain is None else self._chain

    def _link(self) -> None:
        if not self.is_changed:
            self._chain = None
            return
        if self._chain is None:
            self._chain = self.index.chain[: min((*self._replaced, *self._notes)) + 1]
        del self._chain[self.changed + 1 :]
        for position in range(len(self._chain) - 1, len(self.index)):
            last = self._chain[-1]
            for facts in self.facts(position):
                last = link(last, facts.digest)
            self._chain.append(last)


def _last_mark(blocks: Mapping[int, object]) -> object:
    """Return the last cache mark that the wire format found in a message."""
    held = blocks[max(blocks)]
    return next(mark for mark in reversed(held) if mark is not None)  # type: ignore[call-overload]
