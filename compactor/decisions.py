"""What the engine chose to leave out: decisions, and the sets that they take effect in.

Each record's encoding stands beside its decoding; `storage/FORMAT.md` describes both.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from .messages import JsonObject


def encode_digest(digest: bytes) -> str:
    """Write a digest as base64 without padding."""
    return b64encode(digest).rstrip(b"=").decode()


def decode_digest(text: str) -> bytes:
    """Read a digest that `encode_digest` wrote."""
    return b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True, slots=True)
class Target:
    """The block that a decision is about, known by its digest wherever it stands.

    `message` and `block` are where it stood when the decision was taken; `occurrence` counts the
    equal blocks before it.
    """

    digest: bytes
    message: int
    block: int
    occurrence: int

    def encode(self) -> list[Any]:
        """Encode as a list."""
        return [encode_digest(self.digest), self.message, self.block, self.occurrence]

    @classmethod
    def decode(cls, value: list[Any]) -> Self:
        """Decode what `encode` made."""
        digest, message, block, occurrence = value
        return cls(decode_digest(digest), message, block, occurrence)


def range_digest(messages: Sequence[bytes]) -> bytes:
    """Name a range by the digests of its messages: SHA-256 of all of them."""
    return hashlib.sha256(b"".join(messages)).digest()


@dataclass(frozen=True, slots=True)
class Span:
    """The run of messages that a decision is about, known by their digests wherever they stand.

    `digest` is their `range_digest`, `first` the digest of the first of them; `start` is where
    they stood when the decision was taken.
    """

    digest: bytes
    first: bytes
    start: int
    length: int

    def encode(self) -> list[Any]:
        """Encode as a list."""
        return [encode_digest(self.digest), encode_digest(self.first), self.start, self.length]

    @classmethod
    def decode(cls, value: list[Any]) -> Self:
        """Decode what `encode` made."""
        digest, first, start, length = value
        return cls(decode_digest(digest), decode_digest(first), start, length)


@dataclass(frozen=True, slots=True)
class Decision:
    """One block gives way to a note.

    `stage` is "persist" (a preview; media of a result stay) or "mask" (one line; holds only once
    the model has consumed the block). `handle` reads the original, whose bytes have the SHA-256
    `content`. `tokens` estimates what stands there then. `keys`: of a call, the arguments whose
    values give way, and `rest` the characters that stay beside them.
    """

    stage: str
    target: Target
    handle: str
    content: bytes
    tokens: int
    note: str
    keys: tuple[str, ...] = ()
    rest: int = 0

    @property
    def message(self) -> int:
        """Where its message stood."""
        return self.target.message

    @property
    def place(self) -> tuple[int, int]:
        """Where its block stood."""
        return self.target.message, self.target.block

    @property
    def chars(self) -> int:
        """Characters of the block as it stands then."""
        return len(self.note) * max(len(self.keys), 1) + self.rest

    def encode(self) -> JsonObject:
        """Encode as a JSON object."""
        record = {
            "stage": self.stage,
            "target": self.target.encode(),
            "handle": self.handle,
            "content": encode_digest(self.content),
            "tokens": self.tokens,
            "note": self.note,
        }
        return {**record, "keys": list(self.keys), "rest": self.rest} if self.keys else record

    @classmethod
    def decode(cls, value: JsonObject) -> Self:
        """Decode what `encode` made; fields of later versions are passed over."""
        return cls(
            value["stage"],
            Target.decode(value["target"]),
            value["handle"],
            decode_digest(value["content"]),
            value["tokens"],
            value["note"],
            tuple(value.get("keys", ())),
            value.get("rest", 0),
        )


@dataclass(frozen=True, slots=True)
class RangeDecision:
    """A run of whole exchanges gives way to `messages`.

    It holds only once the model has consumed all of the run, and only while the current request
    stands elsewhere or is the message of the digest `request`, whose blocks are among those of
    `messages`. `handle` reads the original; `tokens` and `chars` measure `messages`. `summary`: of
    a summary, the state and how it was made.
    """

    stage: str
    span: Span
    handle: str
    request: bytes | None
    tokens: int
    chars: int
    messages: tuple[JsonObject, ...] = field(hash=False)
    summary: JsonObject | None = field(default=None, hash=False)

    @property
    def message(self) -> int:
        """Where its first message stood."""
        return self.span.start

    @property
    def content(self) -> bytes:
        """What names the original."""
        return self.span.digest

    def encode(self) -> JsonObject:
        """Encode as a JSON object."""
        return {
            "stage": self.stage,
            "span": self.span.encode(),
            "handle": self.handle,
            "request": None if self.request is None else encode_digest(self.request),
            "tokens": self.tokens,
            "chars": self.chars,
            "messages": list(self.messages),
            **({} if self.summary is None else {"summary": self.summary}),
        }

    @classmethod
    def decode(cls, value: JsonObject) -> Self:
        """Decode what `encode` made; fields of later versions are passed over."""
        request = value["request"]
        return cls(
            value["stage"],
            Span.decode(value["span"]),
            value["handle"],
            None if request is None else decode_digest(request),
            value["tokens"],
            value["chars"],
            tuple(value["messages"]),
            value.get("summary"),
        )


AnyDecision = Decision | RangeDecision


def _decode(value: JsonObject) -> AnyDecision:
    return RangeDecision.decode(value) if "span" in value else Decision.decode(value)


@dataclass(frozen=True, slots=True)
class DecisionSet:
    """Decisions that take effect together, or not at all.

    `at` is the length of the history when the set was taken; `reason` is "arrival" (only new
    results), "trigger" or "count" (of messages); `before` and `after` are the estimated tokens of
    the view. `arrived` are the positions, in `decisions`, of those about results that were new.
    `chain` names the history then, of a set that was not taken on arrival.
    """

    at: int
    reason: str
    before: int
    after: int
    decisions: tuple[AnyDecision, ...]
    arrived: tuple[int, ...] = ()
    chain: bytes = b""

    def encode(self) -> JsonObject:
        """Encode as a JSON object."""
        return {
            "at": self.at,
            "reason": self.reason,
            "tokens": [self.before, self.after],
            "decisions": [decision.encode() for decision in self.decisions],
            **({"arrived": list(self.arrived)} if self.arrived else {}),
            **({"chain": encode_digest(self.chain)} if self.chain else {}),
        }

    @classmethod
    def decode(cls, value: JsonObject) -> Self:
        """Decode what `encode` made; fields of later versions are passed over."""
        before, after = value["tokens"]
        decisions = tuple(map(_decode, value["decisions"]))
        arrived = tuple(value.get("arrived", ()))
        chain = decode_digest(value.get("chain", ""))
        return cls(value["at"], value["reason"], before, after, decisions, arrived, chain)

    def on_arrival(self) -> Self | None:
        """Return what of the set concerned new results only; None if nothing did."""
        kept = tuple(self.decisions[number] for number in self.arrived)
        if not kept:
            return None
        return replace(
            self, reason="arrival", decisions=kept, arrived=tuple(range(len(kept))), chain=b""
        )
