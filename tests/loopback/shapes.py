"""What all modules of the loopback share: JSON, the provider's limits, and its refusals."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import orjson

Json = dict[str, Any]

THINKING = ("thinking", "redacted_thinking")

# The `error.type` that goes with a status, and what it says when nobody said more.
KINDS = {
    400: ("invalid_request_error", "Bad request"),
    401: ("authentication_error", "x-api-key header is required"),
    403: ("permission_error", "Forbidden"),
    404: ("not_found_error", "Not Found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit"),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits and habits of the provider that a test chooses.

    Tokens and bytes. `windows` gives the window of single models.
    `overflow` says what happens when the prompt fits and prompt plus
    `max_tokens` does not: "refuse" (400, from Claude 3.7 on) or "stop"
    (accepted; stop reason `model_context_window_exceeded`).
    `bind_thinking` refuses a thinking block after an edited prefix, as models
    with "preserved thinking" do; `system_role` allows system messages in the
    conversation without the beta header; `prefill` allows a last assistant
    message. `whole_blocks` refuses a text block of nothing but white space
    even where the message says more; the provider has been seen to take it.
    """

    window: int = 200_000
    windows: Mapping[str, int] = field(default_factory=dict)
    max_output: int = 128_000
    max_body: int = 32 * 2**20
    max_images: int = 100
    min_cached: int = 1_024
    lookback: int = 20
    overflow: Literal["refuse", "stop"] = "refuse"
    bind_thinking: bool = False
    system_role: bool = False
    prefill: bool = True
    whole_blocks: bool = False

    def window_of(self, model: str) -> int:
        return self.windows.get(model, self.window)


class Refused(Exception):
    """The provider's answer is an error."""

    def __init__(
        self,
        message: str = "",
        *,
        status: int = 400,
        kind: str = "",
        details: Json | None = None,
    ) -> None:
        usual, text = KINDS.get(status, ("api_error", "Error"))
        self.status = status
        self.kind = kind or usual
        self.message = message or text
        self.details = details
        super().__init__(self.message)


def refuse(message: str) -> NoReturn:
    """Refuse a request as invalid."""
    raise Refused(message)


def error_body(refused: Refused, request_id: str) -> Json:
    """Return the body of a refusal; 413 comes from in front of the API and is barer."""
    error: Json = {"type": refused.kind, "message": refused.message}
    if refused.details is not None:
        error["details"] = refused.details
    if refused.kind == "request_too_large":
        return {"error": error}
    return {"type": "error", "error": error, "request_id": request_id}


def canonical(value: object) -> bytes:
    """Return the bytes that two equal values share; cache marks and nulls do not count."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if b'"cache_control"' not in raw and b":null" not in raw:
        return raw
    return orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        kept = value.items()
        return {k: _plain(v) for k, v in kept if v is not None and k != "cache_control"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def blocks_of(message: Json) -> list[Json]:
    """Return the content of a message as blocks; a string is one text block, an empty one none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []
