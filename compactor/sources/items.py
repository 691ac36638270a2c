"""Items of the Responses API, as Codex records them, in wire form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .content import call, content_of, result
from .draft import Draft, blocks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def is_item(value: Mapping[str, Any]) -> bool:
    """Whether this is a call or a result that stands for itself, outside a message."""
    return value.get("type") in (*_CALLS, *_RESULTS)


def add_item(
    drafts: list[Draft], line: int, item: Mapping[str, Any], model: str | None = None
) -> None:
    """Put an item behind the drafts; all items of one reply become one message.

    Reasoning (which only its provider can read), searches that the provider
    made, and unknown items are passed over; so are the instructions that stand
    before the conversation, as they are no part of the messages.
    """
    kind, role = item.get("type"), item.get("role")
    if kind == "message" and role == "assistant":
        _reply(drafts, line, blocks_of(content_of(item.get("content"))), model)
    elif kind == "message" and role == "user":
        drafts.append(Draft("user", content_of(item.get("content")), line))
    elif kind == "message" and role in ("developer", "system") and drafts:
        drafts.append(Draft("user", content_of(item.get("content")), line, meta=True))
    elif kind in _CALLS:
        name = item.get("call_id") or item.get("id")
        tool = item.get("name") or ("local_shell" if kind == "local_shell_call" else None)
        _reply(drafts, line, [call(name, tool, _arguments(item))], model)
    elif kind in _RESULTS:
        name = item.get("call_id") or item.get("id")
        drafts.append(Draft("user", [result(name, _output(item.get("output")))], line, meta=True))


def _reply(drafts: list[Draft], line: int, blocks: list[Any], model: str | None) -> None:
    if drafts and drafts[-1].role == "assistant":
        drafts[-1].content.extend(blocks)
    else:
        drafts.append(Draft("assistant", blocks, line, model=model))


def _arguments(item: Mapping[str, Any]) -> Any:
    for name in ("arguments", "input", "action"):
        if item.get(name) is not None:
            # A custom tool's input is free text, even where it looks like JSON.
            return {"input": item[name]} if name == "input" else item[name]
    return {}


def _output(output: object) -> object:
    """Older versions wrap the text of a result."""
    if isinstance(output, dict) and isinstance(output.get("content"), str | list):
        return output["content"]
    return output
