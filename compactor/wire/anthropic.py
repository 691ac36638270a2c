"""The Messages API of Anthropic: https://platform.claude.com/docs/en/api/messages."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from compactor.errors import BadMessage
from compactor.messages import (
    Block,
    JsonObject,
    Kind,
    Message,
    Note,
    canonical,
    digest_and_size,
    digest_of,
    message_digest,
    numbers_in,
    seen,
)
from compactor.summarize import Event, What
from compactor.tokens import estimate_bytes, estimate_document, estimate_image, estimate_text

_MEDIA = ("image", "document")
_THINKING = ("thinking", "redacted_thinking")
_PLAIN_RESULT = ("text", *_MEDIA)


def inspect(message: JsonObject, injected: Callable[[str], bool]) -> Message:
    """Return the facts of a message.

    Raises:
        BadMessage: where it has no role, or content that is neither a string nor blocks.

    """
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        text = "a message without a role"
        raise BadMessage(text, hint='Each message is a dictionary with "role" and "content".')
    blocks = tuple(_facts(block, role, injected) for block in _blocks(message))
    digest = message_digest(message, [block.digest for block in blocks])
    tokens = sum(block.tokens for block in blocks)
    chars = sum(block.chars for block in blocks)
    size = sum(block.size for block in blocks)
    images = sum(block.images for block in blocks)
    return Message(role, digest, blocks, tokens, chars, numbers_in(message), size, images)


def _blocks(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return content
    text = "a message whose content is neither a string nor a list of blocks"
    raise BadMessage(text, hint="Pass messages as the Messages API takes them.")


def _facts(block: JsonObject, role: str, injected: Callable[[str], bool]) -> Block:
    kind = block.get("type")
    digest, size = digest_and_size(block)
    if kind == "text":
        text = str(block.get("text", ""))
        human = role == "user" and not injected(text)
        tokens = estimate_text(text)
        return Block(Kind.TEXT, digest, len(text), tokens, size, alterable=True, human=human)
    if kind in _MEDIA:
        tokens = _media_tokens(block)
        return Block(
            Kind.MEDIA,
            digest,
            0,
            tokens,
            size,
            media=tokens,
            images=int(kind == "image"),
            alterable=True,
            human=role == "user",
        )
    if kind == "tool_use":
        chars = len(canonical(block.get("input")))
        return Block(
            Kind.CALL,
            digest,
            chars,
            estimate_bytes(chars),
            size,
            call_id=str(block.get("id")),
            tool=str(block.get("name")),
            alterable=_is_direct(block.get("caller")),
        )
    if kind == "tool_result":
        return _result_facts(block, digest, size)
    if kind in _THINKING:
        text = str(block.get("thinking") or block.get("data") or "")
        return Block(Kind.THINKING, digest, len(text), estimate_text(text), size)
    opaque = Kind.BOUNDARY if kind == "compaction" else Kind.OPAQUE
    return Block(opaque, digest, size, estimate_bytes(size), size)


def _is_direct(caller: object) -> bool:
    """Tell whether the model itself made a call; what code has called feeds that code."""
    return caller is None or (isinstance(caller, dict) and caller.get("type") == "direct")


def _result_facts(block: JsonObject, digest: bytes, size: int) -> Block:
    texts = list(_texts(block))
    media = [part for part in _parts(block) if part.get("type") in _MEDIA]
    media_tokens = sum(map(_media_tokens, media))
    return Block(
        Kind.RESULT,
        digest,
        sum(map(len, texts)),
        estimate_text("".join(texts)) + media_tokens,
        size,
        call_id=str(block.get("tool_use_id")),
        media=media_tokens,
        images=sum(part.get("type") == "image" for part in media),
        alterable=_is_plain(block.get("content")),
    )


def _is_plain(content: object) -> bool:
    """Tell whether a result holds nothing but text, images and documents."""
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(isinstance(part, dict) and part.get("type") in _PLAIN_RESULT for part in content)


def _parts(block: JsonObject) -> list[JsonObject]:
    content = block.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict)]


def _texts(block: JsonObject) -> Iterator[str]:
    for part in _parts(block):
        if part.get("type") == "text":
            yield str(part.get("text", ""))


def _media_tokens(block: JsonObject) -> int:
    if block.get("type") == "image":
        return estimate_image()
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    data = str(source.get("data") or "")
    return estimate_text(data) if source.get("type") == "text" else estimate_document(len(data))


def block_text(message: JsonObject, block: int) -> str:
    """Return the text that a block shows the model, its parts joined by line breaks."""
    found = _blocks(message)[block]
    if found.get("type") == "tool_use":
        return canonical(found.get("input")).decode("utf-8", "surrogatepass")
    if found.get("type") == "text":
        return str(found.get("text", ""))
    return "\n".join(_texts(found))


def block_bytes(message: JsonObject, block: int) -> bytes:
    """Return a block's exact content.

    Of a text, and of a result that is one text, the UTF-8; else canonical JSON: of a result's
    blocks, of a call's input, of any other block itself. Cache marks are left out.
    """
    return _content(_blocks(message)[block])


def _content(block: JsonObject) -> bytes:
    block = seen(block)
    kind = block.get("type")
    if kind == "tool_use":
        return canonical(block.get("input"))
    if kind != "tool_result":
        return _lone_text(block) or canonical(block)
    content = block.get("content") or []
    lone = content[0] if isinstance(content, list) and len(content) == 1 else None
    text = _lone_text(lone) if isinstance(lone, dict) else None
    return canonical(content) if text is None else text


def _lone_text(block: JsonObject) -> bytes | None:
    if block.keys() == {"type", "text"} and block["type"] == "text":
        return str(block["text"]).encode("utf-8", "surrogatepass")
    return None


def block_kind(message: JsonObject, block: int) -> str:
    """Return what the wire format calls a block."""
    return str(_blocks(message)[block].get("type"))


def block_digest(message: JsonObject, block: int) -> bytes | None:
    """Return the digest of a block as it is now; None where there is none."""
    blocks = _blocks(message)
    return digest_of(blocks[block]) if block < len(blocks) else None


def contents(message: JsonObject) -> Iterator[bytes]:
    """Go through the exact contents of a message's blocks, as `block_bytes` gives them."""
    return map(_content, _blocks(message))


def long_inputs(message: JsonObject, block: int) -> Mapping[str, int]:
    """Return the string arguments of a call by their length in characters."""
    given = _blocks(message)[block].get("input")
    given = given if isinstance(given, dict) else {}
    return {key: len(value) for key, value in given.items() if isinstance(value, str)}


def replace(message: JsonObject, notes: Mapping[int, Note]) -> JsonObject:
    """Return a copy whose blocks at these positions give way to notes.

    Identifiers, error flags, cache marks and unknown fields of results and calls stay.
    """
    content = [
        _noted(block, notes[position]) if position in notes else block
        for position, block in enumerate(_blocks(message))
        if position not in notes or not notes[position].drop
    ]
    content = content or [text_block(next(iter(notes.values())).text)]
    return {**message, "content": content}


def _noted(block: JsonObject, note: Note) -> JsonObject:
    if block.get("type") == "tool_result":
        return {**block, "content": _replaced(block, note.text, keep_media=note.keep_media)}
    if block.get("type") == "tool_use":
        return {**block, "input": {**block["input"], **dict.fromkeys(note.keys, note.text)}}
    mark = block.get("cache_control")
    return text_block(note.text) | ({} if mark is None else {"cache_control": mark})


def user_message(blocks: list[JsonObject]) -> JsonObject:
    """Return a message of the user of these content blocks."""
    return {"role": "user", "content": blocks}


def text_block(text: str) -> JsonObject:
    """Return a content block of text."""
    return {"type": "text", "text": text}


def human_blocks(message: JsonObject, injected: Callable[[str], bool]) -> list[JsonObject]:
    """Return the blocks of a message in which the human speaks, without cache marks."""
    role = str(message.get("role"))
    found = [block for block in _blocks(message) if _facts(block, role, injected).human]
    return [{k: v for k, v in block.items() if k != "cache_control"} for block in found]


def human_text(block: JsonObject) -> str:
    """Return what the human says in a block; for images and documents, what it is."""
    return str(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}]"


def events(message: JsonObject, position: int, injected: Callable[[str], bool]) -> Iterator[Event]:
    """Go through what a message says as plain text; thinking and unknown blocks are left out.

    Results do not know their tool.
    """
    role = str(message.get("role"))
    speakers = {"assistant": What.SAID, "system": What.SYSTEM}
    for block in _blocks(message):
        kind = block.get("type")
        if kind == "text":
            text = str(block.get("text", ""))
            user = What.HOST if injected(text) else What.HUMAN
            yield Event(position, speakers.get(role, user), text)
        elif kind in _MEDIA:
            yield Event(position, speakers.get(role, What.HUMAN), f"[{kind}]")
        elif kind == "tool_use":
            given = block.get("input")
            text = canonical(given).decode("utf-8", "surrogatepass")
            arguments = given if isinstance(given, dict) else {}
            call, tool = str(block.get("id")), str(block.get("name"))
            yield Event(position, What.CALLED, text, tool, call, arguments)
        elif kind == "tool_result":
            parts = [
                str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]"
                for part in _parts(block)
            ]
            call, failed = str(block.get("tool_use_id")), block.get("is_error") is True
            yield Event(position, What.RETURNED, "\n".join(parts), call=call, failed=failed)


def joined(messages: list[JsonObject]) -> list[JsonObject]:
    """Make one message of these of one role, where none has fields of its own.

    A `role: system` message has to stand right before an assistant message, or at the end.
    """
    if len(messages) < 2 or any(m.keys() - {"role", "content"} for m in messages):  # noqa: PLR2004
        return messages
    content = [block for message in messages for block in _blocks(message)]
    return [{"role": messages[0]["role"], "content": content}]


def marked(message: JsonObject, mark: object) -> JsonObject:
    """Return a copy whose last block carries a cache mark (None: no block carries one)."""
    if mark is None and not marks(message):
        return message
    content = [{k: v for k, v in b.items() if k != "cache_control"} for b in _blocks(message)]
    if mark is not None:
        content[-1]["cache_control"] = mark
    return {**message, "content": content}


def _replaced(block: JsonObject, note: str, *, keep_media: bool) -> str | list[JsonObject]:
    media = [part for part in _parts(block) if keep_media and part.get("type") in _MEDIA]
    marks = [p["cache_control"] for p in _parts(block) if p.get("cache_control") is not None]
    if not media and not marks:
        return note
    text: JsonObject = {"type": "text", "text": note}
    if marks and not any(part.get("cache_control") is not None for part in media):
        text["cache_control"] = marks[-1]
    return [text, *media]


def marks(message: JsonObject) -> Mapping[int, object]:
    """Return the cache marks of a message by the position of their block, on it or inside it."""
    found = {}
    for position, block in enumerate(_blocks(message)):
        held = [part.get("cache_control") for part in (block, *_parts(block))]
        if any(mark is not None for mark in held):
            found[position] = held
    return found


def offers(tools: object, name: str) -> bool:
    """Tell whether a request's tool list has a tool of this name."""
    return isinstance(tools, list) and any(
        isinstance(tool, dict) and tool.get("name") == name for tool in tools
    )


def used_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt: input, cache reads and cache writes; None for no count.

    Where the request ran several iterations, only the last saw the whole prompt.
    """
    iterations = usage.get("iterations")
    last = iterations[-1] if isinstance(iterations, list) and iterations else usage
    if not isinstance(last, Mapping):
        return None
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [last.get(name) for name in names]
    if not isinstance(counts[0], int) or not all(isinstance(n, int | None) for n in counts):
        return None
    return sum(count or 0 for count in counts)
