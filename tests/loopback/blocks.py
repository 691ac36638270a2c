"""The shape of single content blocks, held to the provider's schema."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

from .shapes import Json, blocks_of, refuse

TOOL_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SERVER = (
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "container_upload",
    "mcp_tool_use",
    "mcp_tool_result",
    "compaction",
)

# The fields that a block may have; what the server's own tools leave is not looked into.
_FIELDS = {
    "text": {"text", "citations", "cache_control"},
    "image": {"source", "cache_control", "transformations"},
    "document": {"source", "title", "context", "citations", "cache_control"},
    "search_result": {"source", "title", "content", "citations", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "caller", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "caller", "cache_control"},
    "tool_reference": {"tool_name", "cache_control"},
}
_IN_RESULT = ("text", "image", "document", "search_result", "tool_reference")
_NEEDED = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_ONLY = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
    "image": "user",
    "document": "user",
}


def check_block(block: object, path: str, role: str) -> None:
    """Refuse a block that the provider's schema does not know."""
    if not isinstance(block, dict) or "type" not in block:
        refuse(f"{path}: Input should be a valid dictionary with a `type`")
    kind = block["type"]
    if kind in _SERVER:
        return
    if kind not in _FIELDS or kind == "tool_reference":
        _unknown(kind, path, [*_FIELDS, *_SERVER])
    if _ONLY.get(kind, role) != role:
        holder = path.partition(".content")[0]
        refuse(f"{holder}: `{kind}` blocks can only be in `{_ONLY[kind]}` messages")
    _check_fields(block, path)
    if kind == "tool_result":
        _check_result(block, path)


def images(message: Json) -> Iterator[Json]:
    """Give the images of a message, those inside results included."""
    for block in blocks_of(message):
        if block["type"] == "image":
            yield block
        elif block["type"] == "tool_result":
            yield from images(block)


def _check_fields(block: Json, path: str) -> None:
    kind = block["type"]
    for name in _NEEDED.get(kind, ()):
        if block.get(name) is None:
            refuse(f"{path}.{kind}.{name}: Field required")
    for name in block.keys() - _FIELDS[kind] - {"type"}:
        refuse(f"{path}.{kind}.{name}: Extra inputs are not permitted")
    match kind:
        case "text" if not isinstance(block["text"], str):
            refuse(f"{path}.text.text: Input should be a valid string")
        case "tool_use":
            if not TOOL_ID.match(str(block["id"])):
                pattern = TOOL_ID.pattern
                refuse(f"{path}.tool_use.id: String should match pattern '{pattern}'")
            if not isinstance(block["input"], dict):
                refuse(f"{path}.tool_use.input: Input should be a valid dictionary")
        case "image":
            _check_image(block["source"], f"{path}.image.source")
        case _:
            pass


def _check_result(block: Json, path: str) -> None:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        refuse(f"{path}.tool_result.content: Input should be a valid string or list")
    for at, part in enumerate(content):
        inner = f"{path}.tool_result.content.{at}"
        if not isinstance(part, dict) or part.get("type") not in _IN_RESULT:
            kind = part.get("type") if isinstance(part, dict) else part
            _unknown(kind, inner, _IN_RESULT)
        _check_fields(part, inner)


def _check_image(source: object, path: str) -> None:
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "file"):
        refuse(f"{path}: Input tag found using 'type' does not match any of the expected tags")
    if source["type"] != "base64":
        return
    if source.get("media_type") not in _IMAGES:
        allowed = ", ".join(f"'{name}'" for name in _IMAGES)
        refuse(f"{path}.base64.media_type: Input should be {allowed}")
    try:
        data = base64.b64decode(str(source.get("data")), validate=True)
    except binascii.Error:
        data = b""
    if not data:
        refuse(f"{path}.base64.data: Could not process image")


def _unknown(kind: object, path: str, known: Iterable[str]) -> NoReturn:
    tags = ", ".join(f"'{name}'" for name in known)
    refuse(
        f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
        f"{tags}"
    )
