"""Feed a recorded session through the engine request by request, then prove the way back.

What is measured here is measured apart from the engine: sizes, prefixes, digests and legality are
worked out from the messages that it returned, not from what it says of them.
"""

import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count
from pathlib import Path
from typing import Any

from compactor.storage import Keys, StorageError, new_name

from .check import defects
from .decisions import AnyDecision, RangeDecision
from .errors import CompactorError
from .index import LONG_TEXT, Index, Item, turn_start
from .messages import EMPTY_CHAIN, Block, JsonObject, Kind, Message, canonical, link
from .policy import Policy
from .session import Compactor
from .sources import Recording, RequestPoint
from .transcript import FOLDER, Transcript
from .view import View
from .wire import Wire, wire_format

CACHE_READ, CACHE_WRITE = 0.1, 1.25
_PREVIEW = 200  # characters that an unread result must show at the least
_SHORTENED = (Kind.RESULT, Kind.MEDIA, Kind.CALL, Kind.TEXT)
_PLAUSIBLE = (0.5, 2.0)  # recorded usage over the estimate: outside, it was of another prompt


@dataclass(slots=True)
class Report:
    """What came of one replay; tokens are estimates, anchored where usage was recorded."""

    path: str
    session: str
    window: int
    part: int = 1
    messages: int = 0
    requests: int = 0
    raw_tokens: int = 0
    view_tokens: int = 0
    peak_tokens: int = 0
    raw_cost: float = 0.0
    view_cost: float = 0.0
    prefix_breaks: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    history_bytes: int = 0
    vault_bytes: int = 0
    unreadable: int = 0
    differing: int = 0
    view_mismatches: int = 0
    illegal_views: int = 0
    over_budget: int = 0
    seconds: float = 0.0
    raw_sizes: list[int] = field(default_factory=list)
    view_sizes: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def cost_ratio(self) -> float:
        """What the views cost under prompt caching, over what the whole history would have."""
        return self.view_cost / self.raw_cost if self.raw_cost else 1.0

    @property
    def failures(self) -> int:
        """How many proofs failed."""
        return self.unreadable + self.differing + self.view_mismatches + self.illegal_views


def scaled(recording: Recording, times: int) -> Recording:
    """Return a session played `times` over as one conversation, its identifiers renamed."""
    if times == 1:
        return recording
    messages: list[JsonObject] = []
    requests: list[RequestPoint] = []
    whole = _answered(recording.messages)
    for turn in range(times):
        first = len(messages)
        part = recording.messages if turn == times - 1 else recording.messages[:whole]
        messages += [_renamed(message, turn) for message in part] if turn else part
        for point in recording.requests:
            if point.length <= len(part):
                human = None if point.human is None else point.human + first
                usage = None if turn else point.usage
                requests.append(RequestPoint(point.length + first, point.model, usage, human))
    return replace(recording, messages=messages, requests=requests)


def _answered(messages: Sequence[JsonObject]) -> int:
    """Return how many leading messages hold no call that stays without a result."""
    answered = {
        block.get("tool_use_id")
        for message in messages
        for block in _blocks(message)
        if block.get("type") == "tool_result"
    }
    for position, message in enumerate(messages):
        for block in _blocks(message):
            if block.get("type") == "tool_use" and block.get("id") not in answered:
                return position
    return len(messages)


def _blocks(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def _renamed(message: JsonObject, turn: int) -> JsonObject:
    if not isinstance(message.get("content"), list):
        return dict(message)
    content = [
        {
            name: f"{value}_{turn}" if name in {"id", "tool_use_id"} else value
            for name, value in block.items()
        }
        for block in message["content"]
    ]
    return {**message, "content": content}


class Meter:
    """The sizes, the cached prefix and the digests of a growing sequence of messages."""

    def __init__(self, wire: Wire) -> None:
        """Start with nothing sent."""
        self.facts: list[Message] = []
        self.cost = 0.0
        self.breaks = 0
        self.broken = False  # whether the last request did not continue the one before
        self.common = 0
        self._wire = wire
        self._messages: list[Any] = []
        self._sums = [0]
        self._chain = [EMPTY_CHAIN]

    def take(self, messages: list[Any], known: Mapping[int, Message]) -> None:
        """Take in the messages of the next request; `known` are facts by object identity."""
        common = _common(self._messages, messages)
        self.broken = common < len(self._messages)
        self.breaks += self.broken
        del self.facts[common:], self._sums[common + 1 :], self._chain[common + 1 :]
        for message in messages[common:]:
            facts = known.get(id(message)) or self._wire.inspect(message, lambda _: False)
            self.facts.append(facts)
            self._sums.append(self._sums[-1] + facts.tokens)
            self._chain.append(link(self._chain[-1], facts.digest))
        self.common, self._messages = common, list(messages)
        self.cost += CACHE_READ * self._sums[common] + CACHE_WRITE * (
            self.size - self._sums[common]
        )

    @property
    def size(self) -> int:
        """Estimated tokens of the request."""
        return self._sums[-1]

    @property
    def digest(self) -> bytes:
        """Chain digest of its messages."""
        return self._chain[-1]


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    same = next(compress(count(), map(operator.is_not, one, other)), most)  # mostly all of it
    return next((at for at in range(same, most) if one[at] != other[at]), most)


def replay(  # noqa: PLR0913 - the options of the command
    recording: Recording,
    *,
    window: int,
    workspace: Path,
    keys: Keys,
    policy: Policy | None = None,
    until: int | None = None,
    release: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Report:
    """Replay a session into the vault of `workspace`, read everything back, and compare.

    Args:
        recording: the session.
        window: tokens of the model's context window.
        workspace: where the vault is, or is made.
        keys: the host's keys.
        policy: the settings; its window gives way to `window`.
        until: stop after this many requests.
        release: empty `recording` when it is no longer needed, before the views are rebuilt: a long
            session then stands in memory once, not twice.
        progress: called with the steps done and the steps there are.

    Raises:
        StorageError: where the vault cannot be written at all.

    """
    started = time.monotonic()
    vault = workspace / FOLDER  # said outright: COMPACTOR_HOME is for sessions, not for replays
    settings = (policy or Policy()).but(window=window)
    points = recording.requests[:until]
    report = Report(str(recording.path), _session_name(recording.path), window, recording.part)
    report.warnings = list(recording.warnings)
    digests = _send(report, recording, points, settings, vault, keys, progress)
    used = recording.messages[: points[-1].length] if points else []
    report.messages, report.requests = len(used), len(points)
    report.history_bytes = sum(len(canonical(message)) for message in used)
    with Transcript.open(vault, report.session, keys) as transcript:
        _read_back(report, used, transcript)
        if release:
            recording.messages.clear()
            used.clear()
        _rebuild(report, transcript, digests, progress)
    folder = vault / "s" / report.session
    report.vault_bytes = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    report.seconds = time.monotonic() - started
    return report


def _session_name(path: Path) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:30].strip("-")
    return "-".join(part for part in (stem, new_name()[:8]) if part)


def _send(  # noqa: PLR0913, PLR0917 - what a replay is made of
    report: Report,
    recording: Recording,
    points: Sequence[RequestPoint],
    policy: Policy,
    vault: Path,
    keys: Keys,
    progress: Callable[[int, int], None],
) -> list[bytes]:
    """Prepare every request, and return the digests of the views."""
    digests: list[bytes] = []
    with Compactor.open(vault, report.session, policy=policy, keys=keys) as session:
        for number, view, digest in _requests(session, recording, points, policy, report):
            digests.append(digest)
            report.decisions.update(decision.stage for decision in view.decisions)
            progress(number, 2 * len(points))
    return digests


def _requests(
    session: Compactor,
    recording: Recording,
    points: Sequence[RequestPoint],
    policy: Policy,
    report: Report,
) -> Iterator[tuple[int, View, bytes]]:
    wire = wire_format("anthropic")
    raw, sent = Meter(wire), Meter(wire)
    index = Index(wire, policy.not_human)
    judge = _Judge(wire, index, policy)
    history: list[JsonObject] = []
    known: dict[int, Message] = {}
    overhead: int | None = None
    for number, point in enumerate(points, 1):
        first = len(history)
        history += recording.messages[first : point.length]
        index.sync(history)
        known |= {
            id(message): index.messages[first + i] for i, message in enumerate(history[first:])
        }
        view = session.view(history, model=point.model)
        raw.take(history, known)
        sent.take(view.messages, known)
        used = wire.used_tokens(point.usage) if point.usage else None
        if used is not None and overhead is None:
            overhead = used - raw.size
        measured = _measured(used, overhead, raw.size)
        if measured is not None and not view.changed:
            session.observe({"input_tokens": measured})
        size = raw.size if measured is None else measured
        report.raw_sizes.append(size)
        report.view_sizes.append(size * sent.size // max(raw.size, 1))
        report.over_budget += view.over_budget
        report.illegal_views += judge.is_illegal(view.messages, sent)
        yield number, view, sent.digest
    report.raw_tokens, report.view_tokens = sum(report.raw_sizes), sum(report.view_sizes)
    report.peak_tokens = max(report.view_sizes, default=0)
    report.raw_cost, report.view_cost = raw.cost, sent.cost
    report.prefix_breaks = sent.breaks


def _measured(used: int | None, overhead: int | None, estimated: int) -> int | None:
    """Return what the provider measured for the messages alone, where that is believable.

    Sessions do not record the system prompt and the tools: what the first request measured above
    the estimate of its messages is taken to be theirs.
    """
    if used is None or overhead is None:
        return None
    low, high = _PLAUSIBLE
    return used - overhead if low * estimated < used - overhead < high * estimated else None


class _Judge:
    """Tells whether a view breaks what every view must keep.

    A view is the history with some blocks replaced, and with at most one run of messages less, in
    whose place notes stand. `_front` messages go side by side from the start, and those behind
    `_behind` (of the history) from the end.
    """

    def __init__(self, wire: Wire, index: Index, policy: Policy) -> None:
        self._wire = wire
        self._index = index
        self._long = policy.request_block_chars
        persist = policy.persist
        self._least = min(_PREVIEW, max(persist.preview_chars, persist.tail_chars))
        self._front = self._behind = 0
        self._shift: int | None = None  # how many messages fewer the view has

    def is_illegal(self, view: Sequence[JsonObject], sent: Meter) -> bool:
        """Judge the view of the history that the index holds now."""
        old, new = self._index.messages, sent.facts
        shift = len(old) - len(new)
        if sent.broken or shift != self._shift:
            self._align(old, new)
            self._shift = shift
        notes = new[self._front : self._behind - shift]
        return (
            (self._front < self._behind and not notes)
            or not all(map(_is_note, notes))
            or not all(
                _alike(old[at], new[at - shift])
                for at in range(max(sent.common + shift, self._behind), len(old))
            )
            or self._has_defects(new, sent.common, shift)
            or not self._shows_request(view, new, shift)
            or not all(self._shows(view, new, item, shift) for item in self._index.unconsumed())
        )

    def _align(self, old: Sequence[Message], new: Sequence[Message]) -> None:
        most = min(len(old), len(new))
        self._front = next((i for i in range(most) if not _alike(old[i], new[i])), most)
        back = next(
            (i for i in range(most - self._front) if not _alike(old[-1 - i], new[-1 - i])),
            most - self._front,
        )
        self._behind = len(old) - back

    def _has_defects(self, new: Sequence[Message], common: int, shift: int) -> bool:
        """Tell whether the exchanges from the last known message on have defects of the view's."""
        if not new:
            return False
        start = turn_start(new, max(min(common, len(new)) - 1, 0))
        found = Counter(defect.what for defect in defects(new, start))
        if not found:
            return False
        there = min(start, self._front)
        if start >= self._behind - shift:
            there = start + shift
        return bool(found - Counter(one.what for one in defects(self._index.messages, there)))

    def _shows_request(
        self, view: Sequence[JsonObject], new: Sequence[Message], shift: int
    ) -> bool:
        """Tell whether the human's blocks of the current request stand in a view."""
        index, at = self._index, self._index.request
        if at is None:
            return True
        asked = [(n, block) for n, block in enumerate(index.messages[at].blocks) if block.human]
        if self._front <= at < self._behind:  # in the notes
            shown = {b.digest for m in new[self._front : self._behind - shift] for b in m.blocks}
            return all(block.digest in shown for _, block in asked)
        there = at if at < self._front else at - shift
        return all(
            block.digest == new[there].blocks[number].digest
            or (
                block.kind is Kind.TEXT
                and block.chars > self._long
                and index.consumed(at)
                and self._previews(view[there], at, number)
            )
            for number, block in asked
        )

    def _shows(
        self, view: Sequence[JsonObject], new: Sequence[Message], item: Item, shift: int
    ) -> bool:
        """Tell whether a result that the model has not read stands in a view, or a preview."""
        at = item.message
        if self._front <= at < self._behind:
            return False
        there = at if at < self._front else at - shift
        block = new[there].blocks[item.block]
        same = block.digest == item.facts.digest
        return same or (
            block.images == item.facts.images and self._previews(view[there], at, item.block)
        )

    def _previews(self, message: JsonObject, at: int, block: int) -> bool:
        """Tell whether a block shows the start or the end of what stands in the history."""
        # A note escapes the tag of notes in what it quotes.
        shown = self._wire.block_text(message, block).replace("&lt;", "<")
        whole = self._wire.block_text(self._index.plain[at], block)
        ends = whole[: self._least], whole[-self._least :]
        return any(end.replace("&lt;", "<") in shown for end in ends)


def _is_note(message: Message) -> bool:
    """Tell whether a message may stand where messages were left out."""
    kinds = {block.kind for block in message.blocks}
    return message.role in {"user", "system"} and kinds <= {Kind.TEXT, Kind.MEDIA}


def _alike(old: Message, new: Message) -> bool:
    """Tell whether a message of a view may be this one, blocks of it shortened at most."""
    if old.digest == new.digest:
        return True
    blocks = old.blocks
    if len(blocks) != len(new.blocks):  # thinking that is void may be gone
        blocks = tuple(block for block in blocks if block.kind is not Kind.THINKING)
    if old.role != new.role or len(blocks) != len(new.blocks):
        return False
    return all(map(_may_be, blocks, new.blocks))


def _may_be(old: Block, new: Block) -> bool:
    if old.digest == new.digest:
        return True
    if old.kind not in _SHORTENED or (old.kind is Kind.TEXT and old.chars < LONG_TEXT):
        return False
    kind = Kind.TEXT if old.kind is Kind.MEDIA else old.kind
    same = (kind, old.call_id, old.tool) == (new.kind, new.call_id, new.tool)
    return same and new.tokens < old.tokens


def _original(decision: AnyDecision, messages: Sequence[JsonObject], wire: Wire) -> bytes:
    """Return the exact content that a decision leaves out."""
    at = decision.message
    if isinstance(decision, RangeDecision):
        return canonical(messages[at : at + decision.span.length])
    return wire.block_bytes(messages[at], decision.target.block)


def _read_back(report: Report, messages: Sequence[JsonObject], transcript: Transcript) -> None:
    """Read every left-out part from the vault alone, and compare."""
    wire = wire_format("anthropic")
    transcript.handles()
    for one in transcript.sets:
        for decision in one.decisions:
            original = _original(decision, messages, wire)
            try:
                report.differing += transcript.read(decision.handle) != original
            except (StorageError, CompactorError, OSError):
                report.unreadable += 1


def _rebuild(
    report: Report,
    transcript: Transcript,
    digests: Sequence[bytes],
    progress: Callable[[int, int], None],
) -> None:
    """Rebuild every view from the vault alone, and compare."""
    rebuilt = 0
    for request in transcript.requests():
        same = rebuilt < len(digests) and request.rebuilt == request.digest == digests[rebuilt]
        report.view_mismatches += not same
        rebuilt += 1
        progress(len(digests) + rebuilt, 2 * len(digests))
    report.view_mismatches += abs(len(digests) - rebuilt)
