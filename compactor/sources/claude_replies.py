"""Put Claude Code's rows together again: a reply is written block by block.

Parallel calls fork the tree: each call's result hangs on the row of its call,
so that the chain of parents passes most of them by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .draft import Draft, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .chain import Node, Tree


def beside(chain: list[Node], tree: Tree) -> list[Draft]:
    """Return the drafts of the chain with those that hang beside it.

    These are rows of a reply that the chain holds in part, and results of
    calls in such replies that the chain does not hold.
    """
    inside = {node.id for node in chain}
    # The last row of each reply in the chain: what hangs beside it comes after.
    places = {n.draft.reply: n.id for n in chain if n.draft and n.draft.reply}
    outside = [n for n in tree.nodes.values() if n.draft and n.id not in inside]
    outside.sort(key=lambda node: node.line)
    asked: dict[str, str] = {}
    extra: dict[str, list[Draft]] = {}
    for node in chain:
        if node.draft is not None and node.draft.role == "assistant":
            asked.update(dict.fromkeys(_ids(node.draft, "tool_use", "id"), node.id))
    for node in outside:
        if node.draft is not None and node.draft.role == "assistant":
            place = places.get(node.draft.reply) if node.draft.reply else None
            if place is not None:
                extra.setdefault(place, []).append(node.draft)
                asked.update(dict.fromkeys(_ids(node.draft, "tool_use", "id"), place))
    answered = {
        name for n in chain if n.draft for name in _ids(n.draft, "tool_result", "tool_use_id")
    }
    for node in outside:
        if node.draft is not None and node.draft.role == "user":
            results = _ids(node.draft, "tool_result", "tool_use_id")
            open_ = [name for name in results if name in asked and name not in answered]
            if open_:
                answered.update(results)
                extra.setdefault(asked[open_[0]], []).append(node.draft)
    return [
        draft
        for node in chain
        for draft in [*([node.draft] if node.draft else []), *extra.get(node.id, [])]
    ]


def merge(drafts: Iterable[Draft]) -> list[Draft]:
    """Make one message of the rows of each reply; what stood between them follows.

    The results behind a reply come in the order in which they were written.
    """
    merged: list[Draft] = []
    reply: list[Draft] = []
    between: list[Draft] = []
    for draft in drafts:
        if draft.role == "user":
            between.append(draft)
        elif reply and draft.reply is not None and draft.reply == reply[-1].reply:
            reply.append(draft)
        else:
            merged += [*_whole(reply), *_in_order(between)]
            reply, between = [draft], []
    return [*merged, *_whole(reply), *_in_order(between)]


def _whole(rows: list[Draft]) -> list[Draft]:
    if len(rows) < 2:  # noqa: PLR2004
        return rows
    rows = sorted(rows, key=lambda row: row.line)
    content: list[Any] = []
    for row in rows:
        blocks = blocks_of(row.content)
        # Some versions wrote the reply so far again, and more of it.
        again = bool(content) and len(blocks) > len(content) and blocks[: len(content)] == content
        content = blocks if again else content + blocks
    last = rows[-1]
    usage = next((row.usage for row in reversed(rows) if row.usage is not None), None)
    return [
        Draft(
            "assistant",
            content,
            rows[0].line,
            reply=last.reply,
            model=last.model,
            usage=usage,
            gap=any(row.gap for row in rows),
        )
    ]


def _in_order(drafts: list[Draft]) -> list[Draft]:
    """Sort leading results by line; the chain and what hung beside it were joined."""
    count = 0
    while count < len(drafts) and _ids(drafts[count], "tool_result", "tool_use_id"):
        count += 1
    return sorted(drafts[:count], key=lambda draft: draft.line) + drafts[count:]


def _ids(draft: Draft, kind: str, key: str) -> list[str]:
    return [
        block[key]
        for block in blocks_of(draft.content)
        if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(key), str)
    ]
