"""What a session did to files and by its tools: told by its calls, not by a model."""

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

    `read` and `written` are paths, each once; `actions` are calls of tools that may have changed
    something, each with its outcome, in one line; `checkpoint` is what the assistant wrote down
    last when it asked for a compaction.
    """

    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
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
            tool = event.tool or ""
            paths = read if is_read_only(tool) else written
            for path in _paths(event):
                paths.pop(path, None)  # the newest use counts
                paths[path] = None
            if isinstance(said := event.arguments.get(_CHECKPOINT), str) and said.strip():
                checkpoint = said.strip()
            if not is_read_only(tool):
                calls[event.call] = event
        elif event.what is What.RETURNED and event.call in calls:
            actions.append(f"{_call(calls.pop(event.call))} → {_outcome(event)}")
    actions += [f"{_call(call)} → no result on record" for call in calls.values()]
    only_read = [path for path in read if path not in written]
    return Record(tuple(only_read), tuple(written), tuple(_counted(actions)), checkpoint)


def _paths(event: Event) -> Iterator[str]:
    for key in _PATHS:
        value = event.arguments.get(key)
        if isinstance(value, str) and value.strip():
            yield _line(value)


def _call(event: Event) -> str:
    told = (event.arguments.get(key) for key in _TELLING)
    what = next((value for value in told if isinstance(value, str) and value.strip()), event.text)
    return f"{event.tool}: {_line(what)}"


def _outcome(event: Event) -> str:
    lines = [line for line in event.text[-4 * _LONGEST :].splitlines() if line.strip()]
    last = _line(lines[-1]) if lines else "no output"
    return f"failed: {last}" if event.failed else last


def _line(text: str) -> str:
    line = " ".join(text[: 4 * _LONGEST].split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + _CUT


def _counted(actions: list[str]) -> Iterator[str]:
    """Tell a run of the same action once, with how often it was done."""
    for action, run in groupby(actions):
        times = sum(1 for _ in run)
        yield action if times == 1 else f"{action} ({times} times)"
