"""Everything that a host, a process and a disk may do to one session, in any order."""

import errno
import logging
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from compactor import (
    CannotFit,
    Compactor,
    Keys,
    MaskPolicy,
    PersistPolicy,
    Policy,
    RangeDecision,
    StorageError,
    Transcript,
    View,
)
from compactor.storage import files
from tests.properties import hosts
from tests.properties.hosts import GENERATED, History, Message
from tests.properties.judge import (
    ARCHIVED,
    bare,
    blocks,
    canonical,
    exact,
    is_shown,
    marks,
    original,
    outside,
    request,
    result_texts,
    rules,
    same,
    same_form,
    seen,
    title,
    unpaired,
    unread,
)
from tests.properties.shapes import POLICIES, STAGES, Host, Turn, turns
from tests.properties.watch import Records

HANDLE = re.compile(r"\b[a-z]+-[a-z2-7]{8,}\b")
# Compact early in a window that has room for everything, so that an undo is possible.
EARLY = [
    Policy(
        window=90_000,
        trigger=0.12,
        target=0.05,
        min_gain=0.0,
        stages=STAGES,
        mask=MaskPolicy(keep_least=1),
    ),
    Policy(window=90_000, trigger=0.1, target=0.05, min_gain=0.0, stages=("persist", "archive")),
    Policy(
        window=120_000,
        stages=STAGES,
        trigger=0.1,
        target=0.02,
        min_gain=0.0,
        persist=PersistPolicy(always_chars=2_400, preview_chars=300, tail_chars=100),
        mask=MaskPolicy(keep_recent=1, keep_least=1),
    ),
]
LONGEST_REST = 33  # views that a disk which refused is left alone at the most, and one
FAULTS = ("write_all", "sync_data", "sync_file", "sync_folder", "part")

steps = st.one_of(
    *[st.tuples(st.just("append"), st.lists(turns, min_size=1, max_size=4))] * 5,
    *[st.tuples(st.just("work"), st.lists(turns, min_size=4, max_size=9))] * 4,
    *[st.tuples(st.just("disk"), st.tuples(st.sampled_from(FAULTS), st.integers(1, 3)))] * 2,
    st.tuples(st.just("rewind"), st.integers(0, 12)),
    st.tuples(st.just("front"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["edit", "harmless", "flip"]), st.integers(0, 40)),
    st.tuples(st.just("remind"), st.sampled_from(["in front", "in the first", "in the last"])),
    st.tuples(st.just("pin"), st.sampled_from(["We keep the old API.", "Never mind.", None])),
    st.tuples(st.just("observe"), st.sampled_from([0.8, 1.0, 1.3])),
    *[
        st.tuples(st.sampled_from(["undo", "write back", "reopen", "crash"]), st.none()),
        st.tuples(st.sampled_from(["mark", "reload", "twice", "undo"]), st.none()),
    ]
    * 3,
)


class Disk:
    """Refuses for some views, and then works again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fault: str | None = None
        self.views = 0
        for name in FAULTS[:-1]:
            patch.setattr(files, name, self._breaking(name, getattr(files, name)))

    def _breaking(self, name: str, works: Callable[..., None]) -> Callable[..., None]:
        def call(fd: int, *data: bytes) -> None:
            if self.fault == "part" and data:
                works(fd, data[0][: len(data[0]) // 2])
            if self.fault == name or (self.fault == "part" and data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            works(fd, *data)

        return call

    def refuse(self, fault: str, views: int) -> None:
        self.fault, self.views = fault, views

    def heal(self) -> None:
        self.fault = None

    def tick(self) -> None:
        self.views -= 1
        if self.views < 0:
            self.heal()


class Walk:
    """One session, its host and its disk; each view is held to what is promised of it."""

    def __init__(self, folder: Path, policy: Policy, disk: Disk) -> None:
        self.host = Host()  # has the whole history, whatever the session is given
        self.disk = disk
        self.policy = policy
        self.folder = folder
        self.originals: dict[str, bytes] = {}
        self.ranges: dict[str, tuple[int, int]] = {}  # messages that it hides, and its own
        self.stored: set[str] = set()  # handles that the vault has for certain
        self.pins: dict[str, str] = {}
        self.sent: list[tuple[list[str], list[list[int]], bool]] = []
        self.written: History | None = None  # a view in the place of the first `stood` messages
        self.stood = 0
        self.view: View | None = None
        self.sets = self.undone = self.degraded = 0
        self._broken = False  # whether the disk has refused something since a view was stored
        self._may_rewrite = self._rewound = self._resumed = self._recalled = False
        self._before: list[str] = []
        self._history: list[str] = []
        folder.mkdir()
        self.session = self._open()

    def _keys(self) -> Keys:
        return Keys(b"k" * 32, self.folder / "state")

    def _open(self) -> Compactor:
        return Compactor.open(self.folder, "one", policy=self.policy, keys=self._keys())

    # What happens.

    def do(self, name: str, value: Any) -> None:
        """Let one thing happen, and take a view."""
        if name in {"edit", "harmless", "front", "mark", "flip", "remind"}:
            self.written = None  # who edits has kept the whole history
        doing: dict[str, Callable[[], object]] = {
            "append": lambda: self.host.extend(value),
            "work": lambda: self._work(value),
            "rewind": lambda: self._rewind(value),
            "front": lambda: self.host.front(value),
            "edit": lambda: self.host.edit(value),
            "harmless": lambda: self.host.harmless(value),
            "flip": lambda: hosts.flip(self.host.history, value),
            "remind": lambda: hosts.remind(self.host.history, value, self.host.number()),
            "mark": self.host.mark,
            "reload": self._reload,
            "disk": lambda: self._refuse(*value),
            "pin": lambda: self._pin(value),
            "observe": lambda: self._observe(value),
            "undo": self._undo,
            "write back": self._write_back,
            "reopen": self._reopen,
            "crash": self._crash,
        }
        doing.get(name, lambda: None)()
        before = self.view
        view = self.look()
        if name == "twice" and not self._broken and before is not None and not before.degraded:
            assert view.decisions == ()
            assert exact(view.messages) == exact(before.messages)

    def _work(self, new: list[Turn]) -> None:
        """Let the model work on its own: the request falls behind."""
        self.host.extend([replace(turn, human=None) for turn in new if turn.calls])

    def _rewind(self, back: int) -> None:
        self.host.rewind(back)
        if len(self.host.history) < self.stood:
            self.written = None

    def _reload(self) -> None:
        self.host.reload()
        if self.written is not None:
            self.written = hosts.reloaded(self.written)

    def _refuse(self, fault: str, views: int) -> None:
        self._broken = True
        self.disk.refuse(fault, views)

    def _pin(self, text: str | None) -> None:
        self.pins.pop("rule", None)
        try:
            if text is None:
                self.session.unpin("rule")
            else:
                self.session.pin("rule", text)
                self.pins["rule"] = text
        except StorageError:
            assert self._broken

    def _observe(self, factor: float) -> None:
        if self.view is not None:
            self.session.observe({"input_tokens": int(factor * self.view.stats.view_tokens)})

    def _undo(self) -> None:
        known = self.session.handles()
        try:
            self.undone += self.session.undo() is not None
        except CannotFit:
            pass
        except StorageError:
            assert self._broken
            self._may_rewrite = True
        else:
            self._may_rewrite = True
        assert self.session.handles() == known

    def _write_back(self) -> None:
        if self.view is not None and self.view.changed:
            self.written, self.stood = list(self.view.messages), len(self.host.history)

    def _reopen(self) -> None:
        try:
            self.session.close()
        except StorageError:
            assert self._broken
            self._lost()
        self.disk.heal()
        self._go_on()

    def _crash(self) -> None:
        """Go on in a copy of the vault; the process that wrote it never closes it."""
        copy = self.folder.with_name(f"{self.folder.name}+")
        shutil.copytree(self.folder, copy)
        left, self.folder = self.session, copy
        if self._broken:
            self._lost()
        self.disk.heal()
        self._go_on()
        left.close()

    def _lost(self) -> None:
        """Nobody has what was not stored but the host, who knows that it must keep it."""
        self._may_rewrite, self.written = True, None

    def _go_on(self) -> None:
        self._resumed = True
        if self.written is not None:
            self._recalled = True
        self.session = self._open()

    # What must hold.

    def look(self) -> View:
        """Take a view and hold it to everything that can be seen from outside."""
        truth = self.host.history
        given = truth if self.written is None else [*self.written, *truth[self.stood :]]
        dumped, objects = exact(given), list(map(id, given))
        with self._nothing_dropped():
            view = self.session.view(given)
        assert exact(given) == dumped, "the history was changed"
        assert list(map(id, given)) == objects, "the history's messages were exchanged"
        self._check_disk(view)
        self._note_ranges(truth, view)
        self._check_content(truth, view)
        self._check_prefix(truth, view)
        self._check_handles(view)
        self.sent.append((self._before, marks(view.messages), view.degraded is None))
        self.view = view
        self.sets += bool(view.decisions)
        self.degraded += view.degraded is not None
        self.disk.tick()
        return view

    @contextmanager
    def _nothing_dropped(self) -> Iterator[None]:
        """Fail where the engine's own check had to drop a set, or it had to start over."""
        records: list[logging.LogRecord] = []
        handler, logger = Records(records), logging.getLogger("compactor")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
        faults = [record for record in records if record.levelno >= logging.ERROR]
        assert not faults, (faults[0].getMessage(), faults[0].exc_info)

    def _check_disk(self, view: View) -> None:
        if view.degraded is None:
            self._broken = self.disk.fault is not None
        else:
            assert self._broken, view.degraded
            assert "No space left" in view.degraded
            if view.decisions:
                assert self._is_tight(view), "something is hidden that is not stored"

    def _is_tight(self, view: View) -> bool:
        """Tell whether the whole history would not fit: the one case in which that may be."""
        whole, policy = view.stats, self.policy
        if policy.context_chars is not None:
            return whole.original_chars > 0.9 * policy.context_chars
        return whole.original_tokens > 0.9 * whole.window

    def _note_ranges(self, truth: History, view: View) -> None:
        for decision in view.decisions:
            if isinstance(decision, RangeDecision):
                start, length = decision.span.start, decision.span.length
                hidden = truth[start : start + length]
                self.ranges[decision.handle] = length, len(decision.messages)
                held = self.originals.setdefault(decision.handle, canonical(hidden))
                assert same(held, canonical(hidden)), "a handle that names two things"
                for text in self.pins.values():
                    assert text in str(decision.messages[0]), "a pinned text was left out"

    def _check_content(self, truth: History, view: View) -> None:
        assert unpaired(view.messages) == []
        was, now = unread(truth), unread(view.messages)
        assert [b["tool_use_id"] for b in was] == [b["tool_use_id"] for b in now]
        for a, b in zip(was, now, strict=True):
            assert is_shown(a, b), f"an unread result: {str(a)[:150]} was shown as {str(b)[:400]}"
        pairs = self._aligned(truth, view)
        for a, b in pairs:
            one, other = (self._bare(a), self._bare(b)) if self._recalled else (a, b)
            assert outside(one, one) == outside(other, one), "what no decision may change"
        self._check_request(truth, view)
        shown_as = {id(a): b for a, b in pairs}
        for decision in view.decisions:
            if not isinstance(decision, RangeDecision):
                place = decision.target
                whole = original(blocks(truth[place.message])[place.block])
                held = self.originals.setdefault(decision.handle, whole)
                assert held == whole, "a handle that names two things"
                shown = shown_as.get(id(truth[place.message]))
                assert shown is None or decision.handle in self._text(shown)

    @staticmethod
    def _bare(message: Message) -> Message:
        """Leave out what the transcript has as it was first seen: marks, nulls, spelling."""
        return {**message, "content": [seen(block) for block in blocks(message)]}

    def _aligned(self, truth: History, view: View) -> list[tuple[Message, Message]]:
        """Pair the messages of a view with those of the history that it shows."""
        pairs: list[tuple[Message, Message]] = []
        at, rest = 0, iter(view.messages)
        for shown in rest:
            found = ARCHIVED.match(title(shown))
            if found and found[1] in self.ranges:
                hidden, own = self.ranges[found[1]]
                kept = [next(rest) for _ in range(own - 1)]
                assert rules(kept) == rules(truth[at : at + hidden]), "a rule was left out"
                assert same(self.originals[found[1]], canonical(truth[at : at + hidden]))
                at += hidden
            else:
                pairs.append((truth[at], shown))
                at += 1
        assert at == len(truth), "messages that nothing stands for"
        return pairs

    def _check_request(self, truth: History, view: View) -> None:
        """The blocks of the human's newest message stand there once, wherever its message is."""
        if self._recalled:  # whose cache marks are those of the day when it was first seen
            return
        shown, written = (Counter(self._own(messages)) for messages in (view.messages, truth))
        for block, count in Counter(request(truth)).items():
            assert shown[block] >= count, "the current request was left out"
            again = shown[block] > count == written[block]
            assert not again, "the current request stands there twice"

    @staticmethod
    def _own(messages: History) -> Iterator[bytes]:
        return (bare(block) for message in messages for block in blocks(message))

    def _check_prefix(self, truth: History, view: View) -> None:
        """Only a set, an undo, a changed history and a loss of what was not stored rewrite."""
        now = list(map(same_form, view.messages))
        forms = list(map(same_form, truth))
        before, shorter = self._before, min(len(self._before), len(now))
        pairs = zip(before, now, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        rewrites = common if common < shorter else None
        changed = forms[: len(self._history)] != self._history
        self._rewound |= changed
        if rewrites is not None and not (view.decisions or changed or self._may_rewrite):
            # After a rewind a mask was void while its result was unread; now it holds again.
            assert self._rewound, "the prefix broke without a set"
            assert self._handles([view.messages[rewrites]]), "the prefix broke without a set"
        stored = self.view is not None and self.view.degraded is None
        unsaid = self._resumed and (changed or self._may_rewrite or rewrites is None or not stored)
        # What was undone may be decided again at once, in the same words.
        again = self._may_rewrite and bool(view.decisions) and rewrites is None
        if not (unsaid or again):
            claimed = view.rewrites_from, view.stable_prefix
            assert claimed == (rewrites, common), f"{claimed} said, {rewrites, common} found"
        self._before, self._history = now, forms
        self._may_rewrite = self._resumed = False

    def _text(self, message: Message) -> str:
        """Return what a message says, the contents of its results too."""
        parts = [[str(block.get("text", "")), *result_texts(block)] for block in blocks(message)]
        return "\n".join(text for part in parts for text in part)

    def _handles(self, messages: History) -> set[str]:
        """Return the handles that stand in messages."""
        found = {name for message in messages for name in HANDLE.findall(self._text(message))}
        return found & self.originals.keys()

    def _check_handles(self, view: View) -> None:
        """What stands in a live view reads back, to the byte."""
        live = self._handles(view.messages)
        assert live | self.stored <= set(self.session.handles())
        if view.degraded is None:
            self.stored |= live | {decision.handle for decision in view.decisions}
        self._read(live, self.session.read)

    def _read(self, handles: set[str], read: Callable[[str], bytes]) -> None:
        for handle in handles:
            compare = same if handle in self.ranges else bytes.__eq__
            assert compare(read(handle), self.originals[handle]), "another original"

    # How it ends.

    def finish(self) -> None:
        """The disk works again: all is stored soon, and proves itself from the transcript."""
        self.disk.heal()
        views = 0
        while self.look().degraded is not None:
            views += 1
            assert views <= LONGEST_REST, "a disk that works again is not used"
        self._read(self.stored, self.session.read)
        self.session.close()
        with Transcript.open(self.folder, "one", self._keys()) as transcript:
            stored = list(map(same_form, transcript.messages()))
            assert stored == list(map(same_form, self.host.history))
            self._read(self.stored, transcript.read)
            self._check_requests(transcript)

    def _check_requests(self, transcript: Transcript) -> None:
        """Each is whole, and those that were stored are there, in order."""
        rest = iter(transcript.requests())
        recorded: tuple[list[str], list[list[int]]] | None = None
        for messages, marked, stored in self.sent:
            if not stored or (messages, marked) == recorded:
                continue  # the same once more need not be recorded
            for one in rest:
                assert one.whole, f"request {one.number} is not what was sent"
                before, recorded = recorded, (list(map(same_form, one.messages)), one.marks)
                if recorded == (messages, marked):
                    break
                assert recorded == before or self.degraded, f"request {one.number} was never made"
            else:
                pytest.fail("a view that was sent is not in the transcript")
        assert all(one.whole for one in rest)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.timeout(120)
@settings(GENERATED, max_examples=32)
@given(
    st.sampled_from([*POLICIES, *EARLY, *EARLY]),
    st.lists(turns, min_size=8, max_size=14),
    st.lists(steps, min_size=8, max_size=16),
)
def test_everything_at_once(policy: Policy, first: list[Turn], plan: list[tuple[str, Any]]) -> None:
    """Whatever comes between two requests, in whatever order: each view keeps every promise."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        walk = Walk(Path(name) / "w", policy, Disk(patch))
        try:
            for what, value in [("append", first), *plan]:
                note(f"{what}: {value}")
                walk.do(what, value)
            walk.finish()
        finally:
            walk.disk.heal()
            walk.session.close()
        event(f"{min(walk.sets, 4)} sets or more, {min(walk.undone, 2)} undone or more")
