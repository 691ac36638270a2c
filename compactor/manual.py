"""Compaction that the model asks for: the tool, its gate, and the answer to its call."""

from collections.abc import Mapping
from typing import Any

from . import notes
from .errors import BadMessage
from .messages import JsonObject, plain
from .stages import Manual

DEFINITION: JsonObject = {
    "name": notes.COMPACT_TOOL,
    "description": (
        "Make room in the context: before your next turn earlier messages become a short summary. "
        "The user's request, what you have done and your checkpoint stay; everything else stays "
        "readable under its handle. Use it at a natural boundary, when much of the context is no "
        "longer needed."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "checkpoint": {
                "type": "string",
                "description": (
                    "What must not be lost: decisions taken and why, what was changed and whether "
                    "it was verified, what comes next."
                ),
            },
            "focus": {
                "type": "string",
                "description": "What the summary should look at most closely.",
            },
        },
        "required": ["checkpoint"],
    },
}


def owns(call: object) -> bool:
    """Tell whether a tool call, an SDK object or its dictionary, is the engine's to answer."""
    made = plain(call, "call")
    return isinstance(made, dict) and made.get("name") == notes.COMPACT_TOOL


def arguments(call: object) -> tuple[str, Mapping[str, Any]]:
    """Return the identifier and the arguments of a call.

    Raises:
        BadMessage: where it is none of the engine's.

    """
    made = plain(call, "call")
    if not owns(made):
        message = "run: a call of another tool"
        raise BadMessage(message, hint="Ask Compactor.owns(call) first.")
    given = made.get("input")
    return str(made.get("id")), given if isinstance(given, dict) else {}


def granted(given: Mapping[str, Any], effects: int, gate: str) -> tuple[Manual | None, str]:
    """Return what was asked for, None where the gate refuses, and what the model is told.

    `effects` counts the calls since the last compaction that may have changed something.
    """
    checkpoint, focus = given.get("checkpoint"), given.get("focus")
    written = isinstance(checkpoint, str) and bool(checkpoint.strip())
    if gate == "checkpoint" and effects and not written:
        calls = "1 call has" if effects == 1 else f"{effects} calls have"
        return None, (
            f"Not compacted: {calls} changed something since the last compaction. Call this tool "
            'again with checkpoint="…": what was decided and why, what was changed and whether it '
            "was verified, what comes next."
        )
    asked = Manual(focus if isinstance(focus, str) and focus.strip() else None)
    return asked, (
        "Compaction is asked for: it takes place before your next turn, if there is anything to "
        "leave out. Go on with the task."
    )


def result(call_id: str, text: str, *, failed: bool) -> JsonObject:
    """Return the block that answers a call."""
    block: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return {**block, "is_error": True} if failed else block
