"""Who counts tokens better than the estimate: the provider itself, or a tokenizer on this machine.

A counter is asked rarely (where there is no anchor and a decision hangs on it), since one costs a
request to the provider and the other a second for 100,000 characters. What a counter cannot tell
is None, and the estimate stands.
"""

import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol

from .messages import JsonObject, canonical
from .models import density_of
from .tokens import TOKENS_A_BLOCK, estimate_document, estimate_image

_LOG = logging.getLogger("compactor")

# What the endpoint takes of a request; max_tokens, stream and the like are not for it.
# https://platform.claude.com/docs/en/api/messages/count_tokens
_COUNTED = frozenset(
    {"cache_control", "model", "output_config", "system", "thinking", "tool_choice", "tools"}
)
_BETA_COUNTED = frozenset({"betas", "context_management", "mcp_servers"})
_SENT = frozenset({"extra_headers", "timeout"})


class TokenCounter(Protocol):
    """Counts the tokens of a prompt."""

    def count(self, messages: list[Any], **request: Any) -> int | None:
        """Return the tokens of a whole prompt; None where they cannot be told.

        Args:
            messages: as `messages.create` takes them.
            request: its other arguments; those that do not count are left aside.

        """
        ...


class SdkCounter:
    """Ask the provider, through the SDK's `messages.count_tokens`.

    Args:
        client: an `anthropic.Anthropic`; None makes one at the first count.

    """

    def __init__(self, client: Any = None) -> None:
        """Keep the client; nothing is imported or sent yet."""
        self._client = client

    def count(self, messages: list[Any], **request: Any) -> int | None:
        """Return what the provider counts; None where it refuses or cannot be reached."""
        beta = "betas" in request
        taken = _COUNTED | _SENT | (_BETA_COUNTED if beta else frozenset())
        given = {name: value for name, value in request.items() if name in taken}
        try:
            if self._client is None:
                self._client = import_module("anthropic").Anthropic()
            resource = self._client.beta.messages if beta else self._client.messages
            counted = resource.count_tokens(messages=messages, **given).input_tokens
        except Exception as error:  # noqa: BLE001 - whatever it is, the estimate stands
            _LOG.warning("counting tokens: %s", type(error).__name__)
            return None
        return counted if isinstance(counted, int) else None


class OfflineCounter:
    """Count with `ctok`, an unofficial reconstruction of Claude's tokenizers (extra `tokens`).

    It needs Python 3.12 and takes up to a second for 100,000 characters. Text is counted by it,
    images and documents are estimated, and the frame of each block counts as in the estimate.
    Source: the documentation of ctok 1.3 (families 3.0, and 4.7 for Claude 4.7 and later).
    """

    def __init__(self) -> None:
        """Nothing is imported yet."""
        self._count: Callable[[str, str], int] | None = None

    def count(self, messages: list[Any], **request: Any) -> int | None:
        """Return the tokens of messages, system prompt and tools; None without the package."""
        try:
            self._count = self._count or import_module("ctok").token_count
        except ImportError:
            _LOG.warning("counting tokens: install transcript-compactor[tokens]")
            return None
        version = "4.7" if density_of(str(request.get("model") or "")) > 1 else "3.0"
        frame = self._count("a", version) - 1
        parts = [*messages, request.get("system"), request.get("tools")]
        total = 0
        for part in (found for given in parts if given for found in _parts(given)):
            known = part if isinstance(part, int) else self._count(part, version) - frame
            total += known + TOKENS_A_BLOCK
        return total


def _parts(value: Any) -> Iterator[str | int]:
    """Go through the texts of a message, a system prompt or tools, and the tokens of media."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield from _block_parts(value)


def _block_parts(block: JsonObject) -> Iterator[str | int]:
    kind = block.get("type")
    if kind == "image":
        yield estimate_image()
    elif kind == "document":
        yield estimate_document(len(str((block.get("source") or {}).get("data") or "")))
    elif kind == "tool_use":
        yield canonical(block.get("input")).decode("utf-8", "surrogatepass")
    elif "content" in block:
        yield from _parts(block["content"])
    elif isinstance(text := block.get("text") or block.get("thinking"), str):
        yield text
    else:
        yield canonical(block).decode("utf-8", "surrogatepass")
