"""A message on its way from a recording to the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def joined(drafts: Iterable[Draft]) -> list[Draft]:
    """Put results that follow each other into one user message, as programs send them."""
    out: list[Draft] = []
    for draft in drafts:
        if out and _results(draft) and _results(out[-1]):
            out[-1].content.extend(draft.content)
            out[-1].gap |= draft.gap
        else:
            out.append(draft)
    return out


def _results(draft: Draft) -> bool:
    """Whether this is a result; many programs write one a row."""
    return draft.role == "user" and any(
        isinstance(block, dict) and block.get("type") == "tool_result"
        for block in blocks_of(draft.content)
    )
