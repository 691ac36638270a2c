"""Lists of messages in Anthropic's form or in OpenAI's chat form.

A JSON list, an object with `messages` (a request body, a log of one, or a
program's own session file), a list or lines of such objects, or a message a
line. OpenAI's form is translated into Anthropic's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chain import mark_damage_after
from .chat import Chat
from .documents import outline, runs
from .lines import Reader
from .requests import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .documents import Field
    from .recording import Recording

NAMES = ("anthropic_messages", "openai_messages")

_ROLES = ("user", "assistant", "system", "developer", "tool", "function")
_CONTENT = ("content", "text", "tool_calls", "function_call", "refusal")
# All but the messages and the response say that the object is a request, sent as a whole.
_FIELDS = (
    *(("messages", "*"), ("response",), ("model",), ("max_tokens",)),
    *(("tools", "*", "name"), ("tools", "*", "type")),
)


def recognise(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these first rows are messages, or objects with a list of messages."""
    return any(
        isinstance(row.get("messages"), list)
        or (row.get("role") in _ROLES and not row.keys().isdisjoint(_CONTENT))
        for row in rows
    )


def load_lines(path: Path) -> Iterator[Recording]:
    """Yield the conversation of a file that has a message a line."""
    reader = Reader(path)
    chat = Chat(reader.warnings)
    for row in reader:
        chat.add(row.value, row.line)
    drafts = chat.drafts()
    mark_damage_after(drafts, reader.damaged)
    yield record(path, NAMES[chat.openai], drafts, reader.warnings)


def load(path: Path) -> Iterator[Recording]:
    """Yield each conversation of a JSON document, or of several in one file."""
    found = outline(path)
    whole = found is not None and any("messages" in row for row in found.rows)
    warnings: list[str] = []
    for part, run in enumerate(runs(path, _FIELDS if whole else [("*",)], warnings), 1):
        chat = Chat(warnings)
        about = _read(run, chat)
        drafts = chat.drafts()
        name, told = NAMES[chat.openai], list(warnings)
        yield record(path, name, drafts, told, unit="message", part=part, **about)
        warnings.clear()


def _read(run: Iterator[Field], chat: Chat) -> dict[str, Any]:
    """Put the messages into `chat`; return what `record` has to know besides."""
    model: str | None = None
    asked = False
    reply: Mapping[str, Any] | None = None
    for place, value in run:
        match place:
            case ("messages", _) | (int(),):
                chat.add(value)
            case ("response",):
                reply = _reply(value)
            case ("model",):
                model = value if isinstance(value, str) else None
                asked |= model is not None
            case _:
                asked |= value is not None
    if reply is not None:
        chat.add(reply)
    return {"model": model, "asked": asked}


def _reply(response: object) -> Mapping[str, Any] | None:
    """Return the message of a response that was logged with its request."""
    if not isinstance(response, dict):
        return None
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
    else:
        message = response
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return None
    return {"usage": response.get("usage"), "model": response.get("model"), **message}
