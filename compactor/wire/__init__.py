"""Wire formats: what the engine must know of each provider's messages, one module a format."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from compactor.errors import BadPolicy
from compactor.messages import JsonObject, Message

from . import anthropic


class Wire(Protocol):
    """What a wire format answers; a module with these functions is one."""

    def inspect(self, message: JsonObject, injected: Callable[[str], bool]) -> Message:
        """Return the facts of a message; `injected` tells text that the host put in."""

    def result_text(self, message: JsonObject, block: int) -> str:
        """Return all text of the result at position `block`."""

    def result_bytes(self, message: JsonObject, block: int) -> bytes:
        """Return the result's exact content: a lone text's UTF-8, else JSON of its blocks."""

    def block_digest(self, message: JsonObject, block: int) -> bytes | None:
        """Return the digest of a block as it is now; None where there is none."""

    def results(self, message: JsonObject) -> Iterator[bytes]:
        """Go through the exact contents of a message's results."""

    def replace(self, message: JsonObject, notes: Mapping[int, tuple[str, bool]]) -> JsonObject:
        """Return a copy whose results at these positions hold a note, with or without media."""

    def marks(self, message: JsonObject) -> Mapping[int, object]:
        """Return the cache marks of a message by the position of their block."""

    def offers(self, tools: object, name: str) -> bool:
        """Tell whether a request's tool list has a tool of this name."""

    def used_tokens(self, usage: Mapping[str, object]) -> int | None:
        """Return the tokens of the prompt that a usage report counts, None where it has none."""


def wire_format(name: str) -> Wire:
    """Return the wire format of this name.

    Raises:
        BadPolicy: for a name that is none.

    """
    formats: dict[str, Wire] = {"anthropic": anthropic}
    if name not in formats:
        message = f"there is no wire format {name!r}"
        raise BadPolicy(message, hint=f"There is: {', '.join(formats)}.")
    return formats[name]
