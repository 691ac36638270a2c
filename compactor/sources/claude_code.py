"""Claude Code's session files (`~/.claude/projects/<folder>/<session>.jsonl`).

The file is a tree of rows. The conversation is the chain from the newest
message to the root, over compactions and back to what they left out; replies
and results of parallel calls that hang beside the chain belong to it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chain import Link, Node, Tree, bridge, mark_damage, walk
from .claude_replies import beside, merge
from .draft import Draft
from .lines import Reader, Row
from .requests import record, wire_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .recording import Recording

NAME = "claude_code"
NAMES = (NAME,)


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first rows of a file are Claude Code's."""
    return any(map(_ours, rows))


def _ours(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("type"), str) or "session_id" in row or "payload" in row:
        return False
    if "parentUuid" in row or "leafUuid" in row or row["type"] == "file-history-snapshot":
        return True
    wire = row["type"] in {"user", "assistant"} and isinstance(row.get("message"), dict)
    return "sessionId" in row or (wire and "uuid" in row)


def load(path: Path) -> Iterator[Recording]:
    """Yield the session as its full history: before, between and after compactions."""
    reader = Reader(path)
    tree = _tree(reader)
    warnings = reader.warnings
    last = max((n for n in tree.nodes.values() if n.draft), key=lambda n: n.line, default=None)
    if last is None:
        yield record(path, NAME, [], warnings)
        return
    links: dict[str, str | None] = {}
    if any(node.parent for node in tree.nodes.values()):
        links = bridge(path, tree, tree.wanted(), _link)
        chain = walk(tree, last.id, links, warnings)
    else:
        chain = sorted(tree.nodes.values(), key=lambda node: node.line)
        mark_damage(chain, reader.damaged)
    _forget_usage(chain, tree, links)
    yield record(path, NAME, merge(beside(chain, tree)), warnings)


def _tree(reader: Reader) -> Tree:
    tree = Tree()
    only_side = True
    for row in reader:
        node = _node(row)
        if node is None or (node.side and not only_side):
            if _link(row.value)[0] is not None:
                tree.skip(row.offset)
            continue
        if only_side and not node.side:
            only_side = False
            tree.drop_side()
        tree.add(node)
    return tree


def _node(row: Row) -> Node | None:
    """Hold a message or a compaction; None for every other row."""
    value = row.value
    kind = value.get("type")
    message = value.get("message")
    node = Node("", None, row.line, row.line, row.offset)
    if kind == "system" and str(value.get("subtype")).endswith("compact_boundary"):
        node.cut = True
        node.older = tuple(_kept(value.get("compactMetadata")))
    elif isinstance(message, dict) and kind in ("user", "assistant"):
        if value.get("isCompactSummary"):
            node.cut = True
        elif not (
            value.get("isApiErrorMessage")
            or value.get("isVisibleInTranscriptOnly")
            or message.get("model") == "<synthetic>"
        ):
            node.draft = _draft(row.line, value, message)
    else:
        return None
    name, node.parent = _link(value)
    if node.cut and node.parent is None:
        # A compaction hides what came before it, so it is never a root.
        node.parent = ""
    node.id = name or f"line {row.line}"
    node.side = bool(value.get("isSidechain"))
    return node


def _draft(line: int, value: Mapping[str, Any], message: Mapping[str, Any]) -> Draft:
    reply, model = message.get("id"), message.get("model")
    return Draft(
        role=value["type"],
        content=message.get("content"),
        line=line,
        meta=bool(value.get("isMeta")),
        reply=reply if isinstance(reply, str) else None,
        model=model if isinstance(model, str) else None,
        usage=wire_usage(message.get("usage")),
    )


def _link(value: Mapping[str, Any]) -> Link:
    """Return a row's id and parent; a compaction's parent is the old leaf."""
    name = value.get("uuid")
    parent = value.get("parentUuid") or value.get("logicalParentUuid")
    return (
        name if isinstance(name, str) and name else None,
        parent if isinstance(parent, str) and parent else None,
    )


def _kept(metadata: object) -> list[str]:
    """List the rows that a compaction kept, newest first; `preservedMessages` wins."""
    if not isinstance(metadata, dict):
        return []
    messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
    if isinstance(messages, dict) and isinstance(messages.get("uuids"), list):
        names = messages["uuids"][::-1]
    elif isinstance(segment, dict):
        names = [segment.get("tailUuid"), segment.get("headUuid")]
    else:
        names = []
    return [name for name in names if isinstance(name, str)]


def _forget_usage(chain: list[Node], tree: Tree, links: Mapping[str, str | None]) -> None:
    """Drop usage after the first compaction that this chain went through.

    Where rows were kept, later rows may hang on them and pass the boundary by.
    """
    names = {node.id for node in chain}
    cuts = [
        node.first
        for node in tree.nodes.values()
        if node.cut
        and (
            node.id in names
            or any(
                links.get(parent, parent) in names
                for parent in (node.parent, *node.older)
                if parent
            )
        )
    ]
    for node in chain:
        if cuts and node.draft is not None and node.first > min(cuts):
            node.draft.usage = None
