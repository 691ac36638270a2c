"""Follow parent links through a file whose rows form a tree.

Only rows that matter to the conversation are held. Everything else (progress
notices, snapshots, a sub-agent's rows) may still stand between two of them,
so its offset is kept, eight bytes a row, and read again where a link leads
there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .lines import values_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from .draft import Draft


def walk(tree: Tree, leaf: str, links: Mapping[str, str | None], warnings: list[str]) -> list[Node]:
    """Return the nodes from the root to `leaf`, each once.

    Where a parent is missing, or links run in a circle, the chain goes on at
    the nearest earlier row of the file that is not part of it yet.
    """
    order = sorted(tree.nodes.values(), key=lambda node: node.line)
    lines = [node.line for node in order]
    seen: set[str] = set()
    chain: list[Node] = []
    node: Node | None = tree.nodes[leaf]
    while node is not None:
        seen.add(node.id)
        chain.append(node)
        parents = [parent for parent in (node.parent, *node.older) if parent is not None]
        known = [name for name in parents if name in tree.nodes or name in links]
        parent = _unseen(parents, tree, links, seen)
        if parent is None and (not parents or (known and node.cut) or _rooted(known, links)):
            break
        if parent is None:
            warnings.append(f"line {node.line}: the row before it is missing, file order used")
            if node.draft is not None:
                node.draft.gap = True
            earlier = range(bisect_left(lines, node.line) - 1, -1, -1)
            parent = next((order[at].id for at in earlier if order[at].id not in seen), None)
        node = tree.nodes[parent] if parent is not None else None
    chain.reverse()
    return chain


def _rooted(names: list[str], links: Mapping[str, str | None]) -> bool:
    return any(name in links and links[name] is None for name in names)


def _unseen(
    start: list[str], tree: Tree, links: Mapping[str, str | None], seen: set[str]
) -> str | None:
    """Find the nearest ancestor that the chain does not hold yet.

    Rows that a compaction kept are written again with new parents; the parents
    that they had before lead on to what stood in front of them.
    """
    queue, tried = deque(start), set(start)
    while queue:
        first = queue.popleft()
        name = first if first in tree.nodes else links.get(first)
        if name is None:
            continue
        if name not in seen:
            return name
        node = tree.nodes[name]
        for parent in (node.parent, *node.older):
            if parent is not None and parent not in tried:
                tried.add(parent)
                queue.append(parent)
    return None


def mark_damage(chain: list[Node], damaged: list[int]) -> None:
    """In a file without links any damaged line may have been a message."""
    mark_damage_after([node.draft for node in chain if node.draft], damaged)


def mark_damage_after(drafts: Iterable[Draft], damaged: list[int]) -> None:
    """Mark the first draft after the first damaged line: something may be missing there."""
    after = (draft for draft in drafts if damaged and draft.line > damaged[0])
    if (draft := next(after, None)) is not None:
        draft.gap = True


def bridge(
    path: Path, tree: Tree, wanted: Iterable[str], link: Callable[[Mapping[str, Any]], Link]
) -> dict[str, str | None]:
    """Say for ids of rows that were not held which held row stands above them.

    None stands for a root; ids that the file does not have are not in the
    answer. Parents stand before their children, so one pass backwards is
    enough, and a run of such rows costs one entry, however long it is.
    """
    found: dict[str, str | None] = {}
    waiting = {name: [name] for name in wanted if name and name not in tree.nodes}
    if not waiting:
        return found
    for value in values_at(path, reversed(tree.others)):
        name, parent = link(value)
        names = waiting.pop(name, None) if name is not None else None
        if names is None:
            continue
        if parent is None or parent in tree.nodes:
            found.update(dict.fromkeys(names, parent))
        else:
            waiting.setdefault(parent, []).extend(names)
        if not waiting:
            break
    return found


Link = tuple[str | None, str | None]


@dataclass(slots=True)
class Node:
    """A row of the tree: a message, or a mark where the program compacted.

    `line` is where it was last written, `first` where it was first written,
    `older` the parents that earlier versions of the row had. `cut` marks a
    compaction: recorded usage after it is not about the full history.
    """

    id: str
    parent: str | None
    line: int
    first: int
    offset: int
    draft: Draft | None = None
    cut: bool = False
    side: bool = False
    older: tuple[str, ...] = ()


@dataclass(slots=True)
class Tree:
    """The rows that matter by id, and the offsets of all others in file order."""

    nodes: dict[str, Node] = field(default_factory=dict)
    others: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, node: Node) -> None:
        """Take a row; the same id again replaces the earlier version."""
        before = self.nodes.pop(node.id, None)
        if before is not None:
            node.first = before.first
            parents = (before.parent, *before.older)
            node.older = tuple(p for p in parents if p is not None and p != node.parent)
        self.nodes[node.id] = node

    def skip(self, offset: int) -> None:
        """Remember where a row stands that only may be a link."""
        self.others.append(offset)

    def drop_side(self) -> None:
        """Make a sub-agent's rows mere links: the file holds more than those."""
        side = [node for node in self.nodes.values() if node.side]
        for node in side:
            del self.nodes[node.id]
        self.others = array("Q", sorted([*self.others, *(node.offset for node in side)]))

    def wanted(self) -> Iterator[str]:
        """Yield every id that a row names as its parent."""
        for node in self.nodes.values():
            yield from (name for name in (node.parent, *node.older) if name is not None)
