"""An incremental index of a growing history: what stands where, and where it changed.

The index holds references to the caller's message objects, so that the next look at the same
history costs pointer comparisons; only new or changed messages are inspected.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .messages import EMPTY_CHAIN, Block, JsonObject, Kind, Message, Numbers, alike, link, plain
from .wire import Wire

LONG_TEXT = 10_000  # characters of a user's text that a decision may be about
_HOT = 8  # newest messages, which clients still write to in place
_SAMPLE = 100  # messages that tell whether the objects are those of the last request


@dataclass(frozen=True, slots=True)
class Edit:
    """How the history changed: `removed` messages at `start` gave way to `added` ones.

    `touched` are messages that are the same to the engine but not byte for byte (a cache mark
    that moved, a string that became a block).
    """

    start: int
    removed: int
    added: int
    touched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A block that a decision may be about: its place, its facts, of calls and results the tool."""

    message: int
    block: int
    tool: str | None
    facts: Block
    alterable: bool

    @property
    def place(self) -> tuple[int, int]:
        """Message and block position."""
        return self.message, self.block


class Index:
    """Facts about a history, kept in step with it by `sync`."""

    def __init__(self, wire: Wire, not_human: str) -> None:
        """Start with an empty history; text that matches `not_human` whole is the host's."""
        self._wire = wire
        self._injected = re.compile(not_human, re.DOTALL)
        self._sources: list[object] = []
        self._converted = False  # whether any source is not plain JSON itself
        self.kept = False  # whether the last `sync` found the very objects that it knew
        self.plain: list[JsonObject] = []
        self.messages: list[Message] = []
        self.asked: int | None = None  # a message of the human's, where the host knows better
        self._reset()

    def _reset(self) -> None:
        self.chain = [EMPTY_CHAIN]  # chain[n] names the first n messages
        self.sums = [0]  # sums[n] are the estimated tokens of the first n messages
        self.chars = [0]
        self.size = self.images = 0  # bytes of JSON, and images, of all messages
        self.results: list[Item] = []
        self.media: list[Item] = []  # images and documents outside of results
        self.calls: list[Item] = []
        self.texts: list[Item] = []  # long ones of the user
        self.thoughts: list[Item] = []
        self.floor = 0  # planning starts here: behind the provider's own compaction
        self._starts: dict[bytes, list[int]] = {}  # digest of a message to its positions
        self._extents: list[int] = []
        self._numbers: dict[int, Numbers | None] = {}  # of each message that has some
        self.last_assistant = -1
        self.request: int | None = None
        self.human: list[int] = []  # where the human speaks
        self._calls: dict[str, tuple[int, Block]] = {}
        self._answered: set[tuple[int, str]] = set()
        self._where: dict[bytes, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.messages)

    def sync(self, messages: list[Any], *, full: bool = False) -> Edit:
        """Take in the history as it is now and say how it changed.

        With `full` every message is looked at anew, in case its owner has written to it.

        Raises:
            BadMessage: for a message that cannot be sent or recorded; the index stays as it was.

        """
        if not self._continues(messages):
            return self._resync(list(messages), self._grown(full=full))
        if grown := self._grown(full=full):
            return self._resync(list(messages), grown)
        old, count = self._sources, len(self._sources)
        fresh = messages[count:]
        made = [self._inspect(source, count + i) for i, source in enumerate(fresh)]
        converted = any(mine is not own for (mine, _), own in zip(made, fresh, strict=True))
        self._converted = self._converted or converted
        if not self.kept:  # equal but newer objects take the place of the old ones: those go
            if self._converted:
                held = zip(self.plain, old, messages, strict=False)
                self.plain = [new if mine is own else mine for mine, own, new in held]
            else:
                self.plain[:] = messages[:count]
            old[:] = messages[:count]
        old += fresh
        self._append(made)
        return Edit(count, 0, len(made))

    def _continues(self, messages: list[Any]) -> bool:
        """Find out whether a history starts with what is known, and whether with these objects.

        Lists of one length are compared by their pointers as far as those are the same, which is
        far cheaper than asking for each pair: the objects themselves are not looked at. Where a
        sample shows other objects, equal is not enough: to Python 1, true and 1.0 are equal, too.
        """
        old, count = self._sources, len(self._sources)
        sample = (*range(0, count, count // _SAMPLE + 1), *range(max(count - _HOT, 0), count))
        if len(messages) < count:
            return False
        self.kept = all(old[i] is messages[i] for i in sample)
        if not self.kept:
            ones, others = (
                map(old.__getitem__, self._numbers),
                map(messages.__getitem__, self._numbers),
            )
            same = map(alike, ones, others, self._numbers.values())
            return old == messages[:count] and all(same)
        fresh = messages[count:]
        old += fresh
        try:
            return old == messages
        finally:
            del old[count:]

    def _grown(self, *, full: bool) -> set[int]:
        """Find which of the newest messages (or of all) their owner has changed in place."""
        count = len(self)
        if full:
            return {
                i for i in range(count) if self.digest(self.plain[i]) != self.messages[i].digest
            }
        return {
            i
            for i in range(max(count - _HOT, 0), count)
            if _extent(self.plain[i]) != self._extents[i]
        }

    def _inspect(self, source: object, position: int) -> tuple[JsonObject, Message]:
        message = plain(source, f"messages[{position}]")
        return message, self._wire.inspect(message, self.is_injected)

    def digest(self, message: JsonObject) -> bytes:
        """Return the digest that a message would have in this history."""
        return self._wire.inspect(message, self.is_injected).digest

    def is_injected(self, text: str) -> bool:
        """Tell whether the host, not the human, wrote this text of a user message."""
        return self._injected.fullmatch(text) is not None

    def _resync(self, messages: list[object], grown: set[int]) -> Edit:
        known = {id(s): i for i, s in enumerate(self._sources) if i not in grown}
        made: list[tuple[JsonObject, Message]] = []
        for position, source in enumerate(messages):
            at = known.get(id(source))
            can_equal = at is None and position < len(self) and position not in grown
            if can_equal and self._is_known(position, source):
                at = position
            if at is None:
                made.append(self._inspect(source, position))
            else:
                held = self.plain[at]
                made.append((source if held is self._sources[at] else held, self.messages[at]))  # type: ignore[arg-type]
        old = [message.digest for message in self.messages]
        new = [message.digest for _, message in made]
        start = _common(old, new)
        tail = _common(old[start:][::-1], new[start:][::-1])
        same = [*range(start), *range(len(new) - tail, len(new))]
        shift = len(old) - len(new)
        touched = tuple(
            i
            for i in same
            if made[i][0] is not self.plain[i if i < start else i + shift]
            and made[i][0] != self.plain[i if i < start else i + shift]
        )
        self._converted = any(
            mine is not own for (mine, _), own in zip(made, messages, strict=True)
        )
        self._sources, self.plain, self.messages = messages, [], []
        self.kept = False
        self._reset()
        self._append(made)
        return Edit(start, len(old) - start - tail, len(new) - start - tail, touched)

    def _is_known(self, position: int, source: object) -> bool:
        return _is_same(self._sources[position], source, self._numbers.get(position, ()))

    def _append(self, made: list[tuple[JsonObject, Message]]) -> None:
        first = len(self.messages)
        self.plain += [message for message, _ in made]
        self._extents += [_extent(message) for message, _ in made]
        self.messages += [facts for _, facts in made]
        for position, (_, facts) in enumerate(made, first):
            self._enter(position, facts)
        new = self.messages[first:]
        self._numbers |= {i: f.numbers for i, f in enumerate(new, first) if f.numbers != ()}
        self.chain += list(accumulate((f.digest for f in new), link, initial=self.chain.pop()))
        self.sums += accumulate((f.tokens for f in new), initial=self.sums.pop())
        self.chars += accumulate((f.chars for f in new), initial=self.chars.pop())
        self.size += sum(f.size for f in new)
        self.images += sum(f.images for f in new)

    def _enter(self, position: int, facts: Message) -> None:
        if facts.role == "assistant":
            self.last_assistant = position
        if facts.human:
            self.request = position
            self.human.append(position)
        self._starts.setdefault(facts.digest, []).append(position)
        for number, block in enumerate(facts.blocks):
            if block.kind is Kind.CALL and block.call_id is not None:
                self._calls[block.call_id] = (position, block)
                self._keep(self.calls, (position, number), block, alterable=block.alterable)
            elif block.kind is Kind.RESULT and block.call_id is not None:
                at, call = self._calls.get(block.call_id, (-1, None))
                self._answered.add((at, block.call_id))
                alterable = block.alterable and call is not None and call.alterable
                self._keep(self.results, (position, number), block, alterable=alterable)
            elif block.kind is Kind.MEDIA and facts.role == "user":
                self._keep(self.media, (position, number), block)
            elif block.kind is Kind.TEXT and facts.role == "user" and block.chars >= LONG_TEXT:
                self._keep(self.texts, (position, number), block)
            elif block.kind is Kind.THINKING:
                self._keep(self.thoughts, (position, number), block)
            elif block.kind is Kind.BOUNDARY:
                self.floor = position + 1

    def _keep(
        self, items: list[Item], place: tuple[int, int], block: Block, *, alterable: bool = True
    ) -> None:
        items.append(Item(*place, self.tool(block), block, alterable))
        self._where.setdefault(block.digest, []).append(place)

    def is_request(self, message: int) -> bool:
        """Tell whether the current request stands here, by the history or by the host's word."""
        return message in {self.request, self.asked}

    def consumed(self, message: int) -> bool:
        """Tell whether an assistant message stands after this one."""
        return message < self.last_assistant

    def tool(self, block: Block) -> str | None:
        """Return the tool of a call or a result."""
        _, call = self._calls.get(block.call_id or "", (-1, block))
        return call.tool

    def behind(self, items: Sequence[Item], place: tuple[int, int]) -> Sequence[Item]:
        """Return of items (`results`, `media`, …) those that stand behind a place."""
        return items[bisect_right(items, place, key=lambda item: item.place) :]

    def unconsumed(self) -> list[Item]:
        """Return the results that the model has not been shown yet, oldest first."""
        found = []
        for result in reversed(self.results):
            if self.consumed(result.message):
                break
            found.append(result)
        return found[::-1]

    def exchange(self, message: int) -> int:
        """Return where the exchange of this message starts: at its run of assistant messages."""
        return turn_start(self.messages, message)

    def exchange_end(self, start: int) -> int:
        """Return where the exchange that starts here ends."""
        return turn_end(self.messages, start)

    def open_ended(self) -> bool:
        """Tell whether the history ends in an assistant message or a call without its result."""
        if not self.messages or self.messages[-1].role == "assistant":
            return bool(self.messages)
        start = self.exchange(len(self) - 1)
        return any(
            block.kind is Kind.CALL and (position, block.call_id) not in self._answered
            for position in range(start, self.last_assistant + 1)
            for block in self.messages[position].blocks
        )

    def places(self, digest: bytes) -> Sequence[tuple[int, int]]:
        """Return where blocks of this digest stand that decisions may be about, oldest first."""
        return self._where.get(digest, ())

    def starts(self, digest: bytes) -> Sequence[int]:
        """Return where messages of this digest stand, oldest first."""
        return self._starts.get(digest, ())

    def is_boundary(self, position: int) -> bool:
        """Tell whether an exchange starts here: cuts fall nowhere else."""
        messages = self.messages
        return position == 0 or (
            position < len(messages)
            and messages[position].role == "assistant"
            and messages[position - 1].role != "assistant"
        )


def turn_start(messages: Sequence[Message], at: int) -> int:
    """Return where the run of assistant messages starts that a message is of or follows."""
    while at > 0 and messages[at].role != "assistant":
        at -= 1
    while at > 0 and messages[at - 1].role == "assistant":
        at -= 1
    return at


def turn_end(messages: Sequence[Message], start: int) -> int:
    """Return the end of a run of assistant messages and of the messages that follow it."""
    end = start
    while end < len(messages) and messages[end].role == "assistant":
        end += 1
    while end < len(messages) and messages[end].role != "assistant":
        end += 1
    return end


def _is_same(old: Any, new: Any, numbers: Numbers | None) -> bool:
    return old is new or (old == new and (numbers == () or alike(old, new, numbers)))


def _extent(value: object) -> int:
    """Measure a message cheaply: how long its strings are together, cache marks apart."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return sum(_extent(item) for key, item in value.items() if key != "cache_control")
    if isinstance(value, list):
        return len(value) + sum(map(_extent, value))
    return 1


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
