"""Claude Code's stream (`claude -p --output-format stream-json`, a JSON list with `json`).

Rows stand in the order of the conversation. The prompt is missing where it
came from the command line.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from .chain import mark_damage_after
from .claude_replies import merge
from .documents import runs
from .draft import Draft, blocks_of
from .lines import Reader
from .requests import record, wire_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .recording import Recording

NAME = "claude_stream"
NAMES = (NAME,)

_Row = tuple[int, dict[str, Any]]


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first rows of a file are of a stream."""
    return any(map(_ours, rows))


def _ours(row: Mapping[str, Any]) -> bool:
    if "parentUuid" in row or not ("session_id" in row or "parent_tool_use_id" in row):
        return False
    if row.get("type") == "system":
        return isinstance(row.get("subtype"), str)
    return row.get("type") in ("user", "assistant") and isinstance(row.get("message"), dict)


def load(path: Path) -> Iterator[Recording]:
    """Yield each session that the stream holds as one conversation."""
    reader = Reader(path)
    rows = ((row.line, row.value) for row in reader)
    yield from _recordings(path, rows, reader.warnings, reader.damaged)


def load_list(path: Path) -> Iterator[Recording]:
    """Yield each session of rows that stand in a JSON list."""
    warnings: list[str] = []
    for run in runs(path, [("*",)], warnings):
        rows = ((at, value) for at, (_, value) in enumerate(run, 1) if isinstance(value, dict))
        yield from _recordings(path, rows, warnings, [], unit="row")


def _recordings(
    path: Path, rows: Iterable[_Row], warnings: list[str], damaged: list[int], unit: str = "line"
) -> Iterator[Recording]:
    for part, (_, session) in enumerate(groupby(_told(rows), key=_session), 1):
        drafts = merge(_drafts(session))
        mark_damage_after(drafts, damaged)
        yield record(path, NAME, drafts, list(warnings), unit=unit, part=part)
        warnings.clear()


def _told(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Pass over what is no message of the main agent, and what was told twice."""
    seen: set[str] = set()
    for line, row in rows:
        message, name = row.get("message"), row.get("uuid")
        if row.get("type") == "system":
            if str(row.get("subtype")).endswith("compact_boundary"):
                yield line, row
            continue
        if row.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        if row.get("parent_tool_use_id") or message.get("model") == "<synthetic>":
            continue
        if isinstance(name, str):
            if name in seen:
                continue
            seen.add(name)
        yield line, row


def _session(row: _Row) -> object:
    name = row[1].get("session_id")
    return name if isinstance(name, str) else None


def _drafts(rows: Iterable[_Row]) -> Iterator[Draft]:
    compacted = summary = False
    for line, row in rows:
        if row["type"] == "system":
            compacted = summary = True
            continue
        message = row["message"]
        if summary and row["type"] == "user" and not _results(message):
            # The first text after a compaction is its summary, which the human never wrote.
            summary = False
            continue
        reply, model = message.get("id"), message.get("model")
        yield Draft(
            row["type"],
            message.get("content"),
            line,
            meta=bool(row.get("isSynthetic")),
            reply=reply if isinstance(reply, str) else None,
            model=model if isinstance(model, str) else None,
            usage=None if compacted else wire_usage(message.get("usage")),
        )


def _results(message: Mapping[str, Any]) -> bool:
    return any(
        isinstance(block, dict) and block.get("type") == "tool_result"
        for block in blocks_of(message.get("content"))
    )
