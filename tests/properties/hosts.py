"""What hosts do to a history between two requests, whatever it is made of."""

import json
from typing import Any

from hypothesis import HealthCheck, Phase, settings

Message = dict[str, Any]
History = list[Message]

# Shrinking takes minutes: add Phase.shrink to look into a failure.
GENERATED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
MARK = {"type": "ephemeral"}
_PLAIN_TEXT = {"type", "text"}
REMINDER = "<system-reminder>\nThe date is {}.\n</system-reminder>"


def ends(history: History) -> list[int]:
    """Return the lengths at which a request may be made."""
    last = len(history) - 1
    return [
        i + 1
        for i, message in enumerate(history)
        if message["role"] != "assistant" and (i == last or history[i + 1]["role"] == "assistant")
    ]


def rewind(history: History, back: int) -> None:
    """Take the newest exchanges back."""
    known = ends(history)
    del history[known[max(len(known) - 1 - back, 0)] :]


def shortened(history: History, count: int) -> History:
    """Leave out the oldest exchanges, but for the first message."""
    known = ends(history)
    return [history[0], *history[known[min(count, len(known) - 1)] :]]


def reloaded(history: History) -> History:
    """Return an equal history of new objects, as from a file."""
    loaded: History = json.loads(json.dumps(history))
    return loaded


def flip(history: History, position: int) -> None:
    """Write a lone text the other way, in a message or in a result."""
    position %= len(history)
    message = history[position]
    if not isinstance(message["content"], str):
        message = {**message, "content": [_flipped(block) for block in message["content"]]}
        history[position] = message
    content = message["content"]
    if content and (isinstance(content, str) or [b.keys() for b in content] == [_PLAIN_TEXT]):
        history[position] = _flipped(message)


def _flipped(holder: Message) -> Message:
    content = holder.get("content")
    if isinstance(content, str):
        return {**holder, "content": [{"type": "text", "text": content}]}
    if isinstance(content, list) and len(content) == 1:
        return {**holder, "content": content[0].get("text", content)}
    return holder


def remind(history: History, where: str, date: int) -> None:
    """Put a reminder in front, or into the first or the last message in the place of others."""
    block = {"type": "text", "text": REMINDER.format(date)}
    if where == "in front":
        history.insert(0, {"role": "user", "content": [block]})
        return
    position = 0 if where == "in the first" else len(history) - 1
    message = history[position]
    if message["role"] == "user":
        content = message["content"]
        held = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept = [b for b in held if "<system-reminder>" not in str(b.get("text"))]
        history[position] = {**message, "content": [*kept, block]}
