"""Thinking blocks: the signature that the provider issues, and what it is bound to.

A signature always covers the thinking text. Where `Rules.bind_thinking` is
set it is also held to the conversation: the tools, the system prompt and all
blocks that were sent before it (without cache marks and without other
thinking), and to the thinking block that stood before it, so that leaving out
one *between* two others is found and leaving out all earlier ones is not.

https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
"""

import base64
import functools
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from .shapes import THINKING, Json, Refused, Rules, blocks_of, canonical, refuse

CONTROLS = "thinking-binding-controls-2026-08-01"
_KEY = b"loopback"
_MAC = 32


@dataclass(frozen=True, slots=True)
class Seal:
    """What a signature says: digests of the text, the prefix and the thinking before."""

    model: str
    text: str
    prefix: str
    before: str

    def encode(self) -> str:
        payload = orjson.dumps([self.model, self.text, self.prefix, self.before])
        mac = hmac.digest(_KEY, payload, "sha256")
        return base64.b64encode(mac + payload).decode()


@dataclass
class Chain:
    """What has been sent so far, as signatures are bound to it."""

    model: str
    prefix: bytes
    before: str = ""

    @classmethod
    def of(cls, request: Json) -> "Chain":
        system = blocks_of({"content": request.get("system")})
        head = canonical([request.get("tools") or [], system])
        return cls(str(request.get("model")), hashlib.sha256(head).digest())

    def add(self, role: str, block: Json) -> None:
        self.prefix = hashlib.sha256(self.prefix + role.encode() + canonical(block)).digest()

    def seal(self, text: str) -> Seal:
        return Seal(self.model, _digest(text), self.prefix.hex(), self.before)

    def keep(self, signature: str) -> None:
        """Go on from a thinking block that the model gets to see."""
        self.before = _digest(signature)

    def sign(self, content: Iterable[Json]) -> list[Json]:
        """Return the blocks of a new reply with their thinking signed."""
        signed = []
        for block in content:
            if block["type"] not in THINKING:
                self.add("assistant", block)
                signed.append(block)
                continue
            name = "signature" if block["type"] == "thinking" else "data"
            signature = self.seal(str(block.get("thinking", ""))).encode()
            self.keep(signature)
            signed.append({**block, name: signature})
        return signed


@dataclass
class Checked:
    """The messages that the model is shown, and which thinking blocks are not among them."""

    chain: Chain
    messages: list[Json] = field(default_factory=list)
    dropped: list[Json] = field(default_factory=list)


def check(request: Json, rules: Rules) -> Checked:
    """Check all thinking blocks of a request.

    Raises:
        Refused: where a signature is not ours, its text was changed, or the
            block is bound to another conversation and the request does not
            ask for `drop_block`.

    """
    checked = Checked(Chain.of(request))
    binding = (request.get("thinking") or {}).get("block_binding") or {}
    drop = binding.get("prefix_mismatch_behavior") == "drop_block"
    latest = max(
        (i for i, m in enumerate(request["messages"]) if m["role"] == "assistant"), default=-1
    )
    for i, message in enumerate(request["messages"]):
        kept: list[Json] = []
        void = False  # the rest of a run of thinking blocks goes with the first
        for j, block in enumerate(blocks_of(message)):
            if block["type"] not in THINKING:
                if rules.bind_thinking:
                    checked.chain.add(message["role"], block)
                kept.append(block)
                void = False
                continue
            path = f"messages.{i}.content.{j}"
            seal = _genuine(block, path, latest=i == latest)
            reason = "prefix_binding_mismatch" if void else _mismatch(seal, checked.chain, rules)
            if reason is None:
                checked.chain.keep(seal.encode())
                kept.append(block)
                continue
            if reason == "prefix_binding_mismatch" and not drop:
                raise _bound(path, block)
            void = True
            checked.dropped.append({"type": "thinking_dropped", "path": path, "reason": reason})
        checked.messages.append({**message, "content": kept})
    return checked


def _mismatch(seal: Seal, chain: Chain, rules: Rules) -> str | None:
    if not rules.bind_thinking:
        return None
    if seal.model != chain.model:
        return "model_binding_mismatch"
    follows = seal.before == chain.before or not chain.before
    if follows and seal.prefix == chain.prefix.hex():
        return None
    return "prefix_binding_mismatch"


def _genuine(block: Json, path: str, *, latest: bool) -> Seal:
    plain = block["type"] == "thinking"
    name = "signature" if plain else "data"
    seal = _opened(str(block.get(name)))
    if seal is None:
        refuse(f"{path}: Invalid `{name}` in `{block['type']}` block")
    if plain and seal.text != _digest(str(block.get("thinking", ""))):
        if not latest:
            refuse(f"{path}: Invalid `signature` in `thinking` block")
        text = (
            f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message "
            "cannot be modified. These blocks must remain as they were in the original response."
        )
        refuse(text)
    return seal


@functools.lru_cache(maxsize=10_000)
def _opened(signature: str) -> Seal | None:
    """Return what a signature says, None where this server did not issue it."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return None
    mac, payload = raw[:_MAC], raw[_MAC:]
    if not hmac.compare_digest(mac, hmac.digest(_KEY, payload, "sha256")):
        return None
    return Seal(*orjson.loads(payload))


def _bound(path: str, block: Json) -> Refused:
    name = "signature" if block["type"] == "thinking" else "data"
    return Refused(
        f"{path}: Invalid `{name}` in `{block['type']}` block. The block is bound to a different "
        "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` "
        'to "drop_block".'
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
