"""What may be expected of a view, from the messages alone: an independent judge."""

import re
from json import dumps, loads
from typing import Any

import orjson

REMINDER = re.compile(r"\s*(<system-reminder>.*</system-reminder>\s*)+", re.DOTALL)
LOOKALIKE = re.compile(r"<(?=/?persisted-output\b)", re.IGNORECASE)
LEAST_PREVIEW = 200
ARCHIVED = re.compile(
    r"(?:\[\d+ messages? archived|\[Compacted\]\n\d+ messages? saved, the full transcript of them)"
    r": (msgs-[a-z2-7]+)"
)
MEDIA = ("image", "document")


def exact(value: object) -> bytes:
    """Write a value so that two are equal only if they are the same JSON, key order and all."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate
        return dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or [] if isinstance(block, dict)]


def seen(block: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a block what a client moves about: cache marks, nulls, a lone text's spelling.

    Only blocks and blocks inside them: the input of a call is its tool's business.
    """
    kept = {k: v for k, v in block.items() if v is not None and k != "cache_control"}
    if "content" in kept:
        kept["content"] = [seen(part) for part in blocks(kept)]
    return kept


def same_form(message: dict[str, Any]) -> str:
    """Write a message so that two are equal if they say the same to the provider."""
    return dumps(seen({**message, "content": blocks(message)}), sort_keys=True)


def rules(messages: list[Any]) -> list[str]:
    """Write the blocks of all system messages, in how many messages they may stand."""
    return [
        dumps([{**message, "content": None}, seen(block)], sort_keys=True)
        for message in messages
        if message["role"] == "system"
        for block in blocks(message)
    ]


def marks(messages: list[Any]) -> list[list[int]]:
    """Find the blocks that carry a cache mark, on them or inside them."""
    return [
        [position, number]
        for position, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for number, block in enumerate(message["content"])
        if any(part.get("cache_control") for part in (block, *blocks(block)))
    ]


def turns(messages: list[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Split into runs of assistant messages and what stands up to the next one."""
    found: list[tuple[list[Any], list[Any]]] = [([], [])]
    for message in messages:
        if message["role"] == "assistant" and found[-1][1]:
            found.append(([], []))
        found[-1][message["role"] != "assistant"].append(message)
    return found


def unpaired(messages: list[Any]) -> list[str]:
    """Find calls and results that are not in one another's turn, whichever way."""
    found: list[str] = []
    for number, (replies, answers) in enumerate(turns(messages)):
        said = [block for message in replies for block in blocks(message)]
        got = [(m["role"], block) for m in answers for block in blocks(m)]
        calls = sorted(b["id"] for b in said if b["type"] == "tool_use")
        results = sorted(b["tool_use_id"] for _, b in got if b["type"] == "tool_result")
        if calls != results and (answers or results):
            found.append(f"turn {number}: calls {calls}, results {results}")
        kinds = [b["type"] == "tool_result" for role, b in got if role == "user"]
        if kinds != sorted(kinds, reverse=True):
            found.append(f"turn {number}: a result after other content")
        if any(b["type"] == "tool_use" for _, b in got):
            found.append(f"turn {number}: a call that the model did not make")
        if any(b["type"] == "tool_result" for b in said):
            found.append(f"turn {number}: a result that the model gave")
    return found


def bare(block: dict[str, Any]) -> bytes:
    """Write a block exactly, but for its cache mark."""
    return exact({key: value for key, value in block.items() if key != "cache_control"})


def request(messages: list[Any]) -> list[bytes]:
    """Return the blocks of the human's newest message, each exactly."""
    for message in reversed(messages):
        if message["role"] == "user":
            found = [
                bare(block)
                for block in blocks(message)
                if block["type"] in MEDIA
                or (block["type"] == "text" and not REMINDER.fullmatch(block["text"]))
            ]
            if found:
                return found
    return []


def unread(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the results that no assistant message stands after."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    new = (block for message in messages[last + 1 :] for block in blocks(message))
    return [block for block in new if block["type"] == "tool_result"]


def result_texts(block: dict[str, Any]) -> list[str]:
    return [part["text"] for part in blocks(block) if part["type"] == "text"]


def media(block: dict[str, Any]) -> list[bytes]:
    return [exact(part) for part in blocks(block) if part["type"] in MEDIA]


def size(block: dict[str, Any]) -> int:
    """Estimate a block as the documents say: three bytes a token, an image 1,600."""
    if block["type"] in MEDIA:
        return 1_600
    if block["type"] == "text":
        return len(block["text"].encode("utf-8", "surrogatepass")) // 3 + 30
    length = len("".join(result_texts(block)).encode("utf-8", "surrogatepass"))
    return length // 3 + 30 + 1_600 * len(media(block))


def original(block: dict[str, Any]) -> bytes:
    """Return what a handle must read: a lone text's UTF-8, else JSON."""
    if block["type"] in MEDIA:
        return canonical(seen(block))
    parts = [seen(part) for part in blocks(block)]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"]).encode("utf-8", "surrogatepass")
    return canonical(parts)


def canonical(value: object) -> bytes:
    text = dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def same(one: bytes, other: bytes) -> bool:
    """Compare messages as JSON: their owner may have spelt them otherwise since."""
    return list(map(same_form, loads(one))) == list(map(same_form, loads(other)))


def is_shown(was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tell whether an unread result is whole, or a preview that has its first characters."""
    if exact(was) == exact(now):
        return True
    text = "\n".join(result_texts(was))
    note = "\n".join(result_texts(now))
    head = LOOKALIKE.sub("&lt;", text)[:LEAST_PREVIEW]
    return (
        note.startswith("<persisted-output handle=")
        and f"characters):\n{head}" in note
        and media(now) == media(was)
    )


def outside(message: dict[str, Any], original: dict[str, Any]) -> bytes:
    """Write all of a message but what may give way: contents of results, images, documents.

    Where cache marks stand, by block, is compared apart.
    """
    content = ("content", "cache_control")
    kept: list[Any] = []
    for block, was in zip(blocks(message), blocks(original), strict=True):
        note = str(block.get("text")).startswith("[Earlier ")
        if block["type"] == "tool_result":
            kept.append({k: v for k, v in block.items() if k not in content})
        elif was["type"] in MEDIA and (note or block["type"] in MEDIA):
            kept.append(None)
        else:
            kept.append(block)
    return exact({**message, "content": kept})


def title(message: dict[str, Any]) -> str:
    return str(blocks(message)[0].get("text", "")) if blocks(message) else ""
