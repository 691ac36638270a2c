"""The extractive summarizer, and the engine with it, behind compaction-conformance-kit's interface.

`Extractive` remembers nothing between rounds: a round that is given the text of an earlier one
reads the state and the messages out of that text. `Engine` has a host's history, which grows by an
exchange a round, and is asked for a compaction each time. Run as a program it prints what survives
of each type. No model is asked.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from compactor import Compactor, Policy
from compactor.policy import ArchivePolicy, Stage, SummaryPolicy
from compactor.summarize import Event, SessionState, SummaryInput, What
from compactor.summarize.extractive import ExtractiveSummarizer

SEEDS: Final = range(1, 13)
BUDGETS: Final = (None, 0.3, 0.2, 0.1)  # of the characters of the session
STATE_CHARS: Final = 8_000
USER_CHARS: Final = 80_000
FRAME: Final = 480  # characters of the engine's own lines and marks, and what the adapter adds
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
        chars = min(STATE_CHARS, room)
        while True:
            given = SummaryInput(events=events, previous=previous, state_chars=max(chars, 0))
            text = render(ExtractiveSummarizer().summarize(given).state, messages, room)
            if len(text) <= room or chars <= 0:
                break
            chars -= len(text) - room  # the titles need room too
        return Compacted(text, self.name, round_num)


class Engine:
    """A session of the engine whose stage 4 compacts everything but the newest exchange.

    The kit's budget is so small that the engine's own lines count: they are taken off first.
    """

    name = "compactor"

    def __init__(self) -> None:
        """Begin without a session: its policy goes by the budget of the first round."""
        self._history: list[dict[str, Any]] = []

    def compact(
        self, turns: Sequence[Turn], round_num: int = 1, budget_chars: int | None = None
    ) -> Compacted:
        """Return the text of a view that was compacted by hand."""
        if round_num == 1:  # the kit takes one object for several runs
            self._folder = TemporaryDirectory()
            policy = _policy(budget_chars)
            self._session = Compactor.open(self._folder.name, session="kit", policy=policy)
            said = [turn for turn in turns if turn.role != "system"]
            self._history = [{"role": turn.role, "content": turn.text} for turn in said]
        self._history.append({"role": "user", "content": "Go on."})
        self._session.compact()
        texts = [_text(message) for message in self._session.view(self._history).messages]
        self._history.append({"role": "assistant", "content": "Continuing."})
        return Compacted("\n".join(texts), self.name, round_num)


def _policy(room: int | None) -> Policy:
    state = STATE_CHARS if room is None else min(STATE_CHARS, max(room - FRAME, 1))
    said = USER_CHARS if room is None else 1  # where room is short, all of it is the state's
    return Policy(
        stages=(Stage.SUMMARIZE,),
        min_gain=0.0001,
        summary=SummaryPolicy(state_chars=state, state_share=0.99, keep_exchanges=1),
        archive=ArchivePolicy(keep_user_chars=said),
    )


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(one["text"] for one in content)


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
    names = {title: name for name, title in _TITLES.items()} | {_MESSAGES: _MESSAGES}
    found: dict[str, list[str]] = defaultdict(list)
    name = ""
    for line in text.removeprefix(_START).strip().splitlines():
        if line in names:
            name = names[line]
        else:
            found[name].append(line)
    messages = found.pop(_MESSAGES, [])
    single = ("goal", "next_step")
    return SessionState.decode({k: v[0] if k in single else v for k, v in found.items()}), messages


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


def survival(
    adapter: type[Extractive | Engine], build: Callable[[int], Any], budget: float | None
) -> tuple[dict[str, str], str]:
    """Return what survives of each type, by round, and how many replaced values are still there."""
    run_conformance = import_module("compaction_kit.runner").run_conformance
    curves: dict[str, list[list[float]]] = defaultdict(list)
    stale = updated = 0
    for seed in SEEDS:
        session, canaries, *_ = build(seed)
        run = run_conformance(session, adapter(), canaries=canaries, budget_fraction=budget)
        for kind in sorted(run.rounds[0].survival_by_type):
            curves[kind].append(run.survival_curve(_type(canaries, kind)))
        last = run.rounds[-1].context.text.lower()
        old = [one.superseded_tokens for one in canaries if one.superseded_tokens]
        updated += len(old)
        stale += sum(any(token.lower() in last for token in tokens) for tokens in old)
    shown = {kind: _shown([fmean(r) for r in zip(*c, strict=True)]) for kind, c in curves.items()}
    return shown, f"{stale}/{updated}"


def _type(canaries: Sequence[Any], kind: str) -> Any:
    return next(one.type for one in canaries if one.type.value == kind)


def _shown(rounds: Sequence[float]) -> str:
    first, *later = [f"{share:.0%}" for share in rounds]
    return first if set(later) <= {first} else " ".join([first, *later])


def main() -> None:
    """Print survival by type over the kit's corpora; one figure stands for five equal rounds."""
    adapter = Engine if "Engine" in sys.argv else Extractive
    semantic = import_module("compaction_kit.semantic_corpus")
    corpora = {
        "randomized": import_module("compaction_kit.corpus").build_random_session,
        "generated": import_module("compaction_kit.generated").build_generated_session,
        "semantic": semantic.build_semantic_session,
        "held out": semantic.build_semantic_heldout_session,
    }
    kinds = ("safety_rule", "hard_constraint", "fact", "goal_state", "user_preference")
    print("| corpus | budget |", " | ".join(kinds), "| stale |")
    print("|---" * (len(kinds) + 3) + "|")
    for corpus, build in corpora.items():
        for budget in BUDGETS:
            shown, stale = survival(adapter, build, budget)
            whole = "none" if budget is None else f"{budget:.0%}"
            print(f"| {corpus} | {whole} |", " | ".join(shown[k] for k in kinds), f"| {stale} |")


if __name__ == "__main__":
    main()
