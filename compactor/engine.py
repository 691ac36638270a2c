"""One request, from the history to its view: take in, plan, check, store, render, describe."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from compactor.storage import StorageError

from . import notes
from .arguments import Arguments, Room
from .check import violations
from .counters import TokenCounter
from .decisions import DecisionSet
from .describe import Largest, describe, stats
from .errors import CannotFit
from .index import Edit
from .messages import JsonObject
from .models import binds_thinking
from .plan import ARRIVAL, NO_EXCESS, RESCUE, UNDO, Situation, plan, size, without_thinking
from .policy import Policy
from .recorder import Prepared, Recorder
from .refusals import Refusal, RefusalKind
from .render import Renderer
from .stages import Draft, Manual, Shelved, Wanted
from .tokens import Anchor, Excess
from .view import View
from .wire import Wire
from .written_back import WrittenBack

_LOG = logging.getLogger("compactor")
_LIGHTER = 0.5  # of the bytes of a request that had too many
_COUNT_FROM = 0.5  # of the budget: smaller views are not worth a question


@dataclass(slots=True)
class Turn:
    """One call of `view`.

    `given` is what the caller handed in, `messages` the history that it stands for. With `can_wait`
    a summary may be asked for; `changed` is the first message that differs from the view before.
    """

    given: list[Any]
    arguments: Arguments
    room: Room
    policy: Policy
    now: float
    human: int | None = None
    can_wait: bool = True
    messages: list[Any] = field(init=False)
    space: Room = field(init=False)
    changed: int = sys.maxsize

    @property
    def bound(self) -> bool:
        """Whether the model refuses thinking after an edited prefix."""
        model, told = self.arguments.model, self.policy.bound_thinking
        return binds_thinking(model) if told is None and model else bool(told)


class Engine:
    """What a session knows of its conversation. Not for several threads at once."""

    def __init__(
        self,
        wire: Wire,
        policy: Policy,
        recorder: Recorder,
        recall: Callable[[], list[JsonObject]],
        counter: TokenCounter | None = None,
    ) -> None:
        """Go on from what the recorder found in the transcript; `recall` reads its history."""
        self._recall = recall
        self._written_back = WrittenBack()
        self._counter = counter
        self.wire = wire
        self._not_human = policy.not_human
        self._recorder = recorder
        self.renderer = Renderer(wire, policy.not_human)
        self.renderer.put(recorder.sets)
        self.renderer.know(recorder.contents)
        self.sent = 0  # messages of the last view
        self.space: Room | None = None  # what its request could take
        self._estimated = 0  # tokens that were estimated for it
        self._prompt: tuple[object, ...] | None = None  # what stood before its messages
        self._time = 0.0  # when it was made, in seconds since the epoch
        self._anchor: Anchor | None = None
        self.calibration = recorder.calibration
        self._factor = 1.0  # of it, that the last view was measured with
        self._refused: str | None = None  # why the last turn was not stored
        self._largest = Largest()
        self._was_over = False
        self._policy: Policy | None = None  # of the last view
        # What an earlier process left: length and chain digest of its last view, its anchor.
        self._left = (*recorder.sent, recorder.anchor) if recorder.sent else None
        self._shown = self._left  # the same of the last view of this process
        self._shelf: tuple[Shelved, ...] = ()  # summaries that no set has taken in yet
        self.manual: Manual | None = None  # somebody asked for a compaction
        self._read_only: frozenset[str] = frozenset()  # tools of the last request
        self._undone_from = sys.maxsize  # the first message that an undo has changed since
        self._rescued = False  # and no request has succeeded since
        self._windows: dict[str | None, int] = {}  # of models, as refusals have named them

    def start_over(self) -> None:
        """Forget what is known of the history; the next view takes it in anew.

        Only recorded sets stay in force, and what is stored is compared with the history then.
        """
        self._recorder.abandon()
        self._written_back.settle(self.renderer.index.plain[: self.sent])
        self.renderer = Renderer(self.wire, self._not_human)
        self.renderer.put(self._recorder.sets)
        self.renderer.know(self._recorder.contents)
        self.sent, self._largest = 0, Largest()
        self._left = self._shown

    def view(self, turn: Turn) -> tuple[View, DecisionSet | None] | Wanted:
        """Return the view for a turn and the set that took effect with it.

        Or the summary that is wanted first: with that on the shelf, call it again.
        """
        edit = self._take_in(turn)
        now = self._situation(turn)
        one = self._plan(turn, now)
        if isinstance(one, Wanted):
            turn.changed = self.renderer.changed
            if self._store(edit, None, None, turn) is None:
                return one
            turn.can_wait = False  # what cannot be stored is not worth a model's time
            return self.view(turn)
        return self._finish(turn, edit, now, one)

    def rescue(self, turn: Turn, refusal: Refusal) -> tuple[View, DecisionSet | None] | None:
        """Return another view for a turn that the provider has refused.

        None where a rescue was tried already, and nothing has succeeded since, or where there is
        nothing to try.

        Raises:
            CannotFit: where even the smallest view is too large.

        """
        if self._rescued:
            return None
        edit = self._take_in(turn)
        now = replace(self._situation(turn), rescue=True)
        hints: dict[str, Any] = {}
        one: DecisionSet | Wanted | None = None
        if refusal.kind is RefusalKind.MAX_TOKENS:
            left = refusal.max_tokens
            if left is None or left < 1:
                return None
            hints = {"max_tokens": left}
            self._windows |= {turn.arguments.model: refusal.limit} if refusal.limit else {}
        elif refusal.kind is RefusalKind.BOUND_THINKING:
            one = without_thinking(self._draft(turn), 0, RESCUE)
            if one is None:
                return None
        else:
            now = replace(now, excess=self._calibrate(turn, refusal))
            one = self._plan(turn, now)
        self._rescued = True
        made = self._finish(turn, edit, now, None if isinstance(one, Wanted) else one)
        view, taken = made
        too_large = not hints and refusal.kind is not RefusalKind.BOUND_THINKING
        if too_large and (view.over_budget or taken is None):
            raise self._cannot_fit(view, turn)
        return replace(view, request_hints=hints), taken

    def _calibrate(self, turn: Turn, refusal: Refusal) -> Excess:
        """Learn from a refusal how large the prompt was, and what the model takes."""
        room = turn.space.tokens
        if refusal.kind is RefusalKind.TOO_MANY_BYTES:
            size, _ = self.renderer.weight()
            return Excess(int(size * _LIGHTER), 0)
        self._windows |= {turn.arguments.model: refusal.limit} if refusal.limit else {}
        if refusal.measured is not None:
            self.observe(refusal.measured)
            self.calibration = self.calibration.corrected(refusal.measured, self._uncalibrated())
        room = self._limited(turn).tokens
        overhead = room.scaled(room.overhead)
        measured = (refusal.measured or room.window) - overhead
        anchor = Anchor(measured, self.renderer.estimated)
        turn.space = turn.space.with_tokens(replace(room, anchor=anchor))
        return NO_EXCESS

    def _cannot_fit(self, view: View, turn: Turn) -> CannotFit:
        room = turn.space.tokens.messages
        message = f"the smallest view has {view.stats.view_tokens} tokens (estimated)"
        largest = self._largest.of(self.renderer)
        parts = (f"message {one.message} ({one.kind}): {one.tokens}" for one in largest)
        hint = f"The window leaves room for {room}. The largest: {', '.join(parts)}."
        return CannotFit(message, hint=hint)

    def _finish(
        self, turn: Turn, edit: Edit, now: Situation, one: DecisionSet | None
    ) -> tuple[View, DecisionSet | None]:
        """Put a set in force, store the turn, and describe its view."""
        one = self._enforce(one)
        shown = self.renderer.messages(turn.messages)
        chain = self.renderer.chain[len(turn.messages)]
        prepared = Prepared(turn.arguments, chain, self.renderer.marks)
        refused = self._store(edit, one, prepared, turn)
        if one is not None and one not in self.renderer.ledger.sets[-1:]:
            one, shown = None, self.renderer.messages(turn.messages)
        self._settle(turn, now)
        return self._describe(turn, shown, one, refused), one

    def _plan(self, turn: Turn, now: Situation) -> DecisionSet | Wanted | None:
        renderer = self.renderer
        return plan(self.wire, renderer.index, renderer.ledger, turn.space.plan, turn.policy, now)

    def _draft(self, turn: Turn) -> Draft:
        renderer, room = self.renderer, turn.space.plan
        before = size(renderer.index, renderer.ledger, room)
        readable = self.wire.offers(turn.arguments.values.get("tools"), notes.READ_TOOL)
        return Draft(
            self.wire, renderer.index, renderer.ledger, room, turn.policy, readable, before
        )

    def _enforce(self, one: DecisionSet | None) -> DecisionSet | None:
        """Put a set in force, unless what it makes of the view fails the check."""
        if one is None:
            return None
        self.renderer.adopt(one)
        found = violations(self.renderer, one)
        if found:
            self.renderer.withdraw()
            _LOG.error("a compaction failed its check and was dropped: %s", found[0].what)
            return None
        return one

    def render(self, messages: list[Any]) -> list[Any]:
        """Return what the sets in force make of messages, and learn nothing of them."""
        renderer = Renderer(self.wire, self._not_human)
        renderer.update(messages)
        renderer.put(self.renderer.ledger.sets)
        return renderer.messages(messages)

    def shelve(self, made: Shelved) -> None:
        """Take in what came of a wanted summary."""
        self._shelf = (made, *self._shelf[:1])

    def has_made(self, wanted: Wanted) -> bool:
        """Tell whether somebody has made this summary meanwhile."""
        name, focus = wanted.span.digest, wanted.given.focus
        shelf = (each.wanted for each in self._shelf)
        shelved = any((o.span.digest, o.given.focus) == (name, focus) for o in shelf)
        return shelved or any(o.decision.content == name for o in self.renderer.ledger.ranges)

    def _take_in(self, turn: Turn) -> Edit:
        renderer, left = self.renderer, self._left
        renderer.index.asked = turn.human
        plain = renderer.index.plain
        turn.messages = self._written_back.mapped(turn.given, plain, self.sent)
        edit = renderer.update(turn.messages, full=turn.policy.check_history == "full")
        renderer.changed = min(renderer.changed, turn.changed, self._undone_from)
        self._left = None
        if left is not None and self._is_written_back(turn):
            edit = renderer.update(turn.messages)
        if left is not None and renderer.chain[left[0] : left[0] + 1] == [left[1]]:
            # An earlier process sent this very prefix: go on as if it were this one.
            self.sent, self._anchor = left[0], left[2]
            renderer.changed = left[0]
        if renderer.changed < self.sent:
            self._anchor = None
        if self._rescued and renderer.index.last_assistant >= self.sent:
            self._rescued = False
        space = turn.space = self._limited(turn)
        self._count(turn)
        turn.space = space.with_tokens(replace(space.tokens, anchor=self._anchor))
        return edit

    def _limited(self, turn: Turn) -> Room:
        """Return what a request may take, by what the provider has said of its model."""
        tokens, limit = turn.room.tokens, self._windows.get(turn.arguments.model)
        window = tokens.window if limit is None else min(limit, tokens.window)
        self._factor = self.calibration.factor
        scale = tokens.scale * self._factor
        return turn.room.with_tokens(replace(tokens, window=window, scale=scale))

    def _is_written_back(self, turn: Turn) -> bool:
        """Find out whether the history starts with a view that an earlier process sent.

        The transcript has what that stood for.
        """
        views, seen = self._recorder.views, self.renderer.index.chain
        at = next((at for at in range(len(seen) - 1, 0, -1) if seen[at] in views), None)
        if at is None:
            return False
        try:
            history = self._recall()[: views[seen[at]]]
        except (StorageError, OSError) as error:
            _LOG.warning("a view that was written back is taken as it is: %s", error)
            return False
        self._written_back.took(turn.messages[:at], history)
        turn.messages = [*history, *turn.messages[at:]]
        return True

    def _count(self, turn: Turn) -> None:
        """Have a large view counted of which the provider has not said how large it is."""
        budget, estimated = turn.space.tokens, self.renderer.estimated
        if (
            self._counter is None
            or self._anchor is not None
            or budget.scaled(estimated) < _COUNT_FROM * budget.messages
            or self.renderer.index.open_ended()
        ):
            return
        values = dict(turn.arguments.values)
        request = {**values.pop("options", {}), **values}
        counted = self._counter.count(self.renderer.messages(turn.messages), **request)
        if counted is not None:
            self._anchor = Anchor(counted - budget.scaled(budget.overhead), estimated)

    def _situation(self, turn: Turn) -> Situation:
        index, asked = self.renderer.index, turn.arguments.prompt
        cold = self._prompt is not None and (
            self._prompt != asked or turn.now - self._time > turn.policy.cache_ttl_s
        )
        if self._prompt is None and self._recorder.time is not None:
            cold = turn.now - self._recorder.time / 1000 > turn.policy.cache_ttl_s
        before = self._policy
        excess = turn.space.limits.excess(index.size, index.images)
        if any(excess):  # of the history; of the view it takes longer to say
            excess = turn.space.limits.excess(*self.renderer.weight())
        tools = turn.arguments.values.get("tools")
        return Situation(
            readable=self.wire.offers(tools, notes.READ_TOOL),
            cold=cold,
            held_back=self._recorder.undone,
            excess=excess,
            same_policy=before is None or before is turn.policy or before == turn.policy,
            pins=self._recorder.pins,
            manual=self.manual,
            shelf=self._shelf,
            can_wait=turn.can_wait,
            read_only=turn.arguments.read_only,
            bound=turn.bound,
            void_from=self._recorder.void_from,
        )

    def _settle(self, turn: Turn, now: Situation) -> None:
        """Note what the next turn's situation depends on."""
        self._prompt, self._time, self._policy = turn.arguments.prompt, turn.now, turn.policy
        self._read_only, self._undone_from = now.read_only, sys.maxsize
        self._recorder.void_from = None
        if self.manual is now.manual and not self.renderer.index.open_ended():
            self.manual = None
        self._shelf = tuple(each for each in self._shelf if each.summary is None)

    def _store(
        self, edit: Edit, one: DecisionSet | None, prepared: Prepared | None, turn: Turn
    ) -> str | None:
        """Store the turn; where the disk refuses, the set is taken out of force.

        Unless the prompt would not fit then: what only the history holds may be hidden for that,
        since it reads back from there, and it is written as soon as the disk allows.
        """
        refused = None
        try:
            self._recorder.turn(self.renderer.index, edit, one, prepared)
        except (StorageError, OSError) as error:
            if one is not None:
                if one.before > turn.space.plan.messages >= one.after:
                    self._recorder.keep(one)
                else:
                    self.renderer.withdraw()
            refused = f"{type(error).__name__}: {error}"
            if turn.policy.on_storage_error == "raise":
                raise
        if refused is not None and refused != self._refused:
            _LOG.warning("not stored: %s", refused)
        self._refused = refused
        return refused

    def _describe(
        self, turn: Turn, shown: list[Any], one: DecisionSet | None, degraded: str | None
    ) -> View:
        renderer, sent, space = self.renderer, self.sent, turn.space
        stable = min(renderer.changed, sent)
        rewrites = stable if stable < min(sent, len(turn.messages)) else None
        if rewrites is not None:
            self._anchor = None
            space = replace(space, tokens=replace(space.tokens, anchor=None))
        self.sent, self._estimated = len(turn.messages), renderer.estimated
        self._shown = self.sent, renderer.chain[self.sent], self._anchor
        self._written_back.gave(renderer.view)
        self.space = space
        rewritten = range(stable, sent if rewrites is not None else stable)
        measured = stats(renderer, space.tokens, rewritten)
        view = describe(
            renderer, shown, one, measured, space, self._largest, stable, rewrites, degraded
        )
        if view.over_budget and not self._was_over:
            _LOG.warning("the view is too large: %d tokens (estimated)", measured.view_tokens)
        self._was_over = view.over_budget
        if one is not None:
            _LOG.info(
                "compacted (%s): %d to %d tokens (estimated); in view %d persisted, %d masked, "
                "%d messages archived, %d summarised",
                *(one.reason, one.before, one.after, measured.persisted, measured.masked),
                *(measured.archived_messages, measured.summarized_messages),
            )
        return view

    def effects(self, policy: Policy) -> int:
        """Count the calls since the last compaction of which the tools may change something."""
        taken = [one.at for one in self.renderer.ledger.sets if one.reason != ARRIVAL]
        start, harmless = (taken[-1] if taken else 0), policy.summary.read_only | self._read_only
        calls = self.renderer.index.calls
        return sum(call.message >= start and call.tool not in harmless for call in calls)

    def observe(self, used: int) -> Anchor:
        """Learn what the provider measured for the last view, in tokens of the whole prompt."""
        self._rescued = False
        self.calibration = self.calibration.learned(used, self._uncalibrated())
        overhead = self.space.tokens.scaled(self.space.tokens.overhead) if self.space else 0
        self._anchor = Anchor(used - overhead, self._estimated)
        if self._shown is not None:
            self._shown = (*self._shown[:2], self._anchor)
        return self._anchor

    def _uncalibrated(self) -> int:
        """Return what the whole last prompt was estimated at, but for what usage has taught."""
        if self.space is None:
            return self._estimated
        tokens = self.space.tokens
        return round(tokens.scaled(tokens.overhead + self._estimated) / self._factor)

    def undo(self) -> DecisionSet | None:
        """Take the newest compaction out of force; None where there is none.

        Raises:
            CannotFit: where the view would not fit then; nothing has changed.
            StorageError, OSError: where the disk refuses; a later view records it.

        """
        renderer = self.renderer
        sets = renderer.ledger.sets
        one = next((each for each in reversed(sets) if each.reason not in {ARRIVAL, UNDO}), None)
        if one is None:
            return None
        others = [each for each in sets if each is not one]
        renderer.changed = self.sent
        renderer.put((*others, *filter(None, [one.on_arrival()])), forget=False)
        if self.space is not None and len(renderer.index):
            tokens = self.space.tokens.scaled(renderer.estimated)
            chars = renderer.index.chars[-1] - renderer.ledger.saved_chars
            if self.space.is_full(tokens, chars):
                renderer.put(sets, forget=False)
                message = f"without its newest compaction the view has {tokens} tokens (estimated)"
                hint = f"The window leaves room for {self.space.tokens.messages}."
                raise CannotFit(message, hint=hint)
        self._anchor = None
        self._undone_from = min(self._undone_from, renderer.changed)
        self._recorder.undo(one)
        return one
