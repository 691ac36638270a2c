"""Hold a session to its promises, view by view, from the messages alone."""

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import Any, Self

from compactor import Compactor, Keys, Policy, RangeDecision, Transcript, View
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
    size,
    title,
    unpaired,
    unread,
)


class Records(logging.Handler):
    """Keep warnings and worse."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.WARNING)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Watch:
    """One session in a folder of its own; each `view` is held to what is promised of it."""

    def __init__(self, folder: Path, policy: Policy, **arguments: Any) -> None:
        self.folder = folder
        self.policy = policy
        self.arguments = arguments
        self.originals: dict[str, bytes] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.sent: list[tuple[list[str], list[list[int]]]] = []
        self.sets = 0
        self.rewrites = 0
        self._rewound = self._resumed = False
        self._before: list[str] | None = None
        self._last: object = None
        self._forms: dict[int, tuple[Any, str]] = {}
        self._history: list[str] = []
        folder.mkdir()
        self.session = self._open(folder)

    @classmethod
    @contextmanager
    def somewhere(cls, policy: Policy) -> Iterator[Self]:
        """Watch a session in a folder that goes away; it is closed whatever happens."""
        with tempfile.TemporaryDirectory() as name:
            watched = cls(Path(name) / "w", policy)
            try:
                yield watched
            finally:
                watched.session.close()

    def _open(self, folder: Path) -> Compactor:
        keys = Keys(b"k" * 32, folder / "state")
        return Compactor.open(folder, "one", policy=self.policy, keys=keys)

    def transcript(self) -> Transcript:
        return Transcript.open(self.folder, "one", Keys(b"k" * 32, self.folder / "state"))

    def _form(self, message: dict[str, Any]) -> str:
        """Return `same_form`, worked out once for an object that nobody changes."""
        held = self._forms.get(id(message))
        if held is None or held[0] is not message:
            held = self._forms[id(message)] = (message, same_form(message))
        return held[1]

    def view(self, history: list[Any], policy: Policy | None = None) -> View:
        """Take a view and hold it to everything that can be seen from outside."""
        dumped = exact(history)
        snapshot = sha256(dumped).digest()
        objects = list(map(id, history))
        with self._nothing_refused():
            view = self.session.view(history, policy=policy, **self.arguments)
        assert sha256(exact(history)).digest() == snapshot, "the history was changed"
        assert list(map(id, history)) == objects, "the history's messages were exchanged"
        assert view.degraded is None
        assert (view.messages is history) == (not view.changed)
        self._check_content(history, view)
        self._check_decisions(history, view)
        self._check_prefix(history, view)
        marked = marks(view.messages) if b'"cache_control"' in dumped else []
        self._sent(marked)
        return view

    @contextmanager
    def _nothing_refused(self) -> Iterator[None]:
        """Fail where the engine's own check had to drop a set: the plan was wrong then."""
        records: list[logging.LogRecord] = []
        handler = Records(records)
        logger = logging.getLogger("compactor")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
        faults = [record for record in records if "too large" not in record.msg]
        assert not faults, faults[0].getMessage()

    def _check_content(self, history: list[Any], view: View) -> None:
        assert unpaired(view.messages) == []
        shown = Counter(bare(block) for message in view.messages for block in blocks(message))
        assert all(shown[block] for block in request(history)), "the current request"
        was, now = unread(history), unread(view.messages)
        assert [b["tool_use_id"] for b in was] == [b["tool_use_id"] for b in now]
        for a, b in zip(was, now, strict=True):
            assert is_shown(a, b), f"an unread result: {str(a)[:150]} was shown as {str(b)[:400]}"
        self._new_ranges(history, view)
        pairs, ranges = self._aligned(history, view.messages)
        other = [(was, now) for was, now in pairs if was is not now]
        assert all(outside(was, was) == outside(now, was) for was, now in other)
        assert bool(other or ranges) == view.changed
        assert all(marks([was]) == marks([now]) for was, now in other), "a cache mark"
        assert len(marks(view.messages)) <= len(marks(history))

    def _new_ranges(self, history: list[Any], view: View) -> None:
        for decision in view.decisions:
            if isinstance(decision, RangeDecision):
                start, length = decision.span.start, decision.span.length
                hidden = history[start : start + length]
                first = all(message["role"] == "assistant" for message in hidden[:1])
                assert first or (start == 0 and decision.summary is not None)
                kept = list(decision.messages[1:])
                assert {message["role"] for message in kept} <= {"system"}
                assert rules(kept) == rules(hidden), "a rule of the host was left out"
                self.ranges[decision.handle] = length, len(decision.messages)
                held = self.originals.setdefault(decision.handle, canonical(hidden))
                assert same(held, canonical(hidden)), "a handle that names two things"

    def _aligned(self, history: list[Any], shown: list[Any]) -> tuple[list[tuple[Any, Any]], int]:
        """Pair the messages of a view with those of the history; count the ranges between."""
        pairs: list[tuple[Any, Any]] = []
        was = now = ranges = 0
        while now < len(shown):
            found = ARCHIVED.match(title(shown[now]))
            held = self.ranges.get(found[1]) if found else None
            if held:
                was, now, ranges = was + held[0], now + held[1], ranges + 1
            else:
                pairs.append((history[was], shown[now]))
                was, now = was + 1, now + 1
        assert was == len(history)
        return pairs, ranges

    def _check_decisions(self, history: list[Any], view: View) -> None:
        self.sets += bool(view.decisions)
        pairs, _ = self._aligned(history, view.messages)
        shown_as = {id(was): now for was, now in pairs}
        for decision in view.decisions:
            if isinstance(decision, RangeDecision):
                continue
            place = decision.target
            whole = blocks(history[place.message])[place.block]
            shown = blocks(shown_as[id(history[place.message])])[place.block]
            assert size(shown) < size(whole), "a decision that does not shrink its block"
            assert decision.note in (shown.get("text"), *result_texts(shown))
            assert decision.handle in decision.note.split("\n", 1)[0], "the handle comes first"
            held = self.originals.setdefault(decision.handle, original(whole))
            assert held == original(whole), "a handle that names two things"
        if view.changed:
            assert view.stats.view_tokens < view.stats.original_tokens

    def _check_prefix(self, history: list[Any], view: View) -> None:
        now = [self._form(message) for message in view.messages]
        before = self._before if self._before is not None else []
        pairs = zip(before, now, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))
        rewrites = common if common < min(len(before), len(now)) else None
        forms = [self._form(message) for message in history]
        # After a rewind, a mask whose result was unread again holds once it is consumed anew.
        self._rewound |= forms[: len(self._history)] != self._history
        if not self._rewound and not view.decisions:
            assert rewrites is None, "the prefix broke without a set"
        claimed = view.rewrites_from, view.stable_prefix
        # A new process knows the last view only where the history goes on from it.
        unknown = self._resumed and self._rewound and claimed == (None, 0)
        assert unknown or claimed == (rewrites, common)
        self._resumed = False
        self.rewrites += rewrites is not None
        self._before, self._history = now, forms

    def _sent(self, marked: list[list[int]]) -> None:
        """Note what was sent; the same request once more is not recorded twice."""
        record = (self._history, self._before, marked)
        if record != self._last:
            self._last = record
            self.sent.append((self._before or [], marked))

    def again(self, history: list[Any], view: View, policy: Policy | None = None) -> None:
        """Ask once more: nothing is decided twice."""
        twice = self.view(history, policy)
        assert twice.decisions == ()
        assert twice.rewrites_from is None
        assert exact(twice.messages) == exact(view.messages)

    def restarted(self, history: list[Any], view: View, policy: Policy | None = None) -> None:
        """Open a copy of the vault, as after a crash: the same view, bytes and all."""
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name) / "copy"
            shutil.copytree(self.folder, copy)
            with self._open(copy) as other:
                fresh = loads(dumps(history))
                twice = other.view(fresh, policy=policy, **self.arguments)
            assert twice.degraded is None
            assert twice.decisions == (), "a restart decided again"
            assert exact(twice.messages) == exact(view.messages), "other bytes after a restart"

    def crash(self) -> None:
        """Go on in a copy of the vault; the session that wrote it never closes."""
        copy = self.folder.with_name(f"{self.folder.name}+")
        shutil.copytree(self.folder, copy)
        left, self.folder = self.session, copy
        self._resume()
        left.close()

    def reopen(self) -> None:
        self.session.close()
        self._resume()

    def _resume(self) -> None:
        self.session = self._open(self.folder)
        self._last, self._resumed = None, True

    def reads(self) -> None:
        """Read every handle ever issued, by the session and by the transcript."""
        assert set(self.session.handles()) == set(self.originals)
        with self.transcript() as transcript:
            assert set(transcript.handles()) == set(self.originals)
            assert all(one.after < one.before for one in transcript.sets)
            for handle, content in self.originals.items():
                compare = same if handle in self.ranges else bytes.__eq__
                assert compare(self.session.read(handle), content)
                assert compare(transcript.read(handle), content)

    def rebuilt(self) -> None:
        """Rebuild every request from the transcript alone and compare it with what was sent."""
        with self.transcript() as transcript:
            requests = list(transcript.requests())
        for request_, (messages, marked) in zip(requests, self.sent, strict=False):
            assert request_.whole, f"request {request_.number} is not what was sent"
            assert list(map(same_form, request_.messages)) == messages
            assert request_.marks == marked
        assert len(requests) == len(self.sent)

    def finish(self, history: list[Any], policy: Policy | None = None) -> None:
        """End a conversation: all reads back, every request is rebuilt, the history is stored."""
        self.restarted(history, self.view(history, policy), policy)
        self.reads()
        self.session.close()
        self.rebuilt()
        with self.transcript() as transcript:
            self.check_history(transcript.messages(), history)

    @staticmethod
    def check_history(stored: list[Any], history: list[Any]) -> None:
        """Compare what the transcript holds with the history, cache marks and spelling apart."""
        assert list(map(same_form, stored)) == list(map(same_form, history))
