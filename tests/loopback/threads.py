"""Message threads: the server keeps a conversation, and a request sends only what is new.

The SDK's `tool_runner` uses them unless it is told `thread=False`.
https://platform.claude.com/docs/en/build-with-claude/message-threads
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .shapes import Json, Refused, blocks_of, refuse

THREADS = "message-threads-2026-08-12"
_SECONDS = 300.0
_KEPT = ("system", "tools")


@dataclass
class Threads:
    """Conversations by the id of their last reply, each until its time is over."""

    now: Callable[[], float]
    _held: dict[str, tuple[float, Json]] = field(default_factory=dict)

    def whole(self, request: Json) -> Json:
        """Return a request with the messages, system prompt and tools that its thread holds.

        Raises:
            Refused: where the thread is not there (any more), with the
                details by which the SDK knows that it must send all of it.

        """
        thread = request.get("thread")
        if thread is None:
            return request
        request = {name: value for name, value in request.items() if name != "thread"}
        if thread["type"] == "create":
            return request
        for name in _KEPT:
            if name in request:
                refuse(f"{name}: Extra inputs are not permitted when a thread is continued")
        until, held = self._held.pop(str(thread.get("previous_message_id")), (0.0, {}))
        if until <= self.now():
            raise Refused(status=404, details={"error_code": "thread_not_found"})
        return {**request, **held, "messages": [*held["messages"], *request["messages"]]}

    def keep(self, asked: Json, whole: Json, reply: Json) -> None:
        """Hold the conversation of a request that asked for a thread."""
        if asked.get("thread") is None:
            return
        answer = {"role": "assistant", "content": reply["content"]}
        messages = [*map(_unmarked, whole["messages"]), answer]
        held = {name: whole[name] for name in _KEPT if name in whole}
        self._held[reply["id"]] = (self.now() + _SECONDS, {**held, "messages": messages})


def _unmarked(message: Json) -> Json:
    """Return a message without cache marks: they were for the request that sent it first."""
    blocks = blocks_of(message)
    bare = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
    return {**message, "content": bare}
