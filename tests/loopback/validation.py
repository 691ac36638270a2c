"""Refuses what the provider refuses, in its words where they are known.

Every refusal is a 400 `invalid_request_error`. The texts come from public
reports of them; where the provider changed its mind over time the stricter
rule holds (an empty assistant message in the middle, a first message that is
not the user's). What it was seen to take is taken: text of white space beside
other blocks, empty results.
"""

import re
from collections.abc import Collection, Iterator

from .blocks import check_block, images
from .prompts import ttl
from .shapes import THINKING, Json, Refused, Rules, blocks_of, refuse
from .thinking import CONTROLS

CLEARING = "context-management-2025-06-27"
SYSTEM_ROLE = "mid-conversation-system-2026-04-07"
_MARKS = 4
_BUDGET = 1_024
_TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
_ARGUMENTS = {
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "fallbacks",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "model",
    "output_config",
    "output_format",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
}


def check_request(request: Json, rules: Rules, betas: Collection[str], *, counting: bool) -> None:
    """Check a body of `/v1/messages`, or of `count_tokens` (which has no `max_tokens`).

    Raises:
        Refused: with the first fault found.

    """
    _check_arguments(request, betas, counting=counting)
    _check_tools(request.get("tools") or [])
    _check_system(request.get("system"))
    messages = request["messages"]
    for at, message in enumerate(messages):
        _check_message(message, at)
    _check_roles(messages, allowed=rules.system_role or SYSTEM_ROLE in betas)
    _check_text(messages, rules)
    _check_last(messages[-1], rules)
    check_pairs(messages)
    _check_marks(request)
    _check_images(messages, rules)
    _check_thinking(request, betas)
    if not counting and request["max_tokens"] > rules.max_output:
        refuse(
            f"max_tokens: {request['max_tokens']} > {rules.max_output}, which is the maximum "
            f"allowed number of output tokens for {request['model']}"
        )


def check_pairs(messages: list[Json]) -> None:
    """Check that each call has its result, first in the next user turn, and nothing else has."""
    open_calls: list[str] = []
    ids: set[str] = set()
    asked = 0
    for role, blocks in _turns(messages):
        if role == "assistant":
            for i, j, block in blocks:
                if block["type"] != "tool_use":
                    continue
                if block["id"] in ids:
                    refuse(f"messages.{i}.content.{j}: `tool_use` ids must be unique")
                ids.add(block["id"])
                open_calls.append(block["id"])
                asked = i
        elif role == "user":
            _check_answers(blocks, open_calls, asked)
            open_calls = []
    if open_calls:
        raise _unanswered(asked, open_calls)


def _check_answers(blocks: list[tuple[int, int, Json]], calls: list[str], asked: int) -> None:
    first: list[str] = []
    leading = True
    for i, j, block in blocks:
        leading = leading and block["type"] == "tool_result"
        if block["type"] != "tool_result":
            continue
        path, name = f"messages.{i}.content.{j}", block["tool_use_id"]
        if name not in calls:
            refuse(
                f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message."
            )
        if name in first:
            refuse(
                f"{path}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {name}"
            )
        if leading:
            first.append(name)
    missing = [name for name in calls if name not in first]
    if missing:
        raise _unanswered(asked, missing)


def _unanswered(at: int, names: list[str]) -> Refused:
    return Refused(
        f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(names)}. Each `tool_use` block must have a corresponding `tool_result` block "
        "in the next message."
    )


def _turns(messages: list[Json]) -> Iterator[tuple[str, list[tuple[int, int, Json]]]]:
    """Merge neighbours of one role, as the provider does."""
    role = ""
    blocks: list[tuple[int, int, Json]] = []
    for i, message in enumerate(messages):
        if message["role"] != role:
            if blocks:
                yield role, blocks
            role, blocks = message["role"], []
        blocks += [(i, j, block) for j, block in enumerate(blocks_of(message))]
    if blocks:
        yield role, blocks


def _check_arguments(request: Json, betas: Collection[str], *, counting: bool) -> None:
    for name in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if request.get(name) is None:
            refuse(f"{name}: Field required")
    allowed = _ARGUMENTS if CLEARING in betas else _ARGUMENTS - {"context_management"}
    for name in sorted(request.keys() - allowed):
        refuse(f"{name}: Extra inputs are not permitted")
    if not counting and (not isinstance(request["max_tokens"], int) or request["max_tokens"] < 1):
        refuse("max_tokens: Input should be greater than or equal to 1")
    if not isinstance(request["messages"], list):
        refuse("messages: Input should be a valid list")
    if not request["messages"]:
        refuse("messages: at least one message is required")


def _check_tools(tools: list[Json]) -> None:
    names = [str(tool.get("name")) for tool in tools]
    for at, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            continue
        if not _TOOL_NAME.match(names[at]):
            pattern = _TOOL_NAME.pattern
            refuse(f"tools.{at}.custom.name: String should match pattern '{pattern}'")
        if not isinstance(tool.get("input_schema"), dict):
            refuse(f"tools.{at}.custom.input_schema: Field required")
    if len(set(names)) < len(names):
        refuse("tools: Tool names must be unique.")


def _check_system(system: object) -> None:
    if isinstance(system, list):
        for at, block in enumerate(system):
            check_block(block, f"system.{at}", "system")
            if block["type"] != "text":
                refuse(f"system.{at}.type: Input should be 'text'")
            if not block["text"]:
                refuse("system: text content blocks must be non-empty")
    elif isinstance(system, str) and system and not system.strip():
        refuse("system: text content blocks must contain non-whitespace text")


def _check_message(message: object, at: int) -> None:
    path = f"messages.{at}"
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        refuse(f"{path}.role: Input should be 'user' or 'assistant'")
    for name in sorted(message.keys() - {"role", "content"}):
        refuse(f"{path}.{name}: Extra inputs are not permitted")
    if not isinstance(message.get("content"), str | list):
        refuse(f"{path}.content: Input should be a valid string or list")
    for number, block in enumerate(blocks_of(message)):
        check_block(block, f"{path}.content.{number}", message["role"])


def _check_roles(messages: list[Json], *, allowed: bool) -> None:
    if messages[0]["role"] == "assistant":
        refuse('messages: first message must use the "user" role')
    roles = [str(message["role"]) for message in messages]
    for at, role in enumerate(roles):
        if role != "system":
            continue
        if not allowed:
            refuse(f"messages.{at}: role 'system' is not supported on this model")
        if at == 0 or roles[at - 1] != "user":
            refuse(f"messages.{at}: role 'system' must follow a 'user' message")
        if roles[at + 1 : at + 2] not in ([], ["assistant"]):
            refuse(
                f"messages.{at}: role 'system' must precede an 'assistant' message or end the array"
            )


def _check_text(messages: list[Json], rules: Rules) -> None:
    for at, message in enumerate(messages):
        blocks = blocks_of(message)
        last = at == len(messages) - 1 and message["role"] == "assistant"
        if not blocks and not last:
            refuse(
                f"messages.{at}: all messages must have non-empty content except for the optional "
                "final assistant message"
            )
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if not all(texts):
            refuse("messages: text content blocks must be non-empty")
        said = [bool(text.strip()) for text in texts]
        beside = message["role"] == "assistant" and len(texts) < len(blocks)
        if not (all(said) if rules.whole_blocks else any(said) or not said or beside):
            refuse("messages: text content blocks must contain non-whitespace text")


def _check_last(message: Json, rules: Rules) -> None:
    if message["role"] != "assistant":
        return
    if not rules.prefill:
        refuse(
            "This model does not support assistant message prefill. The conversation must end with "
            "a user message."
        )
    blocks = blocks_of(message)
    if (
        blocks
        and blocks[-1]["type"] == "text"
        and blocks[-1]["text"] != blocks[-1]["text"].rstrip()
    ):
        refuse("messages: final assistant content cannot end with trailing whitespace")


def _check_marks(request: Json) -> None:
    marks = [ttl(request)] if ttl(request) else []
    ordered: list[str] = []
    holders = [*(request.get("tools") or ()), *blocks_of({"content": request.get("system")})]
    for message in request["messages"]:
        for block in blocks_of(message):
            holders.append(block)
            if block["type"] == "tool_result":
                holders += blocks_of(block)
    for holder in holders:
        if mark := ttl(holder):
            if mark == "1h" and "5m" in ordered:
                refuse(
                    "cache_control.ttl: a ttl='1h' cache_control block must not come after a "
                    "ttl='5m' cache_control block. Note that blocks are processed in the following "
                    "order: `tools`, `system`, `messages`."
                )
            if mark not in ("5m", "1h"):
                refuse("cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
            ordered.append(mark)
    found = len(marks) + len(ordered)
    if found > _MARKS:
        refuse(f"A maximum of {_MARKS} blocks with cache_control may be provided. Found {found}.")


def _check_images(messages: list[Json], rules: Rules) -> None:
    found = sum(1 for message in messages for _ in images(message))
    if found > rules.max_images:
        refuse(f"messages: too many images and documents: {found} + 0 > {rules.max_images}")


def _check_thinking(request: Json, betas: Collection[str]) -> None:
    thinking = request.get("thinking") or {}
    if "block_binding" in thinking and CONTROLS not in betas:
        kind = thinking.get("type")
        refuse(
            f"thinking.{kind}.block_binding: Extra inputs are not permitted without the "
            f"`{CONTROLS}` beta header"
        )
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < _BUDGET:
        refuse(
            f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_BUDGET}"
        )
    if "max_tokens" in request and request["max_tokens"] <= budget:
        refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")
    _check_start(request["messages"])


def _check_start(messages: list[Json]) -> None:
    """With manual thinking the message whose calls are being answered must begin with thinking."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    blocks = blocks_of(messages[last]) if last >= 0 else []
    if not any(block["type"] == "tool_use" for block in blocks) or blocks[0]["type"] in THINKING:
        return
    refuse(
        f"messages.{last}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must "
        "start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` "
        "blocks). We recommend you include thinking blocks from previous turns. To avoid this "
        "requirement, disable `thinking`."
    )
