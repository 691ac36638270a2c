"""What an importer yields: the messages, and where the requests were made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class RequestPoint:
    """One request of the recorded program; it was made with `messages[:length]`.

    The reply is `messages[length]`, or was not recorded, if nothing follows.
    `usage` holds `input_tokens`, `cache_read_input_tokens`,
    `cache_creation_input_tokens` and `output_tokens` as the provider reported
    them. It is None where nothing was recorded and where the program sent
    something else than this history (after a compaction, after a gap).
    `human` is the index of the message with the human's current request.
    """

    length: int
    model: str | None
    usage: Mapping[str, int] | None
    human: int | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded session as one full history in Anthropic wire form.

    The history is legal for the Messages API: it starts with a user message
    and each call is answered directly after it, except calls of the very last
    message. `messages` is plain JSON. `warnings` name lines, never content.
    `part` says which conversation of the file this is, from 1.
    """

    path: Path
    format: str
    messages: list[dict[str, Any]]
    requests: list[RequestPoint]
    warnings: list[str]
    part: int = 1
