"""The writing side of a transcript: what one turn adds to the vault.

`storage/FORMAT.md` describes the bodies of the records under "Record bodies". The history is the
memory: after a failed write nothing is assumed of the lane, and a later turn writes what is not
known to be stored into a new one.
"""

import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from compactor.storage import Kind, NoTranscript, StorageError, Vault, Writer

from .arguments import Arguments
from .decisions import DecisionSet, encode_digest
from .index import Edit, Index
from .messages import JsonObject
from .plan import ARRIVAL, UNDO
from .policy import INJECTED
from .recorded import Recorded

_RECORD_CHARS = 128 * 1024  # messages of about this size together make one record
_LONGEST_REST = 32

Records = list[tuple[Kind, JsonObject]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request about to be sent: its arguments, its view's digest, its cache marks."""

    arguments: Arguments
    view: bytes
    marks: list[list[int]]


class Recorder:
    """Appends turns to a session's lane.

    `sets` are those in force. `sent` and `anchor` are what an earlier process left: the length
    and the chain digest of its last view, and what its provider measured.
    """

    def __init__(  # noqa: PLR0913 - what its first record says
        self,
        open_vault: Callable[[], Vault],
        session: str,
        wire: str,
        wait: float,
        *,
        continues: str | None = None,
        parent: str | None = None,
        not_human: str = INJECTED,
    ) -> None:
        """Open the session for writing and read what it holds.

        `continues` names the session whose key is lost and in whose place this one goes on;
        `parent` the session of the agent whose sub-agent's this one is; `not_human` is that of the
        policy.

        Raises:
            StorageError: where the vault, the key or the lock refuses.

        """
        self._open_vault = open_vault
        self.session = session
        self._about = {"version": version("transcript-compactor"), "wire": wire}
        if continues is not None:
            self._about["continues"] = continues
        if parent is not None:
            self._about["parent"] = parent
        if not_human != INJECTED:
            self._about["not_human"] = not_human
        self._recorded = Recorded()
        self._answered: JsonObject | None = None
        self._reply: JsonObject | None = None
        self._replied_at = 0
        self._index: Index | None = None  # of the last turn, as the next
        self._prepared: Prepared | None = None
        self._closed = False
        self._last: JsonObject | None = None
        self._rest = self._rested = 0  # turns to leave the disk alone, and how many have passed
        self._refused: StorageError | OSError | None = None
        self._writer: Writer | None = None
        self._failed: Writer | None = None  # holds the session while it has no lane
        self._renewing = False
        try:
            self._start(wait)
        except BaseException:
            self._release()
            raise
        self.sets = tuple(self._recorded.sets.values())
        self.sent, self.anchor = self._recorded.sent, self._recorded.anchor
        self.undone, self.pins = self._recorded.undone, dict(self._recorded.pins)
        self.calibration = self._recorded.calibration
        self.time, self.void_from = self._recorded.time, self._recorded.void_from
        self.views, self.contents = dict(self._recorded.views), dict(self._recorded.contents)

    def _start(self, wait: float = 0) -> Writer:
        """Begin a lane, and read what the transcript holds."""
        vault = self._open_vault()
        writer = self._renewed() or vault.write(self.session, wait)
        try:
            self._recorded = Recorded()
            if self._renewing or writer.resumed:
                with vault.read(self.session) as reader:
                    self._recorded = Recorded.read(reader)
            writer.append([(Kind.OPEN, {**self._about, **_place(), **_previous(writer)})])
        except BaseException:
            self._failed = writer
            raise
        # Until the first turn has been written, what the vault holds is compared with the
        # history at hand instead of being assumed.
        self._writer, self._behind, self._last = writer, True, None
        return writer

    def _renewed(self) -> Writer | None:
        """Let the writer whose lane failed begin the next: it knows what it must not trust."""
        writer, self._failed = self._failed, None
        self._renewing = writer is not None
        if writer is None:
            return None
        try:
            writer.renew()
        except NoTranscript:  # another vault stands there now
            writer.close()
            self._renewing = False
            return None
        except BaseException:
            self._failed = writer
            raise
        return writer

    def turn(
        self, index: Index, edit: Edit, one: DecisionSet | None, prepared: Prepared | None
    ) -> None:
        """Append what is new: messages, the set, the request if there is one yet.

        A set is durable on return.

        When a lane fails, or the vault has vanished, what is not known to be stored is written to
        a new one at once. If that is refused too, the disk is left alone for 1, 2, 4 … 32 turns.

        Raises:
            StorageError, OSError: nothing of this turn counts as stored then.

        """
        self._index, self._prepared = index, prepared
        if self._refused is not None and self._rested < self._rest:
            self._rested += 1
            raise self._refused
        if self._writer is not None:
            try:
                self._write(self._writer, index, edit, one, prepared)
            except (StorageError, OSError):
                self.abandon()
        if self._writer is None:
            try:
                self._write(self._start(), index, edit, one, prepared)
            except (StorageError, OSError) as error:
                self.abandon()
                self._refused, self._rested = error, 0
                self._rest = min(2 * self._rest or 1, _LONGEST_REST)
                raise
        self._behind, self._refused, self._rest = False, None, 0
        if prepared is not None:
            self._answered = self._reply = None
        if one is not None:
            self.sets += (one,)
            self.undone = self.undone and one.reason in {ARRIVAL, UNDO}

    def _write(
        self,
        writer: Writer,
        index: Index,
        edit: Edit,
        one: DecisionSet | None,
        prepared: Prepared | None,
    ) -> None:
        sets = self._sets(one)
        records = [*self._history(index, edit), *sets]
        if prepared is not None:
            records += self._request(index, prepared)
        if records:
            writer.append(records)
        if sets or (self._behind and self.sets):
            writer.sync()

    def undo(self, one: DecisionSet) -> None:
        """Record that a set is no longer in force, but for what it did on arrival. Durable.

        Raises:
            StorageError, OSError: the next turn records it then.

        """
        rest = one.on_arrival()
        self.sets = (*(each for each in self.sets if each is not one), *filter(None, [rest]))
        self.undone, self.void_from = True, one.at
        numbers = [number for number, each in self._recorded.sets.items() if each == one]
        records = [(Kind.SET, {"drop": number, "undo": True}) for number in numbers]
        if rest is not None:
            records.append((Kind.SET, rest.encode()))
        self._now(records)

    def keep(self, one: DecisionSet) -> None:
        """Hold a set in force that the disk refused: a later turn records it."""
        self.sets += (one,)

    def pin(self, key: str, text: str | None) -> None:
        """Record a text that the host pins, or (None) that it stands no longer. Durable.

        Raises:
            StorageError, OSError: nothing is pinned then.

        """
        self._now([(Kind.SET, {"pin": {key: text}})])
        self.pins = dict(self._recorded.pins)

    def _now(self, records: Records) -> None:
        writer = self._writer or self._start()
        try:
            writer.append(records)
            writer.sync()
        except (StorageError, OSError):
            self.abandon()
            raise
        for _, body in records:
            self._recorded.enter(body)

    def abandon(self) -> None:
        """Give up the lane: the next turn compares what is stored with the history at hand."""
        if self._writer is not None:
            self._failed, self._writer = self._writer, None

    def _release(self) -> None:
        """Let the session go, for this or another process to open."""
        self.abandon()
        writer, self._failed = self._failed, None
        if writer is not None:
            with suppress(StorageError, OSError):
                writer.close()

    def _history(self, index: Index, edit: Edit) -> Records:
        records: Records = []
        start, removed, added = edit.start, edit.removed, edit.added
        inside = removed > 0 or start + added < len(index)
        if self._behind:
            start, inside = self._recorded.common(index.chain), False
            added = len(index) - start
            if start != self._recorded.length:
                records.append((Kind.REVERT, {"from": start}))
        elif inside:
            records.append((Kind.REVERT, {"from": start, "to": start + removed}))
        if records:
            self._recorded.revert(start)
        for chunk in _chunks(index, start, start + added):
            body: JsonObject = {"messages": index.plain[chunk.start : chunk.stop]}
            records.append((Kind.MESSAGES, {"at": chunk.start, **body} if inside else body))
        return records

    def _sets(self, one: DecisionSet | None) -> Records:
        """Return the records that bring the transcript's sets to those in force."""
        new = [one] if one is not None else []
        records: Records = []
        if self._behind:
            held = self._recorded.sets
            known, ours = set(held.values()), set(self.sets)
            dropped = [number for number, each in held.items() if each not in ours]
            undo = {"undo": True} if self.undone else {}
            records += [(Kind.SET, {"drop": number, **undo}) for number in dropped]
            new = [each for each in self.sets if each not in known] + new
        records += [(Kind.SET, each.encode()) for each in new]
        for _, body in records:
            self._recorded.enter(body)
        return records

    def _request(self, index: Index, prepared: Prepared) -> Records:
        chain = index.chain[-1]
        body: JsonObject = {"at": len(index), "chain": encode_digest(chain)}
        if prepared.view != chain:
            body["view"] = encode_digest(prepared.view)
        if prepared.marks:
            body["marks"] = prepared.marks
        changes = self._arguments(prepared.arguments)
        if not changes and body == self._last and self._answered is None:
            return []  # the same request once more
        self._last = body
        self._recorded.point(len(index), chain)
        return [(Kind.REQUEST, {**body, **changes, "time": _now(), **self._answer(index)})]

    def _arguments(self, arguments: Arguments) -> JsonObject:
        """Return the digests of arguments that changed, and the values that are new."""
        held = self._recorded.arguments
        named = {slot: arguments.names.get(slot) for slot in {**arguments.names, **held}}
        changed = {slot: name for slot, name in named.items() if held.get(slot) != name}
        fresh = {slot: name for slot, name in changed.items() if name is not None}
        values = {
            name: arguments.values[slot]
            for slot, name in fresh.items()
            if name not in self._recorded.values
        }
        held |= changed
        self._recorded.values |= values.keys()
        return {name: part for name, part in _parts(changed, values) if part}

    def answered(self, facts: JsonObject, reply: JsonObject | None, at: int) -> None:
        """Note that the request of a history of length `at` was answered.

        It is written with the next record; the reply itself only if no message has it by then.
        """
        self._answered, self._reply, self._replied_at = facts, reply, at

    def _answer(self, index: Index) -> JsonObject:
        if self._answered is None:
            return {}
        facts, reply = self._answered, self._reply
        if reply is not None:
            digest = index.digest(reply)
            if all(each.digest != digest for each in index.messages[self._replied_at :]):
                facts = {**facts, "reply": reply}
        return {"answered": facts}

    def flush(self) -> None:
        """Make all that was recorded durable, and what a refusal had left out.

        Raises:
            StorageError, OSError: nothing since the last set counts as stored then.

        """
        self._again(lambda writer, _: writer.sync())

    def close(self) -> None:
        """Write the close record, make everything durable and release the session.

        Raises:
            StorageError, OSError: where that could not be done; the session is released all the
                same.

        """
        if self._closed:
            return
        self._closed = True
        try:
            self._again(self._finish)
        finally:
            self._release()

    def _finish(self, writer: Writer, index: Index | None) -> None:
        body: JsonObject = {"time": _now()}
        if index is not None:
            body |= self._answer(index)
        if index is not None and not self._behind:
            body |= {"at": len(index), "chain": encode_digest(index.chain[-1])}
        writer.append([(Kind.CLOSE, body)])
        writer.sync()

    def _again(self, work: Callable[[Writer, Index | None], None]) -> None:
        """Do something with a lane that holds everything; if it fails, again with a new one."""
        if self._writer is not None:
            try:
                work(self._writer, self._index)
            except (StorageError, OSError):
                self.abandon()
            else:
                return
        try:
            writer, index = self._start(), self._index
            if index is not None and len(index):
                self._write(writer, index, Edit(len(index), 0, 0), None, self._prepared)
                self._behind = False
            work(writer, index)
        except (StorageError, OSError):
            self.abandon()
            raise


def _chunks(index: Index, start: int, end: int) -> Iterator[range]:
    first = start
    for position in range(start, end):
        if index.chars[position + 1] - index.chars[first] > _RECORD_CHARS and position > first:
            yield range(first, position)
            first = position
    if first < end:
        yield range(first, end)


def _parts(changed: JsonObject, values: JsonObject) -> Iterable[tuple[str, JsonObject]]:
    return (("arguments", changed), ("values", values))


def _now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _place() -> JsonObject:
    boot = None
    with suppress(OSError):  # Linux has it
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = {
        "time": _now(),
        "host": socket.gethostname(),
        "system": platform.system(),
        "process": os.getpid(),
        "boot": boot,
    }
    return {name: value for name, value in known.items() if value is not None}


def _previous(writer: Writer) -> JsonObject:
    before = writer.previous_hash
    return {} if before is None else {"previous": encode_digest(before)}
