"""pi's session files (`~/.pi/agent/sessions/…/*.jsonl`).

A header, then entries in a tree by `parentId`; files of older versions have
no ids and are read in order. The file's last entry is the place where the
program stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chain import Link, Node, Tree, bridge, mark_damage, walk
from .draft import joined
from .lines import Reader
from .pi_messages import draft_of
from .requests import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .draft import Draft
    from .recording import Recording

NAME = "pi"
NAMES = (NAME,)


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first rows of a file are pi's: its header, or an entry."""
    return any(_ours(row) for row in rows)


def _ours(row: Mapping[str, Any]) -> bool:
    if row.get("type") == "session":
        return "cwd" in row and "timestamp" in row
    message = row.get("message")
    return row.get("type") == "message" and isinstance(message, dict) and "role" in message


def load(path: Path) -> Iterator[Recording]:
    """Yield the session as its full history, as if it had never been compacted."""
    reader = Reader(path)
    tree, leaf = _tree(reader)
    warnings = reader.warnings
    if any(node.parent for node in tree.nodes.values()):
        links = bridge(path, tree, [leaf, *tree.wanted()], _link)
        newest = max(tree.nodes.values(), key=lambda node: node.line).id
        held = leaf if leaf in tree.nodes else links.get(leaf) or newest
        chain = walk(tree, held, links, warnings)
    else:
        chain = sorted(tree.nodes.values(), key=lambda node: node.line)
        mark_damage(chain, reader.damaged)
    yield record(path, NAME, joined(_drafts(chain)), warnings)


def _tree(reader: Reader) -> tuple[Tree, str]:
    """Return the tree and the id of the last entry."""
    tree, leaf = Tree(), ""
    for row in reader:
        if row.value.get("type") == "session":
            continue
        name, parent = _link(row.value)
        draft = draft_of(row.line, row.value)
        cut = row.value.get("type") == "compaction"
        if draft is not None or cut:
            name = name or f"line {row.line}"
            tree.add(Node(name, parent, row.line, row.line, row.offset, draft, cut))
        elif name is not None:
            tree.skip(row.offset)
        leaf = name or leaf
    return tree, leaf


def _link(value: Mapping[str, Any]) -> Link:
    name, parent = value.get("id"), value.get("parentId")
    return (
        name if isinstance(name, str) and name else None,
        parent if isinstance(parent, str) and parent else None,
    )


def _drafts(chain: list[Node]) -> list[Draft]:
    """Leave compactions out, and the usage of all requests after the first."""
    drafts: list[Draft] = []
    compacted = False
    for node in chain:
        compacted |= node.cut
        if node.draft is not None:
            if compacted:
                node.draft.usage = None
            drafts.append(node.draft)
    return drafts
