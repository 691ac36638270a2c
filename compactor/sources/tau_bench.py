"""tau-bench's results: a JSON list of runs, or one run; `traj` is an OpenAI chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chat import Chat
from .documents import runs
from .requests import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .recording import Recording

NAME = "tau_bench"
NAMES = (NAME,)


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first objects of a document are runs of tau-bench."""
    return any(isinstance(row.get("traj"), list) for row in rows)


def load(path: Path) -> Iterator[Recording]:
    """Yield each run of the file as one conversation."""
    warnings: list[str] = []
    for part, run in enumerate(runs(path, [("traj", "*")], warnings), 1):
        chat = Chat(warnings)
        for _, message in run:
            chat.add(message)
        yield record(path, NAME, chat.drafts(), list(warnings), unit="message", part=part)
        warnings.clear()
