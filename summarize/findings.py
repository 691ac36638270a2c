"""What calls and results tell: what failed, how tests went, lists of work."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .events import Event
from .statements import ends, shortened

LINE: Final = 240  # characters of one line that is kept
_LINES: Final = 5  # of one result
_COMMAND: Final = 80

TODO: Final = "☐ "
DOING: Final = "▶ "

_READERS: Final = tuple("read cat view open grep glob ls find search fetch list".split())  # noqa: SIM905
_FAILED: Final = re.compile(
    r"E   \s*\S"
    r"|FAILED \S"
    r"|ERROR \S+::"
    r"|(?:[\w.]{1,80}\.)?[A-Z]\w{1,60}(?:Error|Exception|Warning|Interrupt|Exit|Timeout)\b(?:: |$)"
    r"|(?i:error|fatal|panic)(?:\[\w{1,20}\])?: \S"
    r"|[^\s:]{1,160}:\d{1,7}(?::\d{1,7})?: (?:(?:fatal )?error|E\d+)\b"
    r"|npm (?:ERR!|error) \S"
    r"|--- FAIL: \S"
    r"|not ok \d"
    r"|[✕✗\u00d7] \S"
    r"|(?:\S{1,80}: )?(?:command not found|No such file or directory|Permission denied)"
)
_PASSED: Final = re.compile(
    r"(?:PASSED (\S+)|(\S+) PASSED\b|--- PASS: (\S+)|ok \d+ -? ?(.{1,120})|[✓✔] (.{1,120}))"
)
_OUTCOME: Final = re.compile(
    r"(?=.{0,200}\b\d+ (?:passed|failed|passing|failing|errors?|tests\b))"
    r"=*\s*(.{0,200}?\d+ (?:passed|failed|passing|failing|errors?|tests\b).{0,120}?)\s*=*"
)
_GOOD: Final = re.compile(r"\b\d+ (?:passed|passing)\b|\bok\b", re.IGNORECASE)
_BAD: Final = re.compile(r"\b[1-9]\d* (?:failed|failing|errors?|failures?)\b", re.IGNORECASE)
_EXIT: Final = re.compile(
    r"(?:process )?exit(?:ed)?(?: with)?(?: code| status)?[: =]+([1-9]\d{0,3})\b", re.IGNORECASE
)
_RUNNERS: Final = (
    "pytest",
    "unittest",
    "tox",
    "jest",
    "vitest",
    "mocha",
    "cargo",
    "go",
    "npm",
    "make",
    "tsc",
    "mypy",
    "ruff",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one result says: its telling lines, the tests that passed, how it went altogether."""

    errors: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    summary: str = ""

    @property
    def is_good(self) -> bool:
        """Whether a run of tests says that all is well."""
        return (
            bool(_GOOD.search(self.summary)) and not self.errors and not _BAD.search(self.summary)
        )


def outcome(result: Event) -> Outcome:
    """Return what a result says; one that only shows what a file holds says nothing."""
    if not result.failed and _name(result.tool).startswith(_READERS):
        return Outcome()
    errors: dict[str, None] = {}
    passed: set[str] = set()
    summary = left = ""
    for raw in ends(result.text).splitlines():
        line = raw.strip()[:LINE]
        if not line:
            continue
        if _FAILED.match(raw[:LINE]) or _FAILED.match(line):
            errors[shortened(line, LINE)] = None
        elif ok := _PASSED.match(line):
            passed.add(next(one for one in ok.groups() if one))
        elif told := _OUTCOME.fullmatch(line):
            summary = told[1]
        elif gone := _EXIT.fullmatch(line):
            left = gone[0]
    last = [line for line in errors if not line.startswith("E   ") or len(errors) <= _LINES]
    if not last and (left or result.failed):
        last = [left or shortened(result.text.strip()[-LINE:], LINE)]
    return Outcome(tuple(last[-_LINES:]), frozenset(passed), summary)


def command(call: Event) -> str:
    """Return what was called, in short: the command line, or the tool and its first text."""
    for key in ("command", "cmd", "script", "code"):
        value = call.arguments.get(key)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = " ".join(value)
        if isinstance(value, str) and value.strip():
            return _inline(value)
    first = next((one for one in call.arguments.values() if isinstance(one, str) and one), "")
    return _inline(f"{call.tool or 'tool'} {first}")


@dataclass(frozen=True, slots=True)
class Rerun:
    """A command that went well, and an earlier one that did not."""

    good: str
    earlier: str

    def covers(self, line: str) -> bool:
        """Whether an error line of the earlier one is gone: same program, on all or on the same."""
        earlier = re.split(r"[\s/]", self.earlier)
        program = next((one for one in re.split(r"[\s/]", self.good) if one in _RUNNERS), None)
        if program not in earlier:
            return False
        named = [word for word in self.good.split() if "/" in word or "." in word.strip(".")]
        return not named or any(word in line or word in self.earlier for word in named)


def names(line: str, tests: Collection[str]) -> bool:
    """Whether an error line is of one of these tests."""
    return any(test in line for test in tests) if tests else False


def todos(arguments: Mapping[str, Any]) -> list[str] | None:
    """Return what is unfinished of a list of work among a call's arguments (None: no list)."""
    for value in arguments.values():
        items = value[:200] if isinstance(value, list) else ()
        if items and all(isinstance(one, Mapping) and _status(one) for one in items):
            return list(_unfinished(items))
    return None


def checklist(text: str) -> list[str] | None:
    """Return the unfinished items of a list with boxes in a text (None: no such list)."""
    boxes = re.findall(r"(?m)^\s{0,12}[-*] \[([ xX])\] (.{1,300})", ends(text))
    return [TODO + shortened(what, LINE) for box, what in boxes if box == " "] if boxes else None


def _unfinished(items: Any) -> Iterator[str]:
    for one in items:
        status = _status(one)
        keys = ("content", "step", "title", "task", "subject", "text", "description")
        what = next((one[key] for key in keys if isinstance(one.get(key), str)), "")
        if what and status not in ("completed", "complete", "done", "cancelled", "canceled"):
            doing = status in ("in_progress", "in-progress", "doing", "active")
            yield (DOING if doing else TODO) + shortened(what, LINE)


def _status(item: Mapping[str, Any]) -> str:
    value = item.get("status", item.get("state", ""))
    return value if isinstance(value, str) else ""


def _name(tool: str | None) -> str:
    return re.sub(r"[^a-z]", "", (tool or "").rsplit("__", 1)[-1].lower())


def _inline(text: str) -> str:
    line = " ".join(text[:400].split())
    return line if len(line) <= _COMMAND else line[: _COMMAND - 1] + "…"
