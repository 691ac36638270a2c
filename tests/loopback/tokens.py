"""What a block costs: a deterministic stand-in for the provider's tokenizer."""

import math
from typing import Any

from .shapes import Json, canonical

PER_BLOCK = 4
IMAGE = 1_600
PDF = 3_000
_BYTES_PER_TOKEN = 3.5


def count(text: str) -> int:
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


def of_block(block: Json) -> int:
    """Return the tokens of a content block, a system block or a tool definition."""
    return PER_BLOCK + _inner(block)


def _inner(block: Json) -> int:
    match block.get("type"):
        case "text" | "thinking" as kind:
            return count(str(block.get(kind, "")))
        case "image":
            return IMAGE
        case "document":
            return _document(block.get("source") or {})
        case "tool_result":
            return _result(block.get("content"))
        case "tool_use":
            name = str(block.get("name", ""))
            return count(name) + math.ceil(len(canonical(block.get("input"))) / _BYTES_PER_TOKEN)
        case _:
            return math.ceil(len(canonical(block)) / _BYTES_PER_TOKEN)


def _result(content: Any) -> int:
    if isinstance(content, str):
        return count(content)
    return sum(of_block(part) for part in content or () if isinstance(part, dict))


def _document(source: Json) -> int:
    data = str(source.get("data", ""))
    return count(data) if source.get("type") == "text" else PDF
