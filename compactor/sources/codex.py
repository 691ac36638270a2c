"""Codex's session files (`~/.codex/sessions/…/rollout-*.jsonl`).

The conversation is the `response_item` rows; all else repeats it, or tells of
usage and settings. Older files hold the items themselves, a line each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chain import mark_damage_after
from .draft import Draft, blocks_of, joined
from .items import add_item, is_item
from .lines import Reader
from .requests import record, whole_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .recording import Recording

NAME = "codex"
NAMES = (NAME,)

_ROWS = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
_USAGE = {
    "input_tokens": "input_tokens",
    "cache_read_input_tokens": "cached_input_tokens",
    "output_tokens": "output_tokens",
}
_INJECTED = (
    *("<environment_context>", "<user_instructions>", "<turn_aborted>", "<INSTRUCTIONS>"),
    *("# AGENTS.md instructions", "<skill>", "<subagent_notification>", "<user_shell_command>"),
)


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first rows of a file are Codex's."""
    return any(map(_ours, rows))


def _ours(row: Mapping[str, Any]) -> bool:
    if isinstance(row.get("payload"), dict):
        return row.get("type") in _ROWS
    return _old(row) and ("role" in row or is_item(row))


def _old(row: Mapping[str, Any]) -> bool:
    return (row.get("type") == "message" and "message" not in row) or is_item(row)


def load(path: Path) -> Iterator[Recording]:
    """Yield the session as its full history, without the turns that were taken back."""
    reader = Reader(path)
    drafts: list[Draft] = []
    model: str | None = None
    compacted = False
    total: object = None
    for row in reader:
        kind, payload = row.value.get("type"), row.value.get("payload")
        if not isinstance(payload, dict):
            if kind != "compacted" and _old(row.value):
                _add(drafts, row.line, row.value, model)
            continue
        if kind == "response_item":
            _add(drafts, row.line, payload, model)
        elif kind in ("turn_context", "session_meta"):
            named = payload.get("model")
            model = named if isinstance(named, str) else model
        elif kind == "compacted":
            compacted = True
        elif payload.get("type") == "thread_rolled_back":
            _take_back(drafts, payload.get("num_turns"))
        elif payload.get("type") == "token_count" and not compacted:
            info = payload.get("info")
            if isinstance(info, dict) and info.get("total_token_usage") != total:
                total = info.get("total_token_usage")
                _used(drafts, info.get("last_token_usage"))
    mark_damage_after(drafts, reader.damaged)
    yield record(path, NAME, joined(drafts), reader.warnings)


def _add(drafts: list[Draft], line: int, item: Mapping[str, Any], model: str | None) -> None:
    before = len(drafts)
    add_item(drafts, line, item, model)
    if len(drafts) > before and drafts[-1].role == "user" and _injected(drafts[-1]):
        drafts[-1].meta = True


def _injected(draft: Draft) -> bool:
    texts = [
        block.get("text")
        for block in blocks_of(draft.content)
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return all(isinstance(text, str) and text.lstrip().startswith(_INJECTED) for text in texts)


def _used(drafts: list[Draft], usage: object) -> None:
    """Give the newest reply the usage that was told after it."""
    for draft in reversed(drafts):
        if draft.role == "assistant":
            draft.usage = draft.usage or whole_usage(usage, _USAGE)
            return


def _take_back(drafts: list[Draft], turns: object) -> None:
    """Drop the last user turns: the human went back in the conversation."""
    asked = [at for at, draft in enumerate(drafts) if draft.role == "user" and not draft.meta]
    if isinstance(turns, int) and turns > 0 and asked:
        del drafts[asked[max(len(asked) - turns, 0)] :]
