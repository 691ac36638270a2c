"""Find the points of a history at which the recorded program made a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .draft import Draft, blocks_of
from .legal import repair
from .recording import Recording, RequestPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Text that a program put into a user message: nothing but such elements.
_INJECTED = re.compile(
    r"\s*(?:<(?P<tag>system-reminder|task-notification|(?:local-)?command-[\w-]+|bash-[\w-]+)\b[^>]*>"
    r".*?</(?P=tag)>\s*)+",
    re.DOTALL,
)
_INTERRUPTED = re.compile(r"\s*\[Request interrupted by user[^\]]*\]\s*")
_MEDIA = ("image", "document")
_LINE = re.compile(r"^line (\d+)")
_WIRE = (
    *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    "output_tokens",
)


def record(  # noqa: PLR0913 - a recording in one place
    path: Path,
    name: str,
    drafts: Iterable[Draft],
    warnings: list[str],
    *,
    unit: str = "line",
    asked: bool = False,
    model: str | None = None,
    part: int = 1,
) -> Recording:
    """Make the history legal and say where the requests were made.

    `unit` is what the drafts' lines count. `asked` says that the recording is
    one request: what ends with a user message was sent as a whole. `model` is
    that of replies that name none.
    """
    history = repair(drafts, warnings)
    messages: list[dict[str, Any]] = []
    requests: list[RequestPoint] = []
    human: int | None = None
    exact = True
    for index, draft in enumerate(history):
        exact = exact and not draft.gap
        if draft.role == "user":
            if not draft.meta and speaks(draft.content):
                human = index
        elif history[index - 1].role == "user":
            usage = draft.usage if exact else None
            requests.append(RequestPoint(index, draft.model or model, usage, human))
        messages.append({"role": draft.role, "content": draft.content})
    if asked and history and history[-1].role == "user":
        requests.append(RequestPoint(len(history), model, None, human))
    told = [_LINE.sub(rf"{unit} \1", warning) for warning in sorted(warnings, key=_line)]
    return Recording(path, name, messages, requests, told, part)


def _line(warning: str) -> int:
    """Order warnings as in the file: the steps that gave them went over it one by one."""
    number = _LINE.match(warning)
    return int(number[1]) if number else 0


def speaks(content: object) -> bool:
    """Whether content of a user message has text or media that a program did not inject."""
    for block in blocks_of(content):
        kind = block.get("type")
        if kind in _MEDIA or (kind == "text" and not injected(block["text"])):
            return True
    return False


def injected(text: str) -> bool:
    """Whether a text is wholly a program's: reminders, command echoes, interruptions."""
    return bool(_INJECTED.fullmatch(text) or _INTERRUPTED.fullmatch(text))


def wire_usage(recorded: object) -> dict[str, int] | None:
    """Take usage that is recorded in the wire's own names; see `usage_of`."""
    return usage_of(recorded, {name: name for name in _WIRE})


def whole_usage(recorded: object, names: Mapping[str, str]) -> dict[str, int] | None:
    """Translate usage whose input tokens include the cached ones; see `usage_of`."""
    usage = usage_of(recorded, names)
    if usage is not None:
        cached = usage.get("cache_read_input_tokens", 0)
        cached += usage.setdefault("cache_creation_input_tokens", 0)
        usage["input_tokens"] = max(usage["input_tokens"] - cached, 0)
    return usage


def usage_of(recorded: object, names: Mapping[str, str]) -> dict[str, int] | None:
    """Translate recorded usage; `names` maps the wire's names to the recorded ones.

    A missing or null part counts as 0. None for an object without input
    tokens: aborted replies are written with zeros only.
    """
    if not isinstance(recorded, dict):
        return None
    usage = {
        wire: value if isinstance(value := recorded.get(name), int) else 0
        for wire, name in names.items()
    }
    return usage if any(usage[wire] for wire in usage if wire != "output_tokens") else None
