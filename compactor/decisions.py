"""What the engine chose to leave out: decisions, and the sets that they take effect in.

Each record's encoding stands beside its decoding; `storage/FORMAT.md` describes both.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Decision:
    """One tool result gives way to a note.

    `stage` is "persist" (a preview; media stay) or "mask" (one line; holds only once the model
    has consumed the result). `handle` reads the original, whose bytes have the SHA-256 `content`.
    `tokens` estimates the note.
    """

    stage: str
    target: Target
    handle: str
    content: bytes
    tokens: int
    note: str

    def encode(self) -> JsonObject:
        """Encode as a JSON object."""
        return {
            "stage": self.stage,
            "target": self.target.encode(),
            "handle": self.handle,
            "content": encode_digest(self.content),
            "tokens": self.tokens,
            "note": self.note,
        }

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
        )


@dataclass(frozen=True, slots=True)
class DecisionSet:
    """Decisions that take effect together, or not at all.

    `at` is the length of the history when the set was taken; `reason` is "arrival" (only new
    results) or "trigger"; `before` and `after` are the estimated tokens of the view.
    """

    at: int
    reason: str
    before: int
    after: int
    decisions: tuple[Decision, ...]

    def encode(self) -> JsonObject:
        """Encode as a JSON object."""
        return {
            "at": self.at,
            "reason": self.reason,
            "tokens": [self.before, self.after],
            "decisions": [decision.encode() for decision in self.decisions],
        }

    @classmethod
    def decode(cls, value: JsonObject) -> Self:
        """Decode what `encode` made; fields of later versions are passed over."""
        before, after = value["tokens"]
        decisions = tuple(map(Decision.decode, value["decisions"]))
        return cls(value["at"], value["reason"], before, after, decisions)
