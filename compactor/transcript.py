"""The reading side of a session: for the agent's tools, the command line, auditors, sub-agents.

A transcript is read as it was written: the records are gone through in order, and each request is
rebuilt by the code that made its view.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any, Self

import orjson

from compactor.storage import Damaged, Frame, Keys, Kind, Place, Reader, Vault

from .decisions import AnyDecision, DecisionSet, RangeDecision, decode_digest, range_digest
from .errors import UnknownHandle
from .index import Index
from .messages import JsonObject, canonical
from .originals import in_history
from .policy import INJECTED
from .recorded import Recorded
from .render import Renderer
from .wire import Wire, wire_format

FOLDER = ".transcripts"

# Where a message is stored: its record and its position there; None where that was damaged.
_Source = tuple[Frame, int] | None


def vault_root(place: str | Path) -> Path:
    """Return the folder of a vault that is named by its workspace, or by itself.

    A folder of the name `.transcripts`, or one that holds a vault's STORE.json, is the vault.
    Otherwise the vault is the workspace's `.transcripts`, or, where `COMPACTOR_HOME` is set, a
    folder of the workspace's own in there.
    """
    path = Path(place)
    if path.name == FOLDER or _is_vault(path):
        return path
    home = os.environ.get("COMPACTOR_HOME")
    if not home:
        return path / FOLDER
    whole = path.resolve()
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()[:8]
    return Path(home) / f"{re.sub('[^A-Za-z0-9._-]', '_', whole.name)[:40]}-{digest}"


def _is_vault(path: Path) -> bool:
    try:
        store = orjson.loads((path / "STORE.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(store, dict) and {"format", "store_id"} <= store.keys()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was sent.

    `number` counts from 1. `messages` is the view, rebuilt; `digest` the chain digest that was
    recorded when it was sent and `rebuilt` that of `messages`. `marks` are the message and block
    positions of cache marks. `time` is in milliseconds since the epoch. `answered` is what is
    known of the answer: `usage`, `stop_reason`, and `reply` where no later message is it.
    """

    number: int
    messages: list[JsonObject]
    system: Any
    tools: list[JsonObject] | None
    options: Mapping[str, Any]
    marks: list[list[int]]
    time: int
    digest: bytes
    rebuilt: bytes
    answered: Mapping[str, Any] | None = None

    @property
    def whole(self) -> bool:
        """Whether the rebuilt view is the one that was sent."""
        return self.digest == self.rebuilt


class Transcript:
    """One session's record, opened for reading; a writer may be at work beside it."""

    def __init__(self, reader: Reader) -> None:
        """Use `Transcript.open` instead."""
        self._reader = reader
        self._last: Place | None = None
        self._history: list[_Source] = []
        self._sources: dict[str, tuple[AnyDecision, list[_Source]]] = {}
        self._digests: dict[tuple[Place, int], bytes] = {}
        self._held: tuple[Place, Any] | None = None
        self._wire: Wire = wire_format("anthropic")
        self._sets: list[DecisionSet] = []

    @classmethod
    def open(cls, root: str | Path, session: str, keys: Keys | None = None) -> Self:
        """Open a session of the vault of a workspace, or of the vault in this very folder.

        Raises:
            StorageError: where there is no such session, or the key is missing or wrong.

        """
        return cls(Vault.open(vault_root(root), keys or Keys.default(make=False)).read(session))

    @property
    def sets(self) -> list[DecisionSet]:
        """Every set that was ever recorded, oldest first."""
        self._catch_up()
        return list(self._sets)

    def handles(self) -> list[str]:
        """Return every handle that a note has named, oldest first."""
        self._catch_up()
        return list(self._sources)

    def read(self, handle: str) -> bytes:
        """Return the exact original behind a handle.

        That is the UTF-8 of what was one text, else JSON: of a result's blocks, of a call's
        input, of a list of messages.

        Raises:
            UnknownHandle: for a handle that this session did not issue.
            Damaged: where the bytes are not those that were left out.

        """
        self._catch_up()
        if handle not in self._sources:
            message = "no such handle in this session"
            raise UnknownHandle(message, hint="Transcript.handles() lists them.")
        decision, sources = self._sources[handle]
        with suppress(Damaged, LookupError):
            messages = [self._message(source) for source in sources]
            if isinstance(decision, RangeDecision):
                stored = zip(filter(None, sources), messages, strict=True)
                if range_digest(list(starmap(self._digest, stored))) == decision.content:
                    return canonical(messages)
            else:
                data = self._wire.block_bytes(messages[0], decision.target.block)
                if hashlib.sha256(data).digest() == decision.content:
                    return data
        return self._search(decision)

    def _search(self, decision: AnyDecision) -> bytes:
        """Find content by its digest wherever it stands: written anew, or in another place."""
        if isinstance(decision, RangeDecision):
            found = self._search_histories(decision)
        else:
            found = self._search_blocks(decision.content)
        if found is None:
            text = "what this handle names cannot be read any more"
            raise Damaged(text, where=decision.handle)
        return found

    def _search_histories(self, decision: RangeDecision) -> bytes | None:
        """Look for a range in the history as it is, and as it was before each time it shrank."""
        for history in (self._history, *self._earlier()):
            with suppress(Damaged):
                index = Index(self._wire, INJECTED)
                index.sync([self._message(source) for source in history])
                found = in_history(decision, index, self._wire)
                if found is not None:
                    return found
        return None

    def _earlier(self) -> Iterator[list[_Source]]:
        history: list[_Source] = []
        for frame in self._reader.frames():
            if frame.kind is Kind.REVERT:
                yield list(history)
            with suppress(Damaged):
                _move(history, frame, self._reader.value(frame, bare=True))

    def _search_blocks(self, content: bytes) -> bytes | None:
        for frame in self._reader.frames():
            if frame.kind is Kind.MESSAGES:
                with suppress(Damaged):
                    for message in self._value(frame)["messages"]:
                        for data in self._wire.contents(message):
                            if hashlib.sha256(data).digest() == content:
                                return data
        return None

    def _digest(self, source: tuple[Frame, int], message: JsonObject) -> bytes:
        """Return the digest of a stored message: ranges share many, and a record never changes."""
        name = source[0].place, source[1]
        if name not in self._digests:
            self._digests[name] = self._wire.inspect(message, lambda _: False).digest
        return self._digests[name]

    def _message(self, source: _Source) -> JsonObject:
        if source is None:
            text = "the record that held this message is damaged"
            raise Damaged(text, where="messages")
        frame, position = source
        message: JsonObject = self._value(frame)["messages"][position]
        return message

    def messages(self) -> list[JsonObject]:
        """Return the history as it stood at the end, every message as it was first seen.

        Raises:
            Damaged: where a record of it cannot be read.

        """
        self._catch_up()
        return [self._message(source) for source in self._history]

    def requests(self) -> Iterator[Request]:
        """Rebuild every request, in the order in which they were sent.

        A damaged record costs what it said: requests after it are not `whole` until the history
        was written anew.
        """
        renderer, recorded = Renderer(self._wire), Recorded()
        values: dict[str, Any] = {}
        history: list[JsonObject] = []
        last: Request | None = None
        number = 0
        for frame in self._reader.frames():
            number += frame.kind is Kind.REQUEST
            try:
                body = self._value(frame)
            except Damaged:
                continue
            pattern = body.get("not_human", INJECTED) if frame.kind is Kind.OPEN else None
            if pattern is not None and pattern != renderer.not_human:
                renderer = Renderer(self._wire, pattern)
                renderer.update(history)
                renderer.put(recorded.sets.values())
            if frame.kind is Kind.SET:
                renderer.update(history)
                _enter(renderer, recorded, body)
            else:
                _edit(history, frame.kind, body)
            if last is not None and "answered" in body:
                yield replace(last, answered=body["answered"])
                last = None
            if frame.kind is Kind.REQUEST:
                if last is not None:
                    yield last
                recorded.arguments |= body.get("arguments", {})
                values |= body.get("values", {})
                given = {
                    slot: values.get(name)
                    for slot, name in recorded.arguments.items()
                    if name is not None
                }
                renderer.update(history)
                last = _request(number, body, given, history, renderer)
        if last is not None:
            yield last

    def request(self, number: int) -> Request:
        """Rebuild the request of this number, counted from 1.

        Raises:
            LookupError: where there were fewer.

        """
        for request in self.requests():
            if request.number == number:
                return request
        message = f"no request {number} in this session"
        raise LookupError(message)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def __enter__(self) -> Self:
        """Return the transcript itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _catch_up(self) -> None:
        """Read what was appended since the last look; a damaged record costs what it said."""
        for frame in self._reader.frames(self._last):
            self._last = frame.place
            with suppress(Damaged):
                self._take(frame, self._reader.value(frame, bare=True))

    def _take(self, frame: Frame, body: JsonObject) -> None:
        history = self._history
        _move(history, frame, body)
        if frame.kind is Kind.OPEN:
            self._wire = wire_format(body["wire"])
        if frame.kind is Kind.SET and "decisions" in body:
            one = DecisionSet.decode(body)
            self._sets.append(one)
            for decision in one.decisions:
                at = decision.message
                length = decision.span.length if isinstance(decision, RangeDecision) else 1
                sources = history[at : at + length]
                sources += [None] * (length - len(sources))
                self._sources[decision.handle] = decision, sources

    def _value(self, frame: Frame) -> Any:
        """Return a record's body; messages of one record are often asked for in a row."""
        if self._held is None or self._held[0] != frame.place:
            self._held = frame.place, self._reader.value(frame)
        return self._held[1]


def _move(history: list[_Source], frame: Frame, body: JsonObject) -> None:
    """Do to a list of what is stored where what a record says was done to the history."""
    if frame.kind is Kind.MESSAGES:
        at = body.get("at", len(history))
        history[at:at] = [(frame, i) for i in range(len(body["messages"]))]
    elif frame.kind is Kind.REVERT:
        del history[body["from"] : body.get("to")]
    elif frame.kind in {Kind.REQUEST, Kind.CLOSE} and body.get("at", 0) > len(history):
        history += [None] * (body["at"] - len(history))  # a lost record held them


def _edit(history: list[JsonObject], kind: Kind, body: JsonObject) -> None:
    """Do to a history what a record says was done to it."""
    if kind is Kind.MESSAGES:
        at = body.get("at", len(history))
        history[at:at] = body["messages"]
    elif kind is Kind.REVERT:
        del history[body["from"] : body.get("to")]


def _enter(renderer: Renderer, recorded: Recorded, body: JsonObject) -> None:
    recorded.enter(body)
    if "decisions" in body:
        renderer.adopt(recorded.sets[recorded.taken])
    elif "drop" in body:
        renderer.put(recorded.sets.values())


def _request(
    number: int,
    body: JsonObject,
    given: Mapping[str, Any],
    history: list[JsonObject],
    renderer: Renderer,
) -> Request:
    return Request(
        number,
        renderer.messages(list(history)),
        given.get("system"),
        given.get("tools"),
        given.get("options", {}),
        body.get("marks", []),
        body["time"],
        decode_digest(body["view"] if "view" in body else body["chain"]),
        renderer.chain[len(history)],
    )
