"""What a provider means by a refusal, whatever words it uses.

Structured signs count first: the status, types and codes. What they leave open is read from the
text, of which only the phrases that name the matter and the numbers beside them are looked at, so
that the same words serve all providers. The shapes come from the providers' own answers, quoted in
`tests/client/test_refusals.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import orjson

_SCANNED = 20_000  # characters of an answer
_DEEPEST, _MOST = 12, 500  # levels and values of it

_TOO_LARGE = 413
# Statuses that speak of something else, even where their text speaks of tokens.
_ELSEWHERE = frozenset({401, 402, 403, 404, 408, 409, 429, 503, 529})

# Types and codes. A 413 of Groq's is a rate limit.
_OTHER = frozenset({
    "authentication_error", "billing_error", "insufficient_quota", "not_found_error",
    "overloaded_error", "permission_error", "rate_limit_error", "rate_limit_exceeded",
    "resource_exhausted", "throttlingexception", "timeout_error",
})  # fmt: skip
_OVERFLOWS = frozenset({
    "context_length_exceeded", "context_window_exceeded", "contextwindowexceedederror",
    "exceed_context_size_error", "model_context_window_exceeded", "tokens_limit_reached",
})  # fmt: skip
_BYTES = frozenset({"request_too_large", "payload_too_large"})
_SIGNS = frozenset({"type", "code", "status", "__type", "reason", "error_type"})
_COUNTS = frozenset({"n_prompt_tokens", "n_ctx"})  # llama.cpp

_FULL = "model_context_window_exceeded"  # a stop reason: the answer filled the window
_PROMPT_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns).replace("#", r"(\d[\d,]{0,14})"), re.IGNORECASE)


_OTHER_TEXT = _any_of(r"rate[ _]?limit", "tokens per minute", "overloaded", "throttl")
_BOUND_TEXT = _any_of("bound to a different conversation", "prefix_binding_mismatch")
_BYTES_TEXT = _any_of(
    r"request_too_large",
    r"request (?:entity |body )?too large",
    r"exceeds the maximum (?:allowed )?(?:size|number of bytes)",
    r"maximum request body size",
    r"too many total text bytes",
)
_OVERFLOW_TEXT = _any_of(
    r"prompt (?:\([^)]{0,40}\) )?(?:is )?too long",
    r"input is too long",
    r"context[ _]?(?:length|window)[ _]?exceeded",
    r"exceeds? (?:the )?(?:available |model )?context (?:size|window|length|limit)",
    r"(?:maximum|larger? than the|greater than the) (?:context|prompt|model) length",
    r"context length is only",
    r"input token count[^.]{0,40} exceeds",
    r"token count of # exceeds",
    r"exceed the configured limit of",
    r"too large for model with",
    r"exceeded model token limit",
    r"inputs` tokens \+ `max_new_tokens` must be",
)
_LIMIT = _any_of(
    r"> #",
    r"context (?:length|window|size)(?: is| of)?(?: only)? \(?#",
    r"maximum (?:prompt|model) length (?:is|of) #",
    r"tokens allowed \(#",
    r"limit of #",
    r"token limit:? #",
    r"with # maximum context",
    r"max size: # tokens",
    r"must be <= #",
)
_MEASURED = _any_of(
    r"too long: #",
    r"limit: # \+",
    r"resulted in #",
    r"request (?:has|contains) #",
    r"prompt contains #",
    r"count(?: of)? \(?#",
    r"prompt length of #",
    r"(?:prompt|request|tokens) \((?:(?:total )?length )?#",
    r"passed # input",
    r"requested: #",
    r"given: #",
)
# Some count by parts: you requested 8977 tokens (54 in the messages, 8923 in the completion).
_PARTS = _any_of(r"# (?:in|of|for) (?:the |your )?(\w+)(?: input)?[,;)]")
_ANSWER = frozenset({"completion", "output"})


class RefusalKind(StrEnum):
    """What a refused request has too much of.

    Of MAX_TOKENS the prompt fits, and the prompt with `max_tokens` does not.
    """

    OVERFLOW = "overflow"
    TOO_MANY_BYTES = "too many bytes"
    BOUND_THINKING = "bound thinking"
    MAX_TOKENS = "max_tokens"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusal says.

    `measured`: tokens of the prompt by the provider's count; `limit`: tokens that its model takes;
    `max_tokens`: what is left for the answer.
    """

    kind: RefusalKind
    measured: int | None = None
    limit: int | None = None
    max_tokens: int | None = None


@dataclass(slots=True)
class _Said:
    """What an answer says: its types and codes, its counts, and all its other text."""

    signs: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


def classify(status: int | None, body: object) -> Refusal:
    """Say what a provider's answer means.

    Args:
        status: the HTTP status; None where it is not known.
        body: the answer: a dictionary, JSON as text or bytes, or an object of an SDK's.

    """
    content = _content(body)
    if isinstance(content, Mapping):
        if content.get("stop_reason") == _FULL:
            return _full(content)
        if status is None or status < 400:  # noqa: PLR2004 - a success; a reply's text is no sign
            content = _error_of(content, fails=status is None)
    if status in _ELSEWHERE or content is None:
        return Refusal(RefusalKind.NONE)
    said = _Said()
    for key, value in _values(content):
        _note(said, key, value)
    return _judged(status, said)


def refusal_of(error_or_reply: object) -> Refusal:
    """Say what an exception of a provider's SDK means, or a reply that stopped too early."""
    names = ("status_code", "status", "code")
    found = (getattr(error_or_reply, name, None) for name in names)
    status = next((each for each in found if isinstance(each, int)), None)
    return classify(status, error_or_reply)


def _judged(status: int | None, said: _Said) -> Refusal:
    signs, text = said.signs, " ".join(said.texts)[:_SCANNED]
    if signs & _OTHER or signs & {str(each) for each in _ELSEWHERE}:
        kind = RefusalKind.NONE
    elif signs & _OVERFLOWS:
        kind = RefusalKind.OVERFLOW
    elif _BOUND_TEXT.search(text):
        kind = RefusalKind.BOUND_THINKING
    elif _OTHER_TEXT.search(text):
        kind = RefusalKind.NONE
    elif _OVERFLOW_TEXT.search(text):  # before the status: Vertex sends a 413 with it
        kind = RefusalKind.OVERFLOW
    elif signs & _BYTES or status == _TOO_LARGE or _BYTES_TEXT.search(text):
        kind = RefusalKind.TOO_MANY_BYTES
    else:
        kind = RefusalKind.NONE
    return _counted(said, text) if kind is RefusalKind.OVERFLOW else Refusal(kind)


def _counted(said: _Said, text: str) -> Refusal:
    """Find the numbers of an overflow; if the prompt alone would fit, the answer does not."""
    measured = said.counts.get("n_prompt_tokens") or _prompt_part(text) or _number(_MEASURED, text)
    limit = said.counts.get("n_ctx") or _number(_LIMIT, text)
    if measured is not None and limit is not None and measured < limit:
        return Refusal(RefusalKind.MAX_TOKENS, measured, limit, limit - measured)
    return Refusal(RefusalKind.OVERFLOW, measured, limit)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _integer(next(filter(None, found.groups()))) if found else None


def _prompt_part(text: str) -> int | None:
    """Add up what a text counts of the prompt, where it counts by parts."""
    parts = _PARTS.findall(text)
    return sum(_integer(count) for count, of in parts if of.lower() not in _ANSWER) or None


def _integer(digits: str) -> int:
    return int(digits.replace(",", ""))


def _full(reply: Mapping[str, Any]) -> Refusal:
    """Read the window from a reply that filled it."""
    usage = reply.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    prompt = sum(filter(None, map(usage.get, _PROMPT_USAGE)))
    if not prompt:
        return Refusal(RefusalKind.OVERFLOW)
    return Refusal(RefusalKind.OVERFLOW, prompt, prompt + (usage.get("output_tokens") or 0))


def _content(body: object) -> Any:
    """Return an answer as JSON or text; of an exception what it carries, else what it says."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body[: 4 * _SCANNED]).decode(errors="replace")
    if isinstance(body, str):
        return _json(body)
    if body is None or isinstance(body, Mapping | list):
        return body
    if isinstance(body, BaseException):
        held = (getattr(body, name, None) for name in ("body", "response"))  # ours, and boto's
        found = next((each for each in held if isinstance(each, Mapping | list | str)), None)
        return [type(body).__name__, str(body)] if found is None else _content(found)
    own = getattr(body, "to_dict", None) or getattr(body, "model_dump", None)
    return own() if callable(own) else str(body)


def _json(text: str) -> Any:
    """Return the JSON in a text, or its start."""
    if len(text) <= _SCANNED and text.lstrip()[:1] in {"{", "["}:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return text[:_SCANNED]


def _error_of(reply: Mapping[str, Any], *, fails: bool) -> Any:
    """Return the error in what came with a success, as gateways and streams do; None without one.

    `fails`: it is not known to be a success, and is one only by its look.
    """
    inner = reply.get("response")
    found = reply.get("error") or (inner.get("error") if isinstance(inner, Mapping) else None)
    if found is None and fails and not reply.keys() & {"content", "choices", "usage", "output"}:
        return reply
    return found


def _values(content: Any) -> Iterator[tuple[str, Any]]:
    """Go through the values of JSON with their keys, also of JSON in a string."""
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    for _ in range(_MOST):
        if not waiting:
            return
        key, value, depth = waiting.pop()
        if isinstance(value, str):
            value = _json(value)
        if isinstance(value, Mapping | list):
            if depth < _DEEPEST:
                items = value.items() if isinstance(value, Mapping) else ((key, v) for v in value)
                waiting += [(str(k), v, depth + 1) for k, v in islice(items, _MOST)][::-1]
        else:
            yield key, value


def _note(said: _Said, key: str, value: Any) -> None:
    name = key.lower()
    if name in _COUNTS and isinstance(value, int):
        said.counts[name] = value
    elif name in _SIGNS and isinstance(value, str | int):
        said.signs.add(str(value)[:_SCANNED].lower())
    elif isinstance(value, str):
        said.texts.append(value[:_SCANNED])
