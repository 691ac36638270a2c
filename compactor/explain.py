"""What a view would decide, and why, without deciding it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .arguments import Room
from .decisions import AnyDecision, DecisionSet
from .plan import Situation, plan, size, trigger
from .policy import Policy
from .render import Renderer
from .stages import Shelved, Wanted
from .summarize.extractive import ExtractiveSummarizer
from .wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What would be left out of the next request; sizes are estimated tokens.

    `reason` is that of the set, None where there would be none; `before` and `after` are sizes of
    the view, `room` what messages may take and `starts_at` the size at which compaction starts.
    `rewrites_from` is the first message already sent that would change and `rewritten` the
    tokens of those from there on, which the provider's cache must take in anew. A summary is taken
    to say what the extractive summarizer would say.
    """

    reason: str | None
    decisions: tuple[AnyDecision, ...]
    before: int
    after: int
    room: int
    starts_at: int
    rewrites_from: int | None
    rewritten: int


def explain(  # noqa: PLR0913, PLR0917 - all that a plan depends on
    wire: Wire,
    messages: list[Any],
    sets: Sequence[DecisionSet],
    space: Room,
    policy: Policy,
    now: Situation,
    sent: int,
) -> Explanation:
    """Plan on a copy of what is known; `sent` are the messages that the provider has seen."""
    renderer = Renderer(wire, policy.not_human)
    renderer.update(messages)
    renderer.put(sets)
    budget = space.plan
    before = size(renderer.index, renderer.ledger, budget)
    one = plan(wire, renderer.index, renderer.ledger, budget, policy, now)
    if isinstance(one, Wanted):  # what it says is not known before it is asked for
        summary = ExtractiveSummarizer().summarize(one.given)
        now = replace(now, shelf=(Shelved(one, summary),), can_wait=False)
        one = plan(wire, renderer.index, renderer.ledger, budget, policy, now)
    if isinstance(one, Wanted):
        one = None
    rewrites, rewritten = None, 0
    if one is not None:
        renderer.changed = len(messages)
        renderer.adopt(one)
        if renderer.changed < sent:
            rewrites = renderer.offset(renderer.changed)
            shown = (renderer.facts(at) for at in range(renderer.changed, sent))
            rewritten = sum(facts.tokens for each in shown for facts in each)
    return Explanation(
        reason=one.reason if one else None,
        decisions=one.decisions if one else (),
        before=before,
        after=one.after if one else before,
        room=budget.messages,
        starts_at=int(budget.messages * trigger(policy, budget, cold=now.cold)),
        rewrites_from=rewrites,
        rewritten=rewritten,
    )
