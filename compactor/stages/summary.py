"""Stage 4: all but the newest exchanges become one message with a state summary.

Planning stays pure: where the summary that is due has not been made yet, the draft says what it
`wants`; with that on the shelf the same plan goes on.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from compactor import notes
from compactor.ledger import Hidden, find_span, span
from compactor.messages import JsonObject
from compactor.policy import Stage
from compactor.summarize import (
    BadState,
    Event,
    SessionState,
    Summary,
    SummaryInput,
    What,
    record,
)
from compactor.tokens import estimate_bytes

from . import archive, ranges
from .draft import Draft
from .shelf import Shelved, Wanted

_TITLES = {
    "goal": "Goal",
    "constraints": "Constraints and preferences",
    "decisions": "Decisions",
    "facts": "Facts",
    "errors": "Errors met",
    "remaining": "Work remaining",
    "next_step": "Next step",
}
_FRAME = 250  # characters of the lines around a state
_FILES_SHARE = 0.25  # of the state's characters, for the files read and for those written
_ACTIONS_SHARE = 0.5


def plan(draft: Draft) -> None:
    """Propose the summary that is on the shelf, or say which one is wanted."""
    if draft.manual is None and draft.size <= ranges.middle(draft):
        return
    stretch = _stretch(draft)
    if stretch is None:
        return
    wanted = _wanted(draft, *stretch)
    ready = next(filter(None, (_ready(draft, each, wanted) for each in draft.shelf)), None)
    if ready is not None and ready.summary is not None:
        _propose(draft, ready)
    elif ready is None and draft.can_wait and _pays(draft, wanted):
        draft.wanted = wanted
    if draft.wanted is None and draft.range is None and Stage.ARCHIVE in draft.policy.stages:
        archive.fall_back(draft)


def _stretch(draft: Draft) -> tuple[int, int] | None:
    """Return which messages go; None where nothing would that is not summarised already."""
    index, policy = draft.index, draft.policy.summary
    start = 0 if index.floor == 0 else ranges.boundary(draft, index.floor)
    if start is None or not len(index):
        return None
    end = ranges.newest(draft, start, policy.keep_exchanges, policy.keep_share)
    before = _before(draft, start)
    return (start, end) if end > (before.end if before else start) else None


def _before(draft: Draft, start: int) -> Hidden | None:
    """Return the summary in force that the new one would take in."""
    held = draft.ledger.hidden(start)
    return held if held and held.start == start and held.decision.summary is not None else None


def _wanted(draft: Draft, start: int, end: int) -> Wanted:
    policy, before = draft.policy.summary, _before(draft, start)
    events = list(_events(draft, start, end))
    made = before.decision.summary if before else None
    turn = 1 if made is None else int(made.get("turn", 1)) + 1
    previous, new_from = None, 0
    if before is not None and made is not None and turn % policy.rebuild_every:
        previous = _decoded(made)
        new_from = bisect_left(events, before.end, key=lambda event: event.message)
    given = SummaryInput(
        events=events,
        previous=previous,
        new_from=new_from if previous else 0,
        state_chars=min(policy.state_chars, ranges.share_chars(draft, policy.state_share)),
        input_chars=policy.input_chars,
        focus=draft.manual.focus if draft.manual else None,
    )
    return Wanted(span(start, end, draft.index), given, turn, draft.manual is not None)


def _decoded(made: Mapping[str, object]) -> SessionState | None:
    try:
        return SessionState.decode(made.get("state"))
    except BadState:
        return None  # of a later version: made anew


def _events(draft: Draft, start: int, end: int) -> Iterator[Event]:
    """Go through what happened in a range; a result's tool is its call's."""
    index, tools = draft.index, dict[str | None, str | None]()
    for at in range(start, end):
        for event in draft.wire.events(index.plain[at], at, index.is_injected):
            if event.what is What.CALLED:
                tools[event.call] = event.tool
            elif event.what is What.RETURNED:
                yield replace(event, tool=tools.get(event.call))
                continue
            yield event


def _ready(draft: Draft, each: Shelved, wanted: Wanted) -> Shelved | None:
    """Return a summary on the shelf that serves: of these messages, or of most of them.

    Messages that came while it was made stand behind it then. A failure only answers for the very
    same messages.
    """
    if each.wanted.given.focus != wanted.given.focus:
        return None
    if each.wanted.span.digest == wanted.span.digest:
        return each
    index, stretch = draft.index, each.wanted.span
    start = wanted.span.start
    before, end = _before(draft, start), start + stretch.length
    known = before.end if before else start
    holds = find_span(stretch, index) == start and known < end <= start + wanted.span.length
    return each if holds and index.is_boundary(end) and each.summary is not None else None


def _pays(draft: Draft, wanted: Wanted) -> bool:
    """Tell whether a summary as long as it may be would pay, before anybody makes it."""
    start, room = wanted.span.start, wanted.given.state_chars + _FRAME
    shown = sum(map(draft.shown, range(start, start + wanted.span.length)))
    empty = Shelved(wanted, Summary(state=SessionState(), by="nobody"))
    made = (draft.wire.inspect(m, draft.index.is_injected) for m in _messages(draft, empty))
    size = sum(draft.budget.amount(one.tokens, one.chars) for one in made)
    size += draft.budget.amount(estimate_bytes(room), room)
    after = draft.size - shown + size
    return size < shown and (draft.manual is not None or draft.worth(after, before=draft.began))


def _propose(draft: Draft, ready: Shelved) -> None:
    wanted, summary = ready.wanted, ready.summary
    if summary is None:
        return
    start = wanted.span.start
    made = {**summary.encode(), "turn": wanted.turn}
    made |= {"since": wanted.given.fresh[0].message} if wanted.given.previous else {}
    made |= {"rejected": list(ready.rejected)} if ready.rejected else {}
    made |= {"focus": wanted.given.focus} if wanted.given.focus else {}
    name = draft.name("msgs", wanted.span.digest)
    end = start + wanted.span.length
    draft.hide(Stage.SUMMARIZE, start, end, _messages(draft, ready), name, made)


def _messages(draft: Draft, ready: Shelved) -> list[JsonObject]:
    """Return what stands in the range's place: the message, and system messages that hold on."""
    index, wire, wanted = draft.index, draft.wire, ready.wanted
    start, end = wanted.span.start, wanted.span.start + wanted.span.length
    name = draft.name("msgs", wanted.span.digest)
    title = notes.compacted(name, end - start, readable=draft.readable)
    asked = sorted({at for at in (index.request, index.asked) if at is not None})
    blocks: list[JsonObject] = []
    for at in (at for at in asked if start <= at < end):
        line = notes.current_request(ranges.number(draft, at))
        blocks.append(wire.text_block(f"{title}\n{line}" if title else line))
        blocks += ranges.request_blocks(draft, at)
        title = ""
    if title and asked:
        title += "\n" + notes.request_below()
    parts = [title, *_parts(draft, ready, start, end)]
    blocks.append(wire.text_block("\n".join(filter(None, parts))))
    return [wire.user_message(blocks), *ranges.system_messages(draft, start, end)]


def _parts(draft: Draft, ready: Shelved, start: int, end: int) -> Iterator[str]:
    """Go through what is told beside the current request."""
    spoken = ranges.said(draft, start, end)
    if spoken.kept or spoken.left_out:
        yield notes.user_messages(*spoken)
    if draft.pins:
        yield notes.pinned(draft.pins)
    given, summary = ready.wanted.given, ready.summary
    did = record(given.events, draft.is_read_only)
    room = given.state_chars
    if did.actions:
        yield notes.done(*_newest(did.actions, int(_ACTIONS_SHARE * room)))
    for what, paths in (("Files changed", did.written), ("Files read", did.read)):
        if paths:
            yield notes.files(what, *_newest(paths, int(_FILES_SHARE * room)), did.root)
    if did.checkpoint:
        yield notes.checkpoint(did.checkpoint[:room])
    if summary is not None and not summary.state.is_empty:
        told = summary.state.fitted(room).encode()
        if told.get("goal", "") in _asked(draft):
            told.pop("goal", None)
        fields = {_TITLES[name]: told[name] for name in _TITLES if name in told}
        yield notes.state(fields, summary.by, read=summary.read, given=summary.given)


def _asked(draft: Draft) -> str:
    """Return the text of the current request, which stands in the view as it is."""
    at = draft.index.request
    blocks = [] if at is None else ranges.request_blocks(draft, at)
    return "\n".join(map(draft.wire.human_text, blocks))


def _newest(items: Sequence[str], room: int) -> tuple[list[str], int]:
    """Return the newest items that fit into so many characters, and how many others there are."""
    kept: list[str] = []
    for item in reversed(items):
        room -= len(item) + 2
        if room < 0 and kept:
            break
        kept.insert(0, item)
    return kept, len(items) - len(kept)
