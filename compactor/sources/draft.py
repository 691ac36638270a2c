"""A message on its way from a recording to the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Block = dict[str, Any]


def blocks_of(content: object) -> list[Any]:
    """Content as a list: a string is one text block, null is nothing."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


@dataclass(slots=True)
class Draft:
    """One message as recorded, with what the request points need to know.

    `reply` is the provider's id of the reply that an assistant row belongs to,
    `meta` marks a user message that a program wrote, `gap` that something the
    program had sent is missing directly before this message.
    """

    role: str
    content: Any
    line: int
    meta: bool = False
    reply: str | None = None
    model: str | None = None
    usage: Mapping[str, int] | None = None
    gap: bool = False
