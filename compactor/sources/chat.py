"""Messages of chat programs, in Anthropic's form or in OpenAI's, as drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .content import call, content_of, result
from .draft import Block, Draft, blocks_of, joined
from .items import add_item, is_item
from .requests import whole_usage, wire_usage

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENAI = {
    "input_tokens": "prompt_tokens",
    "cache_read_input_tokens": "cached_tokens",
    "output_tokens": "completion_tokens",
}
_METRICS = {
    "input_tokens": "inputTokens",
    "cache_read_input_tokens": "cacheReadTokens",
    "cache_creation_input_tokens": "cacheWriteTokens",
    "output_tokens": "outputTokens",
}


@dataclass(slots=True)
class Chat:
    """One conversation; messages are put in as they are read.

    `openai` says that a message was in OpenAI's form.
    """

    warnings: list[str]
    openai: bool = False
    count: int = 0
    _drafts: list[Draft] = field(default_factory=list)
    _called: dict[str, str] = field(default_factory=dict)

    def add(self, value: object, line: int | None = None) -> None:
        """Take the next message; what is none is counted in the warnings.

        Instructions that stand before the conversation are left out, as the
        system prompt is no part of the messages; later ones stay, as messages
        that a program wrote.
        """
        self.count += 1
        line = self.count if line is None else line
        if not isinstance(value, dict):
            self.warnings.append(f"line {line}: not an object, left out")
            return
        role = value.get("role")
        if role is None and is_item(value):
            self.openai = True
            add_item(self._drafts, line, value)
        elif role == "assistant":
            self._drafts.append(self._assistant(line, value))
        elif role == "user":
            self._drafts.append(Draft("user", _content(value), line))
        elif role in ("tool", "function"):
            self.openai = True
            self._drafts.append(Draft("user", self._results(value), line, meta=True))
        elif role in ("system", "developer"):
            self.openai = True
            if self._drafts:
                self._drafts.append(Draft("user", _content(value), line, meta=True))
        elif value.get("type") != "reasoning":
            self.warnings.append(f"line {line}: not a message, left out")

    def drafts(self) -> list[Draft]:
        """Return the conversation, with results that follow each other in one message."""
        return joined(self._drafts)

    def _assistant(self, line: int, value: Mapping[str, Any]) -> Draft:
        content = _content(value)
        calls = [self._call(line, one) for one in _objects(value.get("tool_calls"))]
        if isinstance(value.get("function_call"), dict):
            calls.append(self._call(line, {"function": value["function_call"]}))
        if calls:
            self.openai = True
            content = [*blocks_of(content), *calls]
        elif not content and isinstance(value.get("refusal"), str):
            content = value["refusal"]
        return Draft("assistant", content, line, model=_model(value), usage=_usage(value))

    def _call(self, line: int, one: Mapping[str, Any]) -> Block:
        told = next((one[k] for k in ("function", "custom") if isinstance(one.get(k), dict)), one)
        tool = _first(told, "name", "tool_name")
        name = _first(one, "id", "action_id")
        if name is None and tool is not None:
            # The oldest form has no ids; the result names the function.
            name = self._called[str(tool)] = f"call_{line}"
        return call(name, tool, _first(told, "arguments", "arguments_json", "args", "input"))

    def _results(self, value: Mapping[str, Any]) -> list[Block]:
        told = [
            result(one.get("action_id"), one.get("output_preview"), error=one.get("is_error"))
            for one in _objects(value.get("tool_results"))
        ]
        if told:
            return told
        name = value.get("tool_call_id")
        if name is None:
            name = self._called.get(str(value.get("name")))
        many = value.get("tool_call_ids")
        if name is None and isinstance(many, list) and many:
            # One observation for all calls of a step.
            return [result(one, None if at else _content(value)) for at, one in enumerate(many)]
        return [result(name, _content(value))]


def _content(value: Mapping[str, Any]) -> Any:
    content = value.get("content")
    return content_of(value.get("text") if content is None else content)


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _first(value: Mapping[str, Any], *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _model(value: Mapping[str, Any]) -> str | None:
    told = value.get("modelInfo")
    name = value.get("model") or (told.get("id") if isinstance(told, dict) else None)
    return name if isinstance(name, str) else None


def _usage(value: Mapping[str, Any]) -> dict[str, int] | None:
    usage = value.get("usage")
    if isinstance(usage, dict) and "prompt_tokens" in usage:
        details = usage.get("prompt_tokens_details")
        return whole_usage({**(details if isinstance(details, dict) else {}), **usage}, _OPENAI)
    if usage is None and "metrics" in value:
        return whole_usage(value["metrics"], _METRICS)
    return wire_usage(usage)
