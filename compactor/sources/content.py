"""Content of other providers' messages as wire blocks."""

from __future__ import annotations

import json
import re
from typing import Any

from .draft import Block, blocks_of
from .lines import parse

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_TEXTS = ("text", "input_text", "output_text", "summary_text")


def content_of(content: object) -> Any:
    """Translate content: a string stays a string, parts become blocks, null becomes [].

    What is in wire form already, and what is not known, passes as it is.
    """
    if isinstance(content, str):
        return content
    return [_part(item) if isinstance(item, dict) else item for item in blocks_of(content)]


def input_of(arguments: object) -> Any:
    """Read the arguments of a call, which are JSON text; broken text stays a string."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return parse(arguments.encode("utf-8", "replace"))[0] if arguments.strip() else {}
    except ValueError:
        return arguments


def call(name: object, tool: object, arguments: object) -> Block:
    """Return a call; one without id or name is left out later, with a warning."""
    return {"type": "tool_use", "id": name, "name": tool, "input": input_of(arguments)}


def result(name: object, content: object, *, error: object = False) -> Block:
    """Return the result of a call; content of no known form becomes its JSON text."""
    block: Block = {"type": "tool_result", "tool_use_id": name}
    if isinstance(content, str | list):
        block["content"] = content_of(content)
    elif content is not None:
        block["content"] = json.dumps(content, ensure_ascii=False)
    if error:
        block["is_error"] = True
    return block


def _part(item: Block) -> Block:
    kind = item.get("type")
    if kind in _TEXTS:
        # Other fields stay where the part is a wire block already.
        return item if kind == "text" else {"type": "text", "text": item.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": item.get("refusal")}
    if kind in ("image_url", "input_image"):
        url = item.get("image_url")
        return _media("image", url.get("url") if isinstance(url, dict) else url)
    if kind == "file" and isinstance(item.get("file"), dict):
        return _media("document", item["file"].get("file_data"))
    if kind == "file" and isinstance(item.get("content"), str):
        return {"type": "text", "text": f"{item.get('path')}\n{item['content']}"}
    return item


def _media(kind: str, url: object) -> Block:
    if not isinstance(url, str):
        return {"type": "text", "text": f"[{kind}]"}
    if (data := _DATA_URL.fullmatch(url)) is not None:
        return {
            "type": kind,
            "source": {"type": "base64", "media_type": data[1], "data": data[2]},
        }
    return {"type": kind, "source": {"type": "url", "url": url}}
