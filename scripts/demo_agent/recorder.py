"""The session file: rows as Claude Code writes them, one a block."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO
from uuid import NAMESPACE_URL, uuid5

from demo_agent.tools import Block, Call, Result, Tools

MODEL = "claude-sonnet-4-5"
VERSION = "2.1.39"
START = datetime(2026, 4, 6, 9, 0, tzinfo=UTC)
BYTES_A_TOKEN = 3.6
IMAGE_TOKENS = 1600
FIXED_TOKENS = 3000  # system prompt and tools


def tokens(content: str | list[Block]) -> int:
    """Estimate the tokens of a message's content."""
    if isinstance(content, str):
        return int(len(content.encode()) / BYTES_A_TOKEN) + 4
    total = 0
    for block in content:
        if block["type"] == "image":
            total += IMAGE_TOKENS
        elif block["type"] == "tool_result":
            total += tokens(block["content"])
        else:
            total += int(len(json.dumps(block, ensure_ascii=False).encode()) / BYTES_A_TOKEN)
    return total + 4


class Session:
    """A conversation between a human and the scripted agent, written as it goes."""

    def __init__(self, out: TextIO, tools: Tools) -> None:
        """Record into `out`; calls are carried out by `tools`."""
        self.out = out
        self.tools = tools
        self.clock = START
        self.turn_began = START
        self.count = 0
        self.requests = 0
        self.parent: str | None = None
        self.held = FIXED_TOKENS  # tokens of the history so far
        self.cached = 0
        self.branch = "main"
        self.session = self.identifier("session")

    def identifier(self, kind: str) -> str:
        """Return the next id; the same in every recording."""
        self.count += 1
        return str(uuid5(NAMESPACE_URL, f"compactor-demo/{kind}/{self.count}"))

    def row(self, kind: str, **fields: Any) -> str:
        """Write a row of the conversation and make it the newest leaf."""
        uuid = self.identifier("row")
        row = {
            "parentUuid": self.parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/project",
            "sessionId": self.session,
            "version": VERSION,
            "gitBranch": self.branch,
            "type": kind,
            **fields,
            "uuid": uuid,
            "timestamp": self.now(),
        }
        self.emit(row)
        self.parent = uuid
        return uuid

    def emit(self, row: dict[str, Any]) -> None:
        """Write one line."""
        self.out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")

    def now(self) -> str:
        """Return the recorded time."""
        return self.clock.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def wait(self, seconds: float) -> None:
        """Let recorded time pass."""
        self.clock += timedelta(seconds=seconds)

    def human(self, text: str, image: Block | None = None) -> None:
        """Write what the human says, with an image if one was pasted."""
        self.wait(95)
        self.turn_began = self.clock
        snapshot = {"messageId": self.identifier("snapshot"), "trackedFileBackups": {}}
        self.emit(
            {
                "type": "file-history-snapshot",
                "messageId": snapshot["messageId"],
                "snapshot": {**snapshot, "timestamp": self.now()},
                "isSnapshotUpdate": False,
            }
        )
        content: str | list[Block] = text
        if image is not None:
            content = [{"type": "text", "text": text}, image]
        self.row("user", message={"role": "user", "content": content})
        self.held += tokens(content)

    def do(self, text: str, *calls: Call) -> list[Result]:
        """Write a reply with its calls, carry them out, and write a row for each result."""
        ids = [f"toolu_{self.identifier('call').replace('-', '')[:24]}" for _ in calls]
        blocks: list[Block] = [{"type": "text", "text": text}] if text else []
        blocks += [
            {"type": "tool_use", "id": call_id, "name": call.name, "input": call.input}
            for call_id, call in zip(ids, calls, strict=True)
        ]
        source = self.reply(blocks)
        results = []
        for call_id, call in zip(ids, calls, strict=True):
            result = self.tools.run(call)
            block: Block = {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": result.content,
                **({"is_error": True} if result.is_error else {}),
            }
            self.wait(1.2)
            self.row(
                "user",
                message={"role": "user", "content": [block]},
                toolUseResult=result.extra,
                sourceToolAssistantUUID=source,
            )
            self.held += tokens([block])
            results.append(result)
        return results

    def one(self, text: str, call: Call) -> Result:
        """Do a single call."""
        return self.do(text, call)[0]

    def say(self, text: str) -> None:
        """Write a reply without calls: the end of a turn."""
        self.reply([{"type": "text", "text": text}])
        took = int((self.clock - self.turn_began).total_seconds() * 1000)
        self.row("system", subtype="turn_duration", durationMs=took, isMeta=False)

    def reply(self, blocks: list[Block]) -> str:
        """Write the rows of one reply, one a block; the uuid of the last."""
        self.requests += 1
        written = tokens(blocks)
        self.wait(2 + written / 60)
        fresh = 4
        usage = {
            "input_tokens": fresh,
            "cache_creation_input_tokens": self.held - self.cached - fresh,
            "cache_read_input_tokens": self.cached,
            "output_tokens": written,
            "service_tier": "standard",
        }
        self.cached = self.held - fresh
        self.held += written
        message_id = f"msg_{self.identifier('message').replace('-', '')[:24]}"
        request_id = f"req_{self.identifier('request').replace('-', '')[:24]}"
        stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        uuid = ""
        for block in blocks:
            message = {
                "model": MODEL,
                "id": message_id,
                "type": "message",
                "role": "assistant",
                "content": [block],
                "stop_reason": stop if block is blocks[-1] else None,
                "stop_sequence": None,
                "usage": usage,
            }
            uuid = self.row("assistant", message=message, requestId=request_id)
        return uuid
