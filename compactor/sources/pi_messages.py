"""pi's messages in wire form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .draft import Block, Draft, blocks_of
from .requests import usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_USAGE = {
    "input_tokens": "input",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
    "output_tokens": "output",
}


def draft_of(line: int, entry: Mapping[str, Any]) -> Draft | None:
    """Return the message that an entry carries, None if it carries none."""
    message = entry.get("message")
    if entry.get("type") == "custom_message":
        message = {"role": "custom", "content": entry.get("content")}
    elif entry.get("type") != "message" or not isinstance(message, dict):
        return None
    content = message.get("content")
    role = message.get("role")
    if role in ("user", "custom", "hookMessage"):
        return Draft("user", _content(content), line, meta=role != "user")
    if role == "assistant":
        return _assistant(line, message)
    if role == "toolResult":
        return Draft("user", [_result(message)], line, meta=True)
    if role == "bashExecution" and not message.get("excludeFromContext"):
        return Draft("user", _shell(message), line, meta=True)
    return None


def _assistant(line: int, message: Mapping[str, Any]) -> Draft:
    # Another provider's signature means nothing to this one.
    signed = message.get("api", "anthropic-messages") == "anthropic-messages"
    blocks = [
        made
        for item in blocks_of(message.get("content"))
        if isinstance(item, dict) and (made := _part(item, signed=signed))
    ]
    model = message.get("model")
    return Draft(
        "assistant",
        blocks,
        line,
        model=model if isinstance(model, str) else None,
        usage=usage_of(message.get("usage"), _USAGE),
    )


def _content(content: object) -> Any:
    if isinstance(content, str):
        return content
    return [made for i in blocks_of(content) if isinstance(i, dict) and (made := _part(i))]


def _part(item: Block, *, signed: bool = True) -> Block | None:
    match item.get("type"):
        case "text":
            return {"type": "text", "text": item.get("text")}
        case "thinking":
            signature = item.get("thinkingSignature")
            if item.get("redacted"):
                return {"type": "redacted_thinking", "data": signature} if signed else None
            return {
                "type": "thinking",
                "thinking": item.get("thinking") or "",
                "signature": signature if signed else None,
            }
        case "toolCall":
            return {
                "type": "tool_use",
                "id": item.get("id"),
                "name": item.get("name"),
                "input": item.get("arguments"),
            }
        case "image":
            return {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": item.get("mimeType"),
                    "data": item.get("data"),
                },
            }
    return item


def _result(message: Mapping[str, Any]) -> Block:
    block: Block = {
        "type": "tool_result",
        "tool_use_id": message.get("toolCallId"),
        "content": _content(message.get("content")),
    }
    if message.get("isError"):
        block["is_error"] = True
    return block


def _shell(message: Mapping[str, Any]) -> str:
    """Say what the human ran in the session and what came of it."""
    text = f"Ran `{message.get('command')}`\n"
    output = message.get("output")
    text += f"```\n{output}\n```" if output else "(no output)"
    if message.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif message.get("exitCode"):
        text += f"\n\nCommand exited with code {message['exitCode']}"
    if message.get("truncated") and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return text
