"""A set in the making: what the stages have proposed so far, and what the view would measure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactor import notes
from compactor.decisions import AnyDecision, Decision, RangeDecision
from compactor.index import Index, Item
from compactor.ledger import Hidden, Ledger, span, target
from compactor.messages import Block, JsonObject, Kind, Message
from compactor.policy import Policy, Stage
from compactor.tokens import Budget, estimate_text
from compactor.wire import Wire

from .shelf import Manual, Shelved, Wanted

CHARS_A_TOKEN = 3


@dataclass(slots=True)
class Draft:
    """What every stage plans with; `size` (of the view) falls as decisions are added.

    Sizes are in the budget's unit: tokens of the model, or characters.

    `readable` says whether the request offers the tool that reads handles; `pins` are texts that
    the host wants to stand in the note of every range. `manual`: somebody asked for a compaction.
    `shelf` holds summaries that were made; with `can_wait` one may be `wanted` that is not there.
    `read_only` are tools of the request that say that they change nothing.
    """

    wire: Wire
    index: Index
    ledger: Ledger
    budget: Budget
    policy: Policy
    readable: bool
    size: int
    pins: Mapping[str, str] = field(default_factory=dict)
    manual: Manual | None = None
    shelf: Sequence[Shelved] = ()
    can_wait: bool = False
    read_only: frozenset[str] = frozenset()
    wanted: Wanted | None = None
    blocks: dict[tuple[int, int], Decision] = field(default_factory=dict)
    range: Hidden | None = None
    began: int = 0  # the size before anything was proposed
    _range_gain: int = 0
    _contents: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the size that it begins with."""
        self.began = self.size

    @property
    def decisions(self) -> tuple[AnyDecision, ...]:
        """What is proposed, in the order of the places; nothing inside a range beside it."""
        blocks = [self.blocks[place] for place in sorted(self.blocks)]
        if self.range is None:
            return tuple(blocks)
        start, end = self.range.start, self.range.end
        before = [one for one in blocks if one.message < start]
        behind = [one for one in blocks if one.message >= end]
        return (*before, self.range.decision, *behind)

    def current(self, item: Item) -> Decision | None:
        """Return the decision that holds for a block, proposed or in force."""
        return self.blocks.get(item.place) or self.ledger.decision(item.message, item.block)

    def size_of(self, item: Item) -> int:
        """Return the size of a block as the view would show it."""
        return self._size(self.current(item) or item.facts)

    def _size(self, part: Decision | RangeDecision | Block | Message) -> int:
        return self.budget.amount(part.tokens, part.chars)

    def text(self, item: Item) -> str:
        """Return the whole text of a block."""
        return self.wire.block_text(self.index.plain[item.message], item.block)

    def worth(self, after: int, before: int | None = None) -> bool:
        """Tell whether going down to `after` tokens pays for breaking the cached prefix.

        It does where it makes the prompt fit, or saves the policy's least gain.
        """
        before, room = self.size if before is None else before, self.budget.messages
        least = max(self.policy.min_gain * room, 1)
        return before > room >= after or before - after >= least

    def is_hidden(self, message: int) -> bool:
        """Tell whether a range hides a message, proposed or in force."""
        proposed = self.range is not None and self.range.start <= message < self.range.end
        return proposed or self.ledger.hidden(message) is not None

    def intact(self, item: Item) -> bool:
        """Tell whether a block still is what was recorded: its owner may have written to it."""
        message = self.index.plain[item.message]
        return self.wire.block_digest(message, item.block) == item.facts.digest

    def persist(self, item: Item, *, head: int, tail: int) -> bool:
        """Propose a preview in the place of a block; False where it may not stand there."""
        name, content = self._handle(item)
        text = self.text(item)
        note = notes.persisted(name, item.tool, text, head=head, tail=tail, readable=self.readable)
        media = item.facts.media if item.facts.kind is Kind.RESULT else 0
        tokens = estimate_text(note) + media
        return self._propose(item, Stage.PERSIST, name, content, tokens, note)

    def mask(self, item: Item) -> bool:
        """Propose one line in the place of a block; False where it may not stand there."""
        name, content = self._handle(item)
        if item.facts.kind is Kind.MEDIA:
            kind = str(self.wire.block_kind(self.index.plain[item.message], item.block))
            note = notes.masked_media(name, kind, readable=self.readable)
        else:
            scent, text = self.policy.mask.scent_chars, self.text(item)
            note = notes.masked(name, item.tool, text, scent=scent, readable=self.readable)
        return self._propose(item, Stage.MASK, name, content, estimate_text(note), note)

    def mask_inputs(self, item: Item, keys: dict[str, int]) -> bool:
        """Propose one line in the place of some arguments of a call, given with their lengths."""
        name, content = self._handle(item)
        note = notes.masked_input(name, sum(keys.values()), readable=self.readable)
        rest = max(item.facts.chars - sum(keys.values()), 0)
        tokens = estimate_text(note) * len(keys) + rest // CHARS_A_TOKEN
        return self._propose(item, Stage.MASK, name, content, tokens, note, tuple(keys), rest)

    def drop_thinking(self, start: int) -> None:
        """Propose that the thinking leaves that stands in the view from a message on."""
        for item in self.index.thoughts:
            gone = item.message < start or self.is_hidden(item.message)
            if not gone and self.current(item) is None and self.intact(item):
                name, content = self._handle(item)
                place = target(item.message, item.block, self.index)
                self.blocks[item.place] = Decision(Stage.THINKING, place, name, content, 0, "")
                self._contents[name] = content
                self.size -= self._size(item.facts)

    def _propose(  # noqa: PLR0913, PLR0917 - a decision's parts
        self,
        item: Item,
        stage: str,
        name: str,
        content: bytes,
        tokens: int,
        note: str,
        keys: tuple[str, ...] = (),
        rest: int = 0,
    ) -> bool:
        place = target(item.message, item.block, self.index)
        made = Decision(stage, place, name, content, tokens, note, keys, rest)
        gain = self.size_of(item) - self._size(made)
        if gain <= 0 or tokens >= item.facts.tokens or not self.intact(item):
            return False
        self.blocks[item.place] = made
        self._contents[name] = content
        self.size -= gain
        return True

    def is_read_only(self, tool: str) -> bool:
        """Tell whether calls of a tool change nothing."""
        return tool in self.policy.summary.read_only or tool in self.read_only

    def hide(  # noqa: PLR0913, PLR0917 - a decision's parts
        self,
        stage: str,
        start: int,
        end: int,
        messages: list[JsonObject],
        name: str,
        summary: JsonObject | None = None,
    ) -> bool:
        """Propose `messages` in the place of a range; False where that does not shorten the view.

        Another range that was proposed gives way. What was proposed inside the range goes with it.
        """
        facts = [self.wire.inspect(each, self.index.is_injected) for each in messages]
        shown = sum(self.shown(message) for message in range(start, end))
        asked = self.index.request
        inside = asked is not None and start <= asked < end
        decision = RangeDecision(
            stage,
            span(start, end, self.index),
            name,
            self.index.messages[asked].digest if inside and asked is not None else None,
            sum(one.tokens for one in facts),
            sum(one.chars for one in facts),
            tuple(messages),
            summary,
        )
        gain = shown - self._size(decision)
        if gain <= 0:
            return False
        self.range = Hidden(start, end, decision)
        self._contents[name] = decision.content
        self.size += self._range_gain - gain
        self._range_gain = gain
        return True

    def keep_only(self, blocks: dict[tuple[int, int], Decision], size: int) -> None:
        """Go back to these proposals, which left a view of `size`."""
        self.blocks, self.size = blocks, size
        self.range, self._range_gain = None, 0

    def shown(self, message: int) -> int:
        """Return the size of what the view would show of a message; a range's at its first."""
        hidden = self.ledger.hidden(message)
        if hidden is not None:
            return self._size(hidden.decision) if message == hidden.start else 0
        held = self.ledger.active.get(message, {})
        return sum(
            self._size(self.blocks.get((message, number)) or held.get(number) or block)
            for number, block in enumerate(self.index.messages[message].blocks)
        )

    def _handle(self, item: Item) -> tuple[str, bytes]:
        data = self.wire.block_bytes(self.index.plain[item.message], item.block)
        content = hashlib.sha256(data).digest()
        return self.name("out", content), content

    def name(self, kind: str, content: bytes) -> str:
        """Return the handle of content: longer where a shorter one means something else."""
        digits = notes.HANDLE_DIGITS
        while True:
            name = notes.handle(kind, content, digits)
            held = self.ledger.contents.get(name) or self._contents.get(name, content)
            if held == content:
                return name
            digits += 4
