"""What calls and results tell: what failed, how tests went, lists of work."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .events import Event
from .statements import PART, ends, shortened

LINE: Final = 240  # characters of one line that is kept
_LINES: Final = 5  # of one result
_COMMAND: Final = 80

TODO: Final = "☐ "
DOING: Final = "▶ "
MARKS: Final = (TODO, DOING)

# Tools and programs that show what files hold: an error line in there is nobody's error.
_READERS: Final = ("read", "cat", "view", "open", "grep", "glob", "ls", "find", "search", "list")
_PAGERS: Final = frozenset({"cat", "grep", "rg", "ls", "find", "sed", "head", "tail", "less", "jq"})
_FAILED: Final = re.compile(
    r"E   \s*\S"
    r"|FAILED \S"
    r"|ERROR \S+::"
    r"|(?:[\w.]{1,80}\.)?[A-Z]\w{1,60}(?:Error|Exception|Interrupt|Timeout)\b(?:: |$)"
    r"|(?i:error|fatal|panic)(?:\[\w{1,20}\])?: \S"
    r"|[^\s:]{1,160}:\d{1,7}(?::\d{1,7})?: (?:(?:fatal )?error|E\d+)\b"
    r"|npm (?:ERR!|error) \S"
    r"|--- FAIL: \S"
    r"|not ok \d"
    r"|[✕✗\u00d7] \S"
    r"|(?:[^:]{1,80}: ){0,3}(?:command not found|No such file or directory|Permission denied)"
)
_PASSED: Final = re.compile(
    r"PASSED (\S+)|(\S+) PASSED\b|--- PASS: (\S+)|ok \d+ -? ?(.{1,120})|[✓✔] (.{1,120})"
)
_OUTCOME: Final = re.compile(
    r"(?=.{0,200}\b\d+ (?:passed|failed|passing|failing|errors?|tests\b))"
    r"=*\s*(.{0,200}?\d+ (?:passed|failed|passing|failing|errors?|tests\b).{0,120}?)\s*=*"
)
_GOOD: Final = re.compile(r"\b\d+ (?:passed|passing)\b|\b0 fail(?:ed|ures)\b", re.IGNORECASE)
_BAD: Final = re.compile(r"\b[1-9]\d* (?:failed|failing|errors?|failures?)\b", re.IGNORECASE)
_EXIT: Final = re.compile(
    r"(?:process )?exit(?:ed)?(?: with)?(?: code| status)?[: =]+([1-9]\d{0,3})\b", re.IGNORECASE
)
_RUNNERS: Final = frozenset(
    {"pytest", "unittest", "tox", "jest", "vitest", "mocha", "cargo", "go", "npm", "yarn", "pnpm"}
    | {"make", "mix", "mvn", "gradle", "rspec", "dotnet", "phpunit", "tsc", "mypy", "ruff"}
)
_NAMED: Final = 8  # characters of a test's name that say which one it is


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one result says: its telling lines, the tests that passed, how it went altogether."""

    errors: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    summary: str = ""

    def settles(self, line: str, command: str, earlier: str) -> bool:
        """Whether an error line of an earlier command is gone, now that `command` went like this.

        Its test passed, or the same program finds all well, altogether or in the same place.
        """
        if any(test in line for test in self.passed):
            return True
        if self.errors or _BAD.search(self.summary) or not _GOOD.search(self.summary):
            return False
        program = next((one for one in _programs(command) if one in _RUNNERS), None)
        places = [word for word in command.split() if "/" in word or "." in word.strip(".")]
        return program in _programs(earlier) and (
            not places or any(place in line or place in earlier for place in places)
        )


def outcome(result: Event, command: str) -> Outcome:
    """Return what a result says; one that only shows what a file holds says nothing."""
    if not result.failed and _only_reads(result.tool, command):
        return Outcome()
    errors: dict[str, None] = {}
    passed: set[str] = set()
    summary = left = ""
    for raw in ends(result.text).splitlines():
        line = raw.strip()[:LINE]
        if _FAILED.match(line):
            errors[shortened(line, LINE)] = None
        elif ok := _PASSED.match(line):
            passed |= {one for one in ok.groups() if one and len(one) >= _NAMED}
        elif told := _OUTCOME.fullmatch(line):
            summary = told[1]
        elif gone := _EXIT.fullmatch(line):
            left = gone[0]
    if not errors and (left or result.failed):
        end = result.text[-2 * PART :].rstrip().rpartition("\n")[2]
        errors[left or shortened(end.strip()[:LINE], LINE)] = None
    return Outcome(_newest(list(errors)), frozenset(passed), summary)


def _newest(lines: list[str]) -> tuple[str, ...]:
    """Return the last lines; where there are many, those that name a test before its details."""
    short = [line for line in lines if not line.startswith("E   ")]
    return tuple((short if short and len(lines) > _LINES else lines)[-_LINES:])


def _only_reads(tool: str | None, command: str) -> bool:
    name = re.sub(r"[^a-z]", "", (tool or "").rsplit("__", 1)[-1].lower())
    return name.startswith(_READERS) or command.split(" ", 1)[0] in _PAGERS


def _programs(command: str) -> list[str]:
    return re.split(r"[\s/]", command)


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


def _inline(text: str) -> str:
    line = " ".join(text[:400].split())
    return line if len(line) <= _COMMAND else line[: _COMMAND - 1] + "…"
