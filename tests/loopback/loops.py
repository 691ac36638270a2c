"""A plain agent loop over the real SDK, with tools whose side effects are counted.

The loop is what a user of the SDK writes: it appends the reply, runs the
tools, appends their results, and goes on until the model stops calling. It
takes any client, so a compacting one can stand in for the plain one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient
from anthropic.types import Message

from .shapes import Json

Handler = Callable[[Any], Any]
Prompt = str | list[Any]

MODEL = "claude-sonnet-5-5"
_TEXT = {"type": "string"}
_ARGUMENTS = {
    "read_file": ("path",),
    "run": ("command",),
    "edit": ("path", "old", "new"),
}


def plain_client(url: str, *, retries: int = 0, timeout: float = 10) -> Anthropic:
    """Return a client of the loopback; close it. A TLS context would take a tenth of a second."""
    http = DefaultHttpxClient(verify=False, timeout=timeout)
    return Anthropic(base_url=url, api_key="test", max_retries=retries, http_client=http)


def async_client(url: str, *, retries: int = 0, timeout: float = 10) -> AsyncAnthropic:
    """Return an asynchronous client of the loopback; close it."""
    http = DefaultAsyncHttpxClient(verify=False, timeout=timeout)
    return AsyncAnthropic(base_url=url, api_key="test", max_retries=retries, http_client=http)


def definition(name: str, *arguments: str) -> Json:
    """Return the definition of a tool whose arguments are all strings."""
    properties = dict.fromkeys(arguments, _TEXT)
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": f"The tool {name}.", "input_schema": schema}


@dataclass
class Workbench:
    """The tools `read_file`, `run` and `edit`, executed here.

    `ran` counts the executions of each call by tool and arguments; `edits`
    are the side effects in their order. Results are deterministic, between a
    fifth of `size` and `size` characters; those of `edit` are one line.
    `more` are definitions of other tools, which `other` answers.
    """

    size: int = 3_000
    more: Sequence[Any] = ()
    other: Handler | None = None
    ran: Counter[tuple[str, ...]] = field(default_factory=Counter)
    edits: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def tools(self) -> list[Any]:
        own = [definition(name, *arguments) for name, arguments in _ARGUMENTS.items()]
        return [*own, *self.more]

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        key = (name, *(str(arguments[part]) for part in _ARGUMENTS[name]))
        self.ran[key] += 1
        if name == "edit":
            self.edits.append(key[1:])
            return f"edited {key[1]}"
        return _output(" ".join(key), self.size)

    def answer(self, call: Any) -> Any:
        """Return the result block of a call."""
        if call.name not in _ARGUMENTS and self.other is not None:
            return self.other(call)
        content = self.run(call.name, call.input)
        return {"type": "tool_result", "tool_use_id": call.id, "content": content}


@dataclass
class Run:
    """What a loop has said and heard; `messages` is the caller's own list."""

    messages: list[Any]
    bench: Workbench
    replies: list[Message] = field(default_factory=list)
    going: bool = True

    def arguments(self, request: Json) -> Json:
        """Return the arguments of the next request."""
        usual = {"model": MODEL, "max_tokens": 1_024, "tools": self.bench.tools}
        return {**usual, **request, "messages": self.messages}

    def take(self, reply: Message) -> None:
        """Append a reply and the results of its calls; the run is over where it called nothing."""
        self.replies.append(reply)
        self.messages.append({"role": "assistant", "content": reply.content})
        uses = [block for block in reply.content if block.type == "tool_use"]
        if uses:
            results = [self.bench.answer(use) for use in uses]
            self.messages.append({"role": "user", "content": results})
        self.going = bool(uses)


def agent_loop(
    client: Anthropic, prompt: Prompt, bench: Workbench, *, stream: bool = False, **request: Any
) -> Run:
    """Run an agent to the end of its turn.

    `prompt` is the human's text, or a history to go on with. `request` goes
    to `messages.create`; `model`, `max_tokens` and `tools` have defaults.
    """
    run = _started(prompt, bench)
    for _ in agent_steps(client, run, stream=stream, **request):
        pass
    return run


def agent_steps(
    client: Anthropic, run: Run, *, stream: bool = False, **request: Any
) -> Iterator[Run]:
    """Give the run after each reply and its results, so that a test can look in between."""
    while run.going:
        arguments = run.arguments(request)
        if stream:
            with client.messages.stream(**arguments) as events:
                reply: Message = events.get_final_message()
        else:
            reply = client.messages.create(**arguments)
        run.take(reply)
        yield run


async def agent_loop_async(
    client: AsyncAnthropic,
    prompt: Prompt,
    bench: Workbench,
    *,
    stream: bool = False,
    **request: Any,
) -> Run:
    """Do what `agent_loop` does with the asynchronous client."""
    run = _started(prompt, bench)
    while run.going:
        arguments = run.arguments(request)
        if stream:
            async with client.messages.stream(**arguments) as events:
                reply: Message = await events.get_final_message()
        else:
            reply = await client.messages.create(**arguments)
        run.take(reply)
    return run


def _started(prompt: Prompt, bench: Workbench) -> Run:
    history = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Run(history, bench)


def _output(of: str, size: int) -> str:
    """Return text that no other call has; its length depends on the call too."""
    digest = hashlib.sha256(of.encode()).digest()
    length = size // 5 + int.from_bytes(digest[:4]) % max(size - size // 5, 1)
    line = f"{of}: {digest.hex()[:12]} line %d of the output\n"
    lines = (line % number for number in range(length // len(line) + 1))
    return "".join(lines)[:length]
