"""The extractive summarizer behind the interface of compaction-conformance-kit (see scripts/bench/kit).

Nothing is remembered between rounds: a round that is given the text of an earlier one reads the
state and the messages out of that text. Run as a program it prints what survives of each type.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from compactor.summarize import Event, SessionState, SummaryInput, What
from compactor.summarize.extractive import ExtractiveSummarizer

SEEDS: Final = range(1, 13)
STATE_CHARS: Final = 8_000
USER_CHARS: Final = 80_000
_WHAT: Final = {
    "user": What.HUMAN,
    "assistant": What.SAID,
    "system": What.SYSTEM,
    "tool": What.RETURNED,
}
_START: Final = "[Compacted]"
_MESSAGES: Final = "Earlier user messages:"
_TITLES: Final = {one.name: f"{one.name.replace('_', ' ')}:" for one in fields(SessionState)}


class Turn(Protocol):
    """A turn of the kit."""

    role: str
    text: str


@dataclass(frozen=True)
class Compacted:
    """What the kit expects back."""

    text: str
    compactor_name: str
    round_num: int
    structured: dict[str, list[str]] | None = None


class Extractive:
    """Compacts turns to the state that the extractive summarizer makes, and what the human said."""

    name = "compactor-extractive"

    def compact(
        self, turns: Sequence[Turn], round_num: int = 1, budget_chars: int | None = None
    ) -> Compacted:
        """Return the state of all turns, and the human's newest messages that still fit."""
        previous, messages, events = _read(turns)
        room = STATE_CHARS + USER_CHARS if budget_chars is None else budget_chars
        frame = len(_START) + 1 + sum(len(title) + 1 for title in _TITLES.values())
        given = SummaryInput(
            events=events, previous=previous, state_chars=min(STATE_CHARS, max(room - frame, 0))
        )
        text = render(ExtractiveSummarizer().summarize(given).state, messages, room)
        return Compacted(text, self.name, round_num)


def render(state: SessionState, messages: Sequence[str], room: int) -> str:
    """Return the text of a state, a line an item, and of the newest messages that fit behind it."""
    lines = [_START]
    for name, title in _TITLES.items():
        value = getattr(state, name)
        items = [value] if isinstance(value, str) and value else list(value)
        lines += [title, *items] if items else []
    text = "\n".join(lines)
    kept: list[str] = []
    room = min(room - len(text) - len(_MESSAGES) - 2, USER_CHARS)
    for message in reversed(messages):
        if len(message) >= room:
            break
        kept.insert(0, message)
        room -= len(message) + 1
    return "\n".join([text, _MESSAGES, *kept]) if kept else text


def parse(text: str) -> tuple[SessionState, list[str]]:
    """Return the state and the messages that a text of `render` shows."""
    names = {title: name for name, title in _TITLES.items()} | {_MESSAGES: ""}
    found: dict[str, list[str]] = defaultdict(list)
    name = ""
    for line in text.removeprefix(_START).strip().splitlines():
        if line in names:
            name = names[line]
        else:
            found[name].append(line)
    messages = found.pop("", [])
    values = {k: v if isinstance(getattr(SessionState, k, ()), tuple) else v for k, v in found.items()}
    whole = {k: v[0] if k in ("goal", "next_step") else v for k, v in values.items()}
    return SessionState.decode(whole), messages


def _read(turns: Sequence[Turn]) -> tuple[SessionState | None, list[str], list[Event]]:
    previous, messages = None, list[str]()
    events = list[Event]()
    for at, turn in enumerate(turns):
        if turn.text.startswith(_START):
            previous, messages = parse(turn.text)
            continue
        what = _WHAT.get(turn.role, What.HOST)
        events.append(Event(at, what, turn.text))
        if what is What.HUMAN:
            messages.append(" ".join(turn.text.split()))
    return previous, messages, events


def main() -> None:
    """Print survival by type and round over the kit's corpora."""
    from compaction_kit.corpus import build_random_session
    from compaction_kit.generated import build_generated_session
    from compaction_kit.runner import run_conformance
    from compaction_kit.semantic_corpus import (
        build_semantic_heldout_session,
        build_semantic_session,
    )

    corpora: dict[str, Callable[[int], Any]] = {
        "randomized": build_random_session,
        "generated": build_generated_session,
        "semantic": build_semantic_session,
        "held out": build_semantic_heldout_session,
    }
    print("| corpus | budget | type | round 1 | 2 | 3 | 4 | 5 | stale at 5 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for corpus, build in corpora.items():
        for budget in (None, 0.3, 0.2, 0.1):
            curves: dict[str, list[list[float]]] = defaultdict(list)
            stale = updated = 0
            for seed in SEEDS:
                session, canaries, *_ = build(seed)
                run = run_conformance(
                    session, Extractive(), canaries=canaries, budget_fraction=budget
                )
                for kind in sorted(run.rounds[0].survival_by_type):
                    curves[kind].append([one.survival_by_type[kind] for one in run.rounds])
                last = run.rounds[-1].context.text.lower()
                old = [one for one in canaries if one.superseded_tokens]
                updated += len(old)
                stale += sum(any(t.lower() in last for t in one.superseded_tokens) for one in old)
                if "-v" in sys.argv and budget == 0.3:
                    lost = [c.content for c in canaries if not run.rounds[-1].survived[c.id]]
                    print(seed, lost, [t for o in old for t in o.superseded_tokens if t.lower() in last])
            for kind, runs in curves.items():
                means = " | ".join(f"{sum(r) / len(r):.0%}" for r in zip(*runs, strict=True))
                whole = "none" if budget is None else f"{budget:.0%}"
                print(f"| {corpus} | {whole} | {kind} | {means} | {stale}/{updated} |")


if __name__ == "__main__":
    main()
