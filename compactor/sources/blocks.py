"""Bring the content of one message into the form that the Messages API takes.

The rules are the provider's refusals: "text content blocks must be non-empty",
"text content blocks must contain non-whitespace text", "content cannot be
empty if `is_error` is true", "The final block in an assistant message cannot
be `thinking`", and a signature that has to be there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .draft import Block, Draft, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_THINKING = ("thinking", "redacted_thinking")


def clean(drafts: Iterable[Draft], warnings: list[str]) -> list[Draft]:
    """Leave out what no provider would take; a message left empty goes.

    Content that is a string stays a string, other blocks stay as recorded.
    """
    kept: list[Draft] = []
    lost = False
    for draft in drafts:
        draft.gap |= lost
        lost = False
        if isinstance(draft.content, str):
            if draft.content.strip():
                kept.append(draft)
                continue
        else:
            content = blocks_of(draft.content)
            blocks = [block for item in content if (block := _block(item, draft.role))]
            lost = _lossy(content, blocks, draft, warnings)
            if draft.role == "user" or not any(map(_says, blocks)):
                blocks = [block for block in blocks if _says(block)]
            draft.content = blocks
            if blocks:
                kept.append(draft)
                continue
        lost |= draft.gap
        warnings.append(f"line {draft.line}: empty message left out")
    return kept


def settle(draft: Draft, warnings: list[str]) -> bool:
    """Cut an assistant message back to a legal end; False if nothing is left.

    Thinking is at the end of a reply that was interrupted, or when the calls
    after it were left out.
    """
    if draft.role != "assistant" or isinstance(draft.content, str):
        return bool(draft.content)
    content = draft.content
    while content and content[-1].get("type") in _THINKING:
        content.pop()
        warnings.append(f"line {draft.line}: thinking at the end of a message left out")
    if any(map(_says, content)):
        return True
    warnings.append(f"line {draft.line}: empty message left out")
    return False


def _says(block: Block) -> bool:
    """Whether a block is more than white space.

    Models open replies with a text of two line feeds; next to other blocks the
    provider takes it back, alone it does not.
    """
    return block.get("type") != "text" or bool(block["text"].strip())


def _lossy(content: list[Any], blocks: list[Block], draft: Draft, warnings: list[str]) -> bool:
    """Report what was left out for another reason than being empty."""
    out = len(content) - len(blocks) - sum(1 for item in content if _empty_text(item))
    thinking = sum(1 for item in content if _unsigned(item))
    if thinking and draft.role == "assistant":
        warnings.append(f"line {draft.line}: {thinking} thinking blocks without signature left out")
        out -= thinking
    if out > 0:
        warnings.append(f"line {draft.line}: {out} blocks that no provider takes left out")
    return out > 0


def _empty_text(item: object) -> bool:
    return item == "" or (
        isinstance(item, dict) and item.get("type") == "text" and item.get("text") in ("", None)
    )


def _unsigned(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "thinking" and not item.get("signature")


def _block(item: object, role: str) -> Block | None:
    if isinstance(item, str):
        item = {"type": "text", "text": item}
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return None
    match item["type"]:
        case "text":
            return item if isinstance(item.get("text"), str) and item["text"] else None
        case "tool_use":
            return _call(item) if role == "assistant" else None
        case "tool_result":
            return _result(item) if role == "user" else None
        case "thinking" | "redacted_thinking" if role == "user" or _unsigned(item):
            return None
    return item


def _call(item: Block) -> Block | None:
    if not isinstance(item.get("id"), str) or not isinstance(item.get("name"), str):
        return None
    if not isinstance(item.get("input"), dict):
        given = item.get("input")
        item["input"] = {} if given is None else {"input": given}
    return item


def _result(item: Block) -> Block | None:
    if not isinstance(item.get("tool_use_id"), str):
        return None
    content = item.get("content")
    if isinstance(content, list):
        content = item["content"] = list(_inner(content))
    elif content is not None and not isinstance(content, str):
        content = item["content"] = str(content)
    if item.get("is_error") and not content:
        item["content"] = "(no content)"
    return item


def _inner(content: list[Any]) -> Iterator[Any]:
    for part in content:
        if isinstance(part, str) and part:
            yield {"type": "text", "text": part}
        elif isinstance(part, dict) and "type" not in part:
            yield {"type": "text", "text": json.dumps(part, ensure_ascii=False)}
        elif isinstance(part, dict) and not _empty_text(part):
            yield part
