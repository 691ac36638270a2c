"""Wire formats: what the engine must know of each provider's messages, one module a format."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from compactor.errors import BadPolicy
from compactor.messages import JsonObject, Message, Note
from compactor.summarize import Event

from . import anthropic


class Wire(Protocol):
    """What a wire format answers; a module with these functions is one."""

    def inspect(self, message: JsonObject, injected: Callable[[str], bool]) -> Message:
        """Return the facts of a message; `injected` tells text that the host put in."""

    def block_text(self, message: JsonObject, block: int) -> str:
        """Return all text that the block at position `block` shows the model."""

    def block_bytes(self, message: JsonObject, block: int) -> bytes:
        """Return a block's exact content.

        Of a text, and of a result that is one text, the UTF-8; else JSON: of a result's blocks,
        of a call's input, of any other block itself.
        """

    def block_kind(self, message: JsonObject, block: int) -> str:
        """Return what the wire format calls a block."""

    def block_digest(self, message: JsonObject, block: int) -> bytes | None:
        """Return the digest of a block as it is now; None where there is none."""

    def contents(self, message: JsonObject) -> Iterator[bytes]:
        """Go through the exact contents of a message's blocks."""

    def long_inputs(self, message: JsonObject, block: int) -> Mapping[str, int]:
        """Return the string arguments of a call by their length in characters."""

    def replace(self, message: JsonObject, notes: Mapping[int, Note]) -> JsonObject:
        """Return a copy whose blocks at these positions give way to notes."""

    def user_message(self, blocks: list[JsonObject]) -> JsonObject:
        """Return a message of the user of these content blocks."""

    def text_block(self, text: str) -> JsonObject:
        """Return a content block of text."""

    def human_blocks(
        self, message: JsonObject, injected: Callable[[str], bool]
    ) -> list[JsonObject]:
        """Return the blocks of a message in which the human speaks, without cache marks."""

    def human_text(self, block: JsonObject) -> str:
        """Return what the human says in a block; for images and documents, what it is."""

    def events(
        self, message: JsonObject, position: int, injected: Callable[[str], bool]
    ) -> Iterator[Event]:
        """Go through what a message says as plain text; results do not know their tool."""

    def joined(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Make one message of these of one role, where none has fields of its own."""

    def marked(self, message: JsonObject, mark: object) -> JsonObject:
        """Return a copy whose last block carries a cache mark (None: no block carries one)."""

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
