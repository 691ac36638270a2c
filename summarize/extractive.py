"""A summarizer without a model: it keeps sentences that were said and lines that were printed.

One pass over the events fills a draft, the state of an earlier summary being what the draft begins
with; so a fold of many rounds and one pass over everything come to nearly the same. Binding is only
what the human said: what tools print and files hold makes errors and outcomes, never an order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Final

from . import cues, findings
from .events import Event, What
from .state import LONGEST_ITEM, MOST_ITEMS, SessionState
from .statements import PART, Statement, sentences, shortened, statements
from .subjects import GIVES, Subject, has_value, subject
from .summarizer import Summary, SummaryInput

_LATEST: Final = " · Now: "  # between the first request and the latest
_REQUEST: Final = 280  # characters of each of them
_BRIEF: Final = 2  # words of "go on", "yes", "thank you"
_LEAST: Final = 40  # characters of the first request beside the latest
_LAST_CALL: Final = "Last call: "
_TOLD: Final = 320  # characters of what the assistant told
_CANDIDATES: Final = 24  # newest items of a domain that a new one is compared with
_QUESTION: Final = ("?", "\uff1f")
# What a sentence is, by the first test that it passes.
_OF_ASSISTANTS: Final = (
    ("decisions", cues.DECIDES.search),
    ("facts", cues.FINDS.search),
    ("remaining", cues.LEFT.search),
    ("facts", has_value),
)
_OF_HUMANS: Final = (
    ("constraints", cues.is_binding),
    ("decisions", cues.DECIDES.search),
    (None, cues.ASKS.match),
    ("remaining", cues.LEFT.search),
    ("facts", cues.CHANGES.search),
    ("facts", has_value),
)
_ASKED: Final = (None, "constraints", "decisions")  # where a request may stand too
_OPEN_LISTS: Final = ("decisions", "facts", "remaining")  # where an assistant's word counts
_LISTS: Final = ("constraints", *_OPEN_LISTS)
# How much an item of a list is worth, and what every item costs beside its length.
_WORTH: Final = {
    "constraints": 4.0,
    "remaining": 4.0,
    "errors": 4.0,
    "decisions": 3.0,
    "facts": 3.5,
}
_BASE: Final = 40


class ExtractiveSummarizer:
    """Makes a state by rules alone. Deterministic; in time linear in what it reads."""

    name: Final = "extractive"

    def summarize(self, given: SummaryInput) -> Summary:
        """Return a summary of at most `given.state_chars` characters."""
        draft = _Draft(given.previous or SessionState())
        for event in _sampled(given.fresh, given.input_chars):
            draft.add(event)
        return Summary(
            state=fitted(draft.state(), given.state_chars),
            by=self.name,
            read=draft.read,
            given=sum(len(event.text) for event in given.fresh),
        )


def _sampled(events: Sequence[Event], chars: int | None) -> Sequence[Event]:
    """Return the events of the first quarter and the last three of so many characters."""
    ends = list(accumulate(len(event.text) for event in events))
    if chars is None or not ends or ends[-1] <= chars:
        return events
    head, tail = bisect_right(ends, chars // 4), bisect_left(ends, ends[-1] - chars * 3 // 4)
    return [*events[:head], *events[max(head, tail + 1) :]]


def fitted(state: SessionState, chars: int) -> SessionState:
    """Return a state of at most so many characters: whole items, the most worth for the room.

    Short and binding ones come first, of equal ones the newest; what the next step says is not
    said twice.
    """
    if state.chars <= chars and all(len(getattr(state, name)) <= MOST_ITEMS for name in _WORTH):
        return state
    share = max(chars // 6, 60)
    goal = _goal(*_requests(state.goal), most=share)
    next_step = shortened(state.next_step, share)
    head = SessionState(goal=goal, next_step=next_step).fitted(chars)
    room = chars - head.chars
    ranked = sorted(
        (
            (_density(name, item), age, name, item)
            for name in _WORTH
            for age, item in enumerate(reversed(getattr(state, name)))
            if item != next_step
        ),
        key=lambda one: (-one[0], one[1]),
    )
    kept: dict[str, set[str]] = {name: set() for name in _WORTH}
    for _, _, name, item in ranked:
        if len(item) < room and len(kept[name]) < MOST_ITEMS:
            kept[name].add(item)
            room -= len(item) + 1
    lists = {name: tuple(s for s in getattr(state, name) if s in kept[name]) for name in _WORTH}
    return SessionState(goal=head.goal, next_step=head.next_step, **lists)


def _density(name: str, item: str) -> float:
    worth = _WORTH[name] + (1.5 if name == "constraints" and cues.is_order(item) else 0.0)
    return worth / (_BASE + len(item))


class _Ledger:
    """Items of several lists, at most one for a subject: the newest."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[str, str, Subject]] = {}
        self._by_key: dict[str, int] = {}
        self._by_domain: dict[frozenset[str], dict[int, None]] = {}
        self._next = 0

    def add(self, name: str, text: str, *, binds: bool) -> None:
        """Add an item in the place of what it replaces; only what `binds` replaces constraints."""
        new = subject(text)
        older = self._older(new)
        if not binds and any(self._items[number][0] == "constraints" for number in older):
            return
        for number in older:
            self._drop(number)
        self._items[self._next] = (name, text, new)
        self._by_key[new.key] = self._next
        self._by_domain.setdefault(new.domains, {})[self._next] = None
        self._next += 1

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the items of a list, oldest first."""
        return tuple(text for where, text, _ in self._items.values() if where == name)

    def _older(self, new: Subject) -> list[int]:
        found = [self._by_key[new.key]] if new.key in self._by_key else []
        if new.domains:
            near = islice(reversed(self._by_domain.get(new.domains, {})), _CANDIDATES)
            found += [n for n in near if n not in found and new.ends(self._items[n][2])]
        return found

    def _drop(self, number: int) -> None:
        _, _, gone = self._items.pop(number)
        self._by_key.pop(gone.key, None)
        del self._by_domain[gone.domains][number]


class _Draft:
    """A state in the making."""

    def __init__(self, previous: SessionState) -> None:
        self.read = 0
        self._first, self._latest = _requests(previous.goal)
        self._next_step = previous.next_step
        self._acted = False  # since the next step was said
        self._ledger = _Ledger()
        self._errors: dict[str, dict[str, None]] = {}  # the lines of a command, newest last
        self._calls: dict[str, str] = {}
        self._todos: list[str] = []  # what is unfinished of the newest list of work
        for name in _LISTS:
            for item in getattr(previous, name):
                if item.startswith(findings.MARKS):
                    self._todos.append(item)
                else:
                    self._ledger.add(name, item, binds=True)
        for item in previous.errors:
            command, arrow, line = item.partition(GIVES)
            self._errors.setdefault(command if arrow else "", {})[line if arrow else item] = None

    def add(self, event: Event) -> None:
        """Take in what an event says; what hosts and systems say stands in every request anyway."""
        match event.what:
            case What.HUMAN:
                self._human(event.text)
            case What.SAID:
                self._assistant(event.text)
            case What.CALLED:
                self._called(event)
            case What.RETURNED:
                self._returned(event)
            case _:
                return
        self.read += min(len(event.text), 2 * PART)

    def state(self) -> SessionState:
        """Return the state."""
        lists = {name: self._ledger.texts(name) for name in _LISTS}
        lists["remaining"] += tuple(self._todos)
        errors = tuple(
            f"{command}{GIVES}{line}" if command else line
            for command, lines in self._errors.items()
            for line in lines
        )
        doing = [s for s in self._todos if s.startswith(findings.DOING)]
        return SessionState(
            goal=_goal(self._first, self._latest, most=LONGEST_ITEM),
            errors=errors,
            next_step=doing[0].removeprefix(findings.DOING) if doing else self._next_step,
            **lists,
        )

    def _human(self, text: str) -> None:
        self._listed(findings.checklist(text))
        goal, request, before = "", "", self._next_step
        for one in statements(text):
            kind = _kind_of_human(one)
            if kind == "goal":
                goal = goal or shortened(one.text, _REQUEST)
            elif kind:
                self._ledger.add(kind, one.text, binds=True)
            if kind and cues.NEXT.search(one.text):
                self._next_step = one.text
            if not request and kind in _ASKED and _asks(one, first=not self._first):
                request = shortened(one.text, _REQUEST)
        if goal or not self._first:
            self._first, self._latest = goal or request, ""
        elif request and request != self._first:
            self._latest = request
        if request and self._next_step == before:
            self._next_step = ""  # what the assistant was about to do came before

    def _assistant(self, text: str) -> None:
        self._listed(findings.checklist(text))
        if self._acted:
            self._next_step = ""  # done, unless it is said again
        for one in statements(text):
            for sentence in sentences(one.text):
                told = shortened(sentence, _TOLD)
                if cues.INTENDS.match(sentence):
                    self._next_step, self._acted = told, False
                elif not one.leads and (kind := _kind_of_assistant(one.kind, sentence)):
                    self._ledger.add(kind, told, binds=False)

    def _called(self, call: Event) -> None:
        self._listed(findings.todos(call.arguments))
        self._acted = True
        command = findings.command(call)
        if call.call:
            self._calls[call.call] = command
        if not self._next_step or self._next_step.startswith(_LAST_CALL):
            self._next_step = _LAST_CALL + command

    def _returned(self, result: Event) -> None:
        command = self._calls.pop(result.call or "", result.tool or "tool")
        told = findings.outcome(result, command)
        self._errors.pop(command, None)
        for earlier, lines in list(self._errors.items()):
            left = [line for line in lines if not told.settles(line, command, earlier)]
            self._errors[earlier] = dict.fromkeys(left)
            if not left:
                del self._errors[earlier]
        if told.errors:
            self._errors[command] = dict.fromkeys(told.errors)
            if len(self._errors) > MOST_ITEMS:
                del self._errors[next(iter(self._errors))]
        if told.summary:
            self._ledger.add("facts", f"{command}{GIVES}{told.summary}", binds=False)

    def _listed(self, items: list[str] | None) -> None:
        if items is not None:
            self._todos = items


def _kind_of_human(said: Statement) -> str | None:
    """Return the field that a statement of the human belongs to."""
    if said.leads or said.text.endswith(_QUESTION):
        return None
    if said.kind == "facts":
        return "constraints" if cues.is_binding(said.text) else "facts"
    return said.kind or _first_kind(_OF_HUMANS, said.text)


def _kind_of_assistant(label: str | None, text: str) -> str | None:
    """Return the field that a sentence of the assistant belongs to; none of them binds."""
    if text.endswith(_QUESTION):
        return None
    return label if label in _OPEN_LISTS else _first_kind(_OF_ASSISTANTS, text)


def _first_kind(
    tests: Sequence[tuple[str | None, Callable[[str], object]]], text: str
) -> str | None:
    return next((kind for kind, test in tests if test(text)), None)


def _asks(said: Statement, *, first: bool) -> bool:
    """Whether the human asks for something; the first real words do so in any case."""
    if said.kind:
        return False
    wants = (one for one in sentences(said.text) if not cues.WISHES.search(one))
    return any(map(cues.ASKS.match, wants)) or (first and len(said.text.split()) > _BRIEF)


def _requests(goal: str) -> tuple[str, str]:
    first, _, latest = goal.partition(_LATEST)
    return first, latest


def _goal(first: str, latest: str, *, most: int) -> str:
    room = most - len(_LATEST) - len(latest)
    if not latest or room < _LEAST:
        return shortened(first, most)
    return shortened(first, room) + _LATEST + latest
