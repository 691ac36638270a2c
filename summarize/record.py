"""What a session did to files and by its tools: told by its calls, not by a model."""

import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from .events import Event, What

_PATHS = ("file_path", "path", "filename", "file", "notebook_path", "absolute_path", "target_file")
_TELLING = ("command", "cmd", *_PATHS, "url", "query", "pattern", "description", "name")
_LONGEST = 160  # characters of what was called, and of its outcome
_CHECKPOINT = "checkpoint"
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Record:
    """What was done, oldest first.

    `actions` are calls of tools that may have changed something, each with its outcome, in one
    line; `written` and `read` are paths, each once, in the order of their last use. Paths below
    `root` are relative to it (None: they have no folder in common). `checkpoint` is what the
    assistant wrote down last when it asked for a compaction.
    """

    actions: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    root: str | None = None
    checkpoint: str | None = None


def record(events: Iterable[Event], is_read_only: Callable[[str], bool]) -> Record:
    """Gather what the calls among these events did."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    calls: dict[str | None, Event] = {}  # that wait for their results, by identifier
    actions: list[str] = []
    checkpoint = None
    for event in events:
        if event.what is What.CALLED:
            harmless = is_read_only(event.tool or "")
            paths = read if harmless else written
            for path in _paths(event):
                paths.pop(path, None)  # the last use counts
                paths[path] = None
            if isinstance(said := event.arguments.get(_CHECKPOINT), str) and said.strip():
                checkpoint = said.strip()
            if not harmless:
                calls[event.call] = event
        elif event.what is What.RETURNED and event.call in calls:
            actions.append(_action(calls.pop(event.call), event))
    actions += [_action(call, None) for call in calls.values()]
    root = _root([*read, *written])
    only_read = [path for path in read if path not in written]
    return Record(
        tuple(_counted(action.replace(root, "") if root else action for action in actions)),
        tuple(path.removeprefix(root or "") for path in written),
        tuple(path.removeprefix(root or "") for path in only_read),
        root,
        checkpoint,
    )


def _paths(event: Event) -> Iterator[str]:
    for key in _PATHS:
        value = event.arguments.get(key)
        if isinstance(value, str) and value.strip():
            yield " ".join(value.split())


def _root(paths: list[str]) -> str | None:
    """Return the folder of all absolute paths, with its slash; None where that says nothing."""
    folders = [posixpath.dirname(path) for path in paths if path.startswith("/")]
    common = posixpath.commonpath(folders) if folders else "/"
    return f"{common}/" if common.count("/") > 1 else None


def _action(call: Event, answer: Event | None) -> str:
    told = (call.arguments.get(key) for key in _TELLING)
    what = next((value for value in told if isinstance(value, str) and value.strip()), call.text)
    return f"{call.tool}: {_line(what)} → {_outcome(call, answer)}"


def _outcome(call: Event, answer: Event | None) -> str:
    if answer is None:
        return "no result on record"
    lines = [line for line in answer.text[-4 * _LONGEST :].splitlines() if line.strip()]
    last = _line(lines[-1]) if lines else "no output"
    if answer.failed:
        return f"failed: {last}"
    return "ok" if any(_paths(call)) else last  # what was written needs no echo


def _line(text: str) -> str:
    line = " ".join(text[: 4 * _LONGEST].split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + _CUT


def _counted(actions: Iterable[str]) -> Iterator[str]:
    """Tell a run of the same action once, with how often it was done."""
    for action, run in groupby(actions):
        times = sum(1 for _ in run)
        yield action if times == 1 else f"{action} ({times} times)"
