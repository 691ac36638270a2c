"""Replies: what a brain answers, as a JSON message and as the events of a stream."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import tokens
from .cache import Use
from .shapes import THINKING, Json

_STEP = 48  # characters a delta
_CHARS_PER_TOKEN = 3
_AT_THE_END = ("context_management", "input_transformations")


@dataclass(frozen=True, slots=True)
class Reply:
    """Content blocks as the provider returns them (thinking without its signature)."""

    content: Sequence[Json]
    stop_reason: str = "end_turn"


def says(text: str, *, thought: str | None = None) -> Reply:
    """Return a reply that ends the turn."""
    return Reply([*_thought(thought), {"type": "text", "text": text}])


def calls(*uses: Json, text: str | None = None, thought: str | None = None) -> Reply:
    """Return a reply that calls tools; see `use`."""
    said = [] if text is None else [{"type": "text", "text": text}]
    return Reply([*_thought(thought), *said, *uses], "tool_use")


def use(name: str, of: str, **arguments: object) -> Json:
    """Return a call of the tool `of` under the id `name`."""
    return {"type": "tool_use", "id": name, "name": of, "input": arguments}


def cut(reply: Reply, limit: int, reason: str) -> Reply:
    """Return a reply of at most `limit` tokens; what does not fit is not said."""
    kept: list[Json] = []
    left = limit
    for block in reply.content:
        cost = tokens.of_block(block)
        if cost > left:
            said = str(block.get("text", ""))[: max(left - tokens.PER_BLOCK, 0) * _CHARS_PER_TOKEN]
            kept += [{"type": "text", "text": said}] if said.strip() else []
            return Reply(kept, reason)
        kept.append(block)
        left -= cost
    return Reply(kept, reply.stop_reason)


def spent(content: Sequence[Json]) -> int:
    """Return the output tokens of a reply; there is always one."""
    return sum(map(tokens.of_block, content)) or 1


def message(number: int, model: str, reply: Reply, use: Use) -> Json:
    """Return the body of a successful answer."""
    return {
        "id": f"msg_loopback_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(reply.content),
        "stop_reason": reply.stop_reason,
        "stop_sequence": None,
        "usage": use.usage(spent(reply.content)),
    }


def events(body: Json) -> Iterator[Json]:
    """Give a message as the events of a stream, in the provider's order."""
    usage = body["usage"]
    start = {**body, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    for at, block in enumerate(body["content"]):
        yield {"type": "content_block_start", "index": at, "content_block": _opened(block)}
        if at == 0:
            yield {"type": "ping"}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    known = {name: count for name, count in usage.items() if name.endswith("_tokens")}
    ending = {"type": "message_delta", "delta": delta, "usage": known}
    yield ending | {name: body[name] for name in _AT_THE_END if name in body}
    yield {"type": "message_stop"}


def _opened(block: Json) -> Json:
    match block["type"]:
        case "text":
            return {**block, "text": ""}
        case "thinking":
            return {**block, "thinking": "", "signature": ""}
        case "tool_use":
            return {**block, "input": {}}
        case _:
            return block


def _deltas(block: Json) -> Iterator[Json]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": part} for part in _parts(block["text"]))
        case "thinking":
            for part in _parts(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": part}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            for part in _parts(json.dumps(block["input"], ensure_ascii=False)):
                yield {"type": "input_json_delta", "partial_json": part}
        case _:
            return


def _parts(text: str) -> Iterator[str]:
    for at in range(0, len(text), _STEP):
        yield text[at : at + _STEP]


def _thought(thought: str | None) -> list[Json]:
    return [] if thought is None else [{"type": THINKING[0], "thinking": thought}]
