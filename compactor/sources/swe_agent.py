"""SWE-agent's trajectories (`*.traj`).

`history` is the conversation, as text or with calls. `trajectory` tells it
again step by step, in newer versions with all messages of each request, and
serves where there is no history.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from .chat import Chat
from .documents import runs
from .requests import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .documents import Field
    from .draft import Draft
    from .recording import Recording

NAME = "swe_agent"
NAMES = (NAME,)

_STEP = ("response", "thought", "action", "observation")


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first objects of a document are trajectories."""
    return any(
        isinstance(row.get(name), list) for row in rows for name in ("history", "trajectory")
    )


def load(path: Path) -> Iterator[Recording]:
    """Yield each trajectory of the file as one conversation."""
    found = False
    warnings: list[str] = []
    for part, run in enumerate(runs(path, [("history", "*")], warnings), 1):
        found = True
        chat = Chat(warnings)
        for _, message in run:
            chat.add(message)
        yield _recording(path, chat, part)
    if found:
        return
    warnings.clear()
    fields = [("trajectory", "*", name) for name in _STEP]
    for part, run in enumerate(runs(path, fields, warnings), 1):
        chat = Chat(warnings)
        for _, step in groupby(run, key=lambda field: field[0][1]):
            _add_step(chat, step)
        yield _recording(path, chat, part)


def _add_step(chat: Chat, fields: Iterator[Field]) -> None:
    step = {place[2]: value for place, value in fields if isinstance(value, str)}
    parts = (step.get("thought", ""), step.get("action", ""))
    said = step.get("response") or "\n".join(filter(None, parts))
    chat.add({"role": "assistant", "content": said})
    if step.get("observation"):
        chat.add({"role": "user", "content": step["observation"]})


def _recording(path: Path, chat: Chat, part: int) -> Recording:
    warnings = list(chat.warnings)
    chat.warnings.clear()
    drafts = _observed(chat.drafts())
    return record(path, NAME, drafts, warnings, unit="message", part=part)


def _observed(drafts: list[Draft]) -> list[Draft]:
    """Mark what the program wrote: the task is the last text before the first reply."""
    first = next((at for at, draft in enumerate(drafts) if draft.role == "assistant"), len(drafts))
    for at, draft in enumerate(drafts):
        draft.meta |= draft.role == "user" and at != first - 1
    return drafts
