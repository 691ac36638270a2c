"""The arguments of a request beside its messages: checked, counted, named; and what they leave."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from .decisions import encode_digest
from .errors import BadMessage
from .messages import JsonObject, canonical, plain
from .models import density_of, limits_of, window_of
from .policy import Policy
from .tokens import Budget, Limits, budget, estimate_bytes

# Arguments of `messages.create` that say how to reach the provider, not what to ask.
_TRANSPORT = ("extra_headers", "extra_query", "timeout")
_SLOTS = ("system", "tools")


@dataclass(frozen=True, slots=True)
class _Slot:
    value: Any
    key: bytes | None  # equal keys, equal values; None: not known
    size: int  # bytes of JSON
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A request's arguments by slot: `system`, `tools`, and all others as `options`.

    `values` are plain JSON, `names` the digests under which they are recorded, `sizes` their
    bytes.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def model(self) -> str | None:
        """The model that is asked."""
        model = self.values.get("options", {}).get("model")
        return model if isinstance(model, str) else None

    @property
    def read_only(self) -> frozenset[str]:
        """Names of the tools that say, as MCP's do, that they change nothing."""
        tools = self.values.get("tools")
        found = (
            [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        )
        return frozenset(str(tool.get("name")) for tool in found if _is_read_only(tool))

    @property
    def prompt(self) -> tuple[object, ...]:
        """What a provider's cache holds before the messages: if it changes, the cache is cold."""
        return (self.model, *(self.names.get(slot) for slot in _SLOTS))


def _is_read_only(tool: object) -> bool:
    hints = tool.get("annotations") if isinstance(tool, dict) and "name" in tool else None
    return isinstance(hints, dict) and hints.get("readOnlyHint") is True


class Reader:
    """Reads the arguments of request after request; what did not change is not looked at twice."""

    def __init__(self) -> None:
        """Start without anything known."""
        self._held: dict[str, _Slot] = {}

    def read(self, request: Mapping[str, Any]) -> Arguments:
        """Sort, check and name the arguments of a request.

        Raises:
            BadMessage: for an argument that is not JSON.

        """
        given = {
            name: plain(value, name)
            for name, value in request.items()
            if name not in _TRANSPORT and type(value).__name__ not in {"NotGiven", "Omit"}
        }
        slots: JsonObject = {s: given.pop(s) for s in _SLOTS if given.get(s) is not None}
        if options := {name: value for name, value in given.items() if value is not None}:
            slots["options"] = options
        self._held = {slot: self._slot(slot, value) for slot, value in slots.items()}
        held = self._held.items()
        return Arguments(
            {slot: one.value for slot, one in held},
            {slot: one.name for slot, one in held},
            {slot: one.size for slot, one in held},
        )

    def _slot(self, slot: str, value: Any) -> _Slot:
        try:
            key = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            key = None
        held = self._held.get(slot)
        if held is not None and key is not None and held.key == key:
            return held
        data = canonical(value)
        return _Slot(value, key, len(data), encode_digest(hashlib.sha256(data).digest()))


@dataclass(frozen=True, slots=True)
class Room:
    """What a request may take.

    `tokens` is the budget of the window; `plan` the one that plans go by, in characters where the
    policy says so; `limits` are the provider's beside both.
    """

    tokens: Budget
    plan: Budget
    limits: Limits

    def with_tokens(self, tokens: Budget) -> "Room":
        """Return the same with another budget of the window; plans go by it where they did."""
        return replace(self, tokens=tokens, plan=tokens if self.plan is self.tokens else self.plan)

    def is_full(self, tokens: int, chars: int) -> bool:
        """Tell whether messages of this size are too many."""
        if self.plan.unit == "chars" and chars > self.plan.messages:
            return True
        return tokens > self.tokens.messages


def room(arguments: Arguments, policy: Policy) -> Room:
    """Work out what a request may take.

    Raises:
        BadMessage: where `max_tokens` is no number.
        BadPolicy: where it leaves no room in the window.

    """
    options = arguments.values.get("options", {})
    output = options.get("max_tokens") or 0
    if not isinstance(output, int):
        message = "max_tokens: a number is needed"
        raise BadMessage(message, hint="Pass what messages.create takes.")
    betas = options.get("betas")
    betas = [beta for beta in betas if isinstance(beta, str)] if isinstance(betas, list) else []
    model = arguments.model
    sizes = [arguments.sizes[slot] for slot in _SLOTS if slot in arguments.sizes]
    window = policy.window or (window_of(model, betas) if model else None)
    scale = density_of(model) if model else 1.0
    tokens = budget(window, output, sum(map(estimate_bytes, sizes)), scale=scale)
    plan = tokens
    if policy.context_chars is not None:
        plan = Budget.of_chars(policy.context_chars, sum(sizes))
    return Room(tokens, plan, limits_of(model, betas).but(policy.max_bytes, policy.max_images))


def switched_off() -> bool:
    """Tell whether `COMPACTOR=off` is set: the history itself is the view then."""
    return os.environ.get("COMPACTOR", "").strip().lower() == "off"


def check_list(messages: object, human: int | None) -> None:
    """Raise `BadMessage` for a history that is no list, or has no message `human`."""
    if not isinstance(messages, list):
        message = f"messages: a list is needed, not a {type(messages).__name__}"
        raise BadMessage(message, hint="Pass the history as a list of messages.")
    if human is not None and not 0 <= human < len(messages):
        message = f"human: there is no message {human}"
        raise BadMessage(message, hint="Pass the position of the human's message, from 0.")
