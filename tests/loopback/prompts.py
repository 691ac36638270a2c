"""A request as the model reads it: tools, then system, then messages, block by block."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import tokens
from .shapes import Json, blocks_of, canonical


@dataclass(frozen=True, slots=True)
class Piece:
    """One block of a prompt; `digest` and `total` cover everything up to and including it.

    `mark` is the lifetime ("5m" or "1h") of the cache mark that stands on it.
    """

    path: str
    digest: bytes
    total: int
    mark: str | None


@dataclass(frozen=True, slots=True)
class Shared:
    """How much of the previous prompt a prompt begins with.

    `broken_at` is the first place of the previous prompt that is not here
    any more, None where all of it is.
    """

    blocks: int
    tokens: int
    broken_at: str | None


def pieces(request: Json) -> list[Piece]:
    """Return the blocks of a request in the order in which they are cached."""
    made: list[Piece] = []
    digest = hashlib.sha256(str(request.get("model")).encode()).digest()
    total = 0
    for path, role, block in _walk(request):
        digest = hashlib.sha256(digest + role.encode() + canonical(block)).digest()
        total += tokens.of_block(block)
        made.append(Piece(path, digest, total, ttl(block)))
    return _automatic(made, request)


def shared(before: Sequence[Piece], now: Sequence[Piece]) -> Shared:
    """Compare two prompts that followed each other."""
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if old.digest != new.digest:
            return Shared(at, before[at - 1].total if at else 0, old.path)
    common = min(len(before), len(now))
    total = before[common - 1].total if common else 0
    return Shared(common, total, before[common].path if len(before) > common else None)


def ttl(block: Json) -> str | None:
    mark = block.get("cache_control")
    return str(mark.get("ttl") or "5m") if isinstance(mark, dict) else None


def _walk(request: Json) -> Iterator[tuple[str, str, Json]]:
    for at, tool in enumerate(request.get("tools") or ()):
        yield f"tools.{at}", "tool", tool
    for at, block in enumerate(blocks_of({"content": request.get("system")})):
        yield f"system.{at}", "system", block
    # A changed mode of thinking or choice of tools spoils the messages, not what is before.
    mode = canonical([_mode(request.get("thinking")), request.get("tool_choice")]).decode()
    for i, message in enumerate(request.get("messages") or ()):
        for j, block in enumerate(blocks_of(message)):
            yield f"messages.{i}.content.{j}", f"{mode}{message['role']}", block


def _mode(thinking: Json | None) -> Json:
    return {k: v for k, v in (thinking or {}).items() if k != "block_binding"}


def _automatic(made: list[Piece], request: Json) -> list[Piece]:
    """Put the mark of the top-level `cache_control` on the last block."""
    mark = ttl(request)
    if mark is None or not made:
        return made
    last = made[-1]
    return [*made[:-1], Piece(last.path, last.digest, last.total, last.mark or mark)]
