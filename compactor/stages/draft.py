"""A set in the making: what the stages have proposed so far, and what the view would measure."""

import hashlib
from dataclasses import dataclass, field

from compactor import notes
from compactor.decisions import Decision
from compactor.index import Index, Result
from compactor.ledger import Ledger, target
from compactor.policy import Policy, Stage
from compactor.tokens import Budget, estimate_text
from compactor.wire import Wire


@dataclass(slots=True)
class Draft:
    """What every stage plans with; `size` (tokens of the view) falls as decisions are added.

    `readable` says whether the request offers the tool that reads handles.
    """

    wire: Wire
    index: Index
    ledger: Ledger
    budget: Budget
    policy: Policy
    readable: bool
    size: int
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    _contents: dict[str, bytes] = field(default_factory=dict)

    def current(self, result: Result) -> Decision | None:
        """Return the decision that holds for a result, proposed or in force."""
        proposed = self.decisions.get(result.place)
        return proposed or self.ledger.decision(result.message, result.block)

    def tokens(self, result: Result) -> int:
        """Return the estimated tokens of a result as the view would show it."""
        decision = self.current(result)
        return decision.tokens if decision else result.facts.tokens

    def text(self, result: Result) -> str:
        """Return the whole text of a result."""
        return self.wire.result_text(self.index.plain[result.message], result.block)

    def worth(self, after: int, before: int | None = None) -> bool:
        """Tell whether going down to `after` tokens pays for breaking the cached prefix.

        It does where it makes the prompt fit, or saves the policy's least gain.
        """
        before, room = self.size if before is None else before, self.budget.messages
        least = max(self.policy.min_gain * room, 1)
        return before > room >= after or before - after >= least

    def intact(self, result: Result) -> bool:
        """Tell whether a result still is what was recorded: its owner may have written to it."""
        return self.wire.block_digest(self.index.plain[result.message], result.block) == (
            result.facts.digest
        )

    def persist(self, result: Result, *, head: int, tail: int) -> bool:
        """Propose a preview in the place of a result; False where it may not stand there."""
        name, content = self._handle(result)
        text = self.text(result)
        note = notes.persisted(
            name, result.tool, text, head=head, tail=tail, readable=self.readable
        )
        return self._propose(Stage.PERSIST, result, name, content, note, result.facts.media)

    def mask(self, result: Result) -> bool:
        """Propose one line in the place of a result; False where it may not stand there."""
        name, content = self._handle(result)
        scent = self.policy.mask.scent_chars
        text = self.text(result)
        note = notes.masked(name, result.tool, text, scent=scent, readable=self.readable)
        return self._propose(Stage.MASK, result, name, content, note, 0)

    def _propose(  # noqa: PLR0913, PLR0917 - a decision's parts
        self, stage: str, result: Result, name: str, content: bytes, note: str, media: int
    ) -> bool:
        tokens = estimate_text(note) + media
        before = self.tokens(result)
        if tokens >= before or not self.intact(result):
            return False
        place = target(result.message, result.block, self.index)
        self.decisions[result.place] = Decision(stage, place, name, content, tokens, note)
        self._contents[name] = content
        self.size -= before - tokens
        return True

    def _handle(self, result: Result) -> tuple[str, bytes]:
        data = self.wire.result_bytes(self.index.plain[result.message], result.block)
        content = hashlib.sha256(data).digest()
        digits = notes.HANDLE_DIGITS
        while True:
            name = notes.handle("out", content, digits)
            held = self.ledger.contents.get(name) or self._contents.get(name, content)
            if held == content:
                return name, content
            digits += 4
