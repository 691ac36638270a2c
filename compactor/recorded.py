"""What a session's transcript holds already, found without decrypting its messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from compactor.storage import Damaged, Kind, Reader

from .decisions import DecisionSet, decode_digest
from .messages import JsonObject
from .plan import ARRIVAL, UNDO
from .tokens import Anchor, Calibration


@dataclass(slots=True)
class Recorded:
    """The state that a writer goes on from.

    `sets` are those in force, by their number in the transcript, of `taken` that were recorded;
    `points` are lengths of the recorded history with their chain digests; `length` is how many
    messages it has now (None: a crashed writer may have left more than the last point says).
    `sent` is the length and the chain digest of the last view, `anchor` what its provider
    measured, where no set has rewritten it since, `calibration` what that taught, `time` when it
    was prepared, in milliseconds since the epoch. `undone`: the last compaction was undone, and no
    view has followed that lacks the thinking since the message `void_from`. `pins` are texts by
    their keys. `views` are the chain digests of views that were not the history itself, with the
    lengths of the histories that they stood for; `contents` says what each handle names that a set
    ever had.
    """

    sets: dict[int, DecisionSet] = field(default_factory=dict)
    taken: int = 0
    points: list[tuple[int, bytes]] = field(default_factory=list)
    length: int | None = 0
    sent: tuple[int, bytes] | None = None
    time: int | None = None
    undone: bool = False
    pins: dict[str, str] = field(default_factory=dict)
    views: dict[bytes, int] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    anchor: Anchor | None = None
    calibration: Calibration = field(default_factory=Calibration)
    void_from: int | None = None
    rewritten: bool = False
    arguments: dict[str, str | None] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read everything but messages, of which it is only seen whether they open.

        A damaged record costs what it said. After damage, and after a writer that did not close,
        no message counts as recorded: after a power
        cut a record may have reached the disk before the blob that it names. Recording them again
        costs the small ones' size, and puts right what was torn.

        Raises:
            StorageError: where the key is wrong or the disk refuses.

        """
        made = cls()
        closed = whole = True
        for frame in reader.frames():
            closed = closed and frame.kind in {Kind.OPEN, Kind.CLOSE}
            if frame.kind is Kind.MESSAGES:
                made.length = None
                whole = whole and reader.opens(frame)
                continue
            try:
                body = reader.value(frame)
            except Damaged:
                whole = False
                continue
            made.take(frame.kind, body)
            # A writer that saw no history vouches for nothing that stood there before.
            closed = closed or (frame.kind is Kind.CLOSE and "chain" in body)
        if not (closed and whole) or reader.skipped:
            made.points.clear()
            made.length = None
        return made

    def take(self, kind: Kind, body: Any) -> None:
        """Take in one record that holds no messages."""
        if kind is Kind.SET:
            self.enter(body)
        elif kind is Kind.REVERT:
            self.revert(body["from"])
        elif "chain" in body:
            self.point(body["at"], decode_digest(body["chain"]))
        if kind is Kind.REQUEST:
            self.void_from = None
            self.time = body["time"]
            self.sent = body["at"], decode_digest(body.get("view", body["chain"]))
            if "view" in body:
                self.views[self.sent[1]] = body["at"]
        self._measure(kind, body)
        self.arguments |= body.get("arguments", {})
        self.values.update(body.get("values", ()))

    def _measure(self, kind: Kind, body: JsonObject) -> None:
        """Keep what the provider measured until something rewrites what it had measured."""
        rewrote = kind is Kind.SET and "pin" not in body and body.get("reason") != ARRIVAL
        if kind is Kind.REVERT or rewrote:
            self.rewritten = True
        elif kind in {Kind.REQUEST, Kind.CLOSE}:
            anchor = body.get("answered", {}).get("anchor")
            if (learned := body.get("answered", {}).get("calibration")) is not None:
                self.calibration = Calibration(*learned)
            if self.rewritten:
                self.anchor = None
            elif anchor is not None:
                self.anchor = Anchor(*anchor)
            self.rewritten = False

    def enter(self, body: JsonObject) -> None:
        """Take in a set record: a new set, one that is no longer in force, or a pin."""
        if "pin" in body:
            for key, text in body["pin"].items():
                self.pins.pop(key, None)
                self.pins |= {} if text is None else {key: text}
        elif "drop" in body:
            gone = self.sets.pop(body["drop"], None)
            if body.get("undo", False):
                self.undone, self.void_from = True, gone.at if gone else None
        else:
            self.taken += 1
            one = self.sets[self.taken] = DecisionSet.decode(body)
            self.contents |= {decision.handle: decision.content for decision in one.decisions}
            self.undone = self.undone and one.reason in {ARRIVAL, UNDO}

    def point(self, length: int, chain: bytes) -> None:
        """Note that the recorded history has this length and this chain digest."""
        self.length = length
        if (length, chain) not in self.points[-1:]:
            self.points.append((length, chain))

    def revert(self, start: int) -> None:
        """Note that the recorded history changed from `start` on."""
        self.points = [point for point in self.points if point[0] <= start]
        self.views = {view: length for view, length in self.views.items() if length <= start}
        self.length = None

    def common(self, chain: Sequence[bytes]) -> int:
        """Return how many leading messages of a history are recorded for certain."""
        for length, digest in reversed(self.points):
            if length < len(chain) and chain[length] == digest:
                return length
        return 0
