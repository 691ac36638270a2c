"""The loopback answers the real SDK as the provider does."""

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any, Self

import anthropic
import pytest
from anthropic import Anthropic, beta_tool

from .brains import Agent, Script
from .loops import (
    MODEL,
    Run,
    Workbench,
    agent_loop,
    agent_loop_async,
    agent_steps,
    async_client,
    definition,
    plain_client,
)
from .replies import Reply, calls, says, use
from .server import Loopback
from .shapes import Json, Rules
from .thinking import CONTROLS
from .validation import CLEARING, SYSTEM_ROLE

TOOLS = [definition("read_file", "path")]
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
ADAPTIVE = {"type": "adaptive"}


class Client:
    """A client that is never retried, with arguments that most requests share."""

    def __init__(self, server: Loopback, *, retries: int = 0, timeout: float = 10) -> None:
        self.sdk = plain_client(server.url, retries=retries, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sdk.close()

    def ask(self, *messages: Json, **request: Any) -> Any:
        return self.sdk.messages.create(**_arguments(messages, request))

    def ask_beta(self, *messages: Json, **request: Any) -> Any:
        return self.sdk.beta.messages.create(**_arguments(messages, request))

    def stream(self, *messages: Json, **request: Any) -> Any:
        with self.sdk.messages.stream(**_arguments(messages, request)) as stream:
            return stream.get_final_message()

    def refusal(self, *messages: Json, **request: Any) -> str:
        """Return the text of the 400 that a request gets."""
        return self.failure(*messages, kind="invalid_request_error", **request)

    def failure(self, *messages: Json, kind: str = "api_error", **request: Any) -> str:
        with pytest.raises(anthropic.BadRequestError) as caught:
            self.ask(*messages, **request)
        body = caught.value.body
        assert isinstance(body, dict)
        assert body["error"]["type"] == kind
        return str(body["error"]["message"])


def _arguments(messages: tuple[Json, ...], request: Json) -> Json:
    return {"model": MODEL, "max_tokens": 1_024, "messages": list(messages), **request}


def human(content: object = "Fix the login.") -> Json:
    return {"role": "user", "content": content}


def robot(content: object) -> Json:
    return {"role": "assistant", "content": content}


def text(said: str, **fields: object) -> Json:
    return {"type": "text", "text": said, **fields}


def call(name: str) -> Json:
    return use(name, "read_file", path="a.py")


def result(name: str, content: object = "x = 1") -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def long(seed: int = 0, size: int = 8_000) -> str:
    """Text of `size` characters, above the least that is cached."""
    return random.Random(seed).randbytes(size // 2).hex()


@pytest.fixture
def talker() -> Iterator[tuple[Loopback, Client]]:
    """A server that says "Yes." to everything, and its client."""
    with Loopback(lambda _: says("Yes.")) as server, Client(server) as client:
        yield server, client


# ---- answers


def test_create(talker: tuple[Loopback, Client]) -> None:
    """A message is answered with a message, and kept with its size and usage."""
    server, client = talker
    reply = client.ask(human())
    assert (reply.content[0].text, reply.stop_reason) == ("Yes.", "end_turn")
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    [seen] = server.requests
    assert (seen.method, seen.path, seen.status) == ("POST", "/v1/messages", 200)
    assert seen.messages == [human()]
    assert seen.size == int(seen.headers["content-length"])
    assert seen.usage["input_tokens"] == reply.usage.input_tokens


def test_stream_gives_what_create_gives() -> None:
    """Thinking with its signature, text, and the input of calls arrive whole."""
    reply = calls(
        use("toolu_1", "read_file", path="a" * 200), text="Reading. " * 20, thought="Hm. " * 30
    )
    with Loopback(lambda _: reply) as server, Client(server) as client:
        whole = client.ask(human(), tools=TOOLS)
        streamed = client.stream(human(), tools=TOOLS)
    assert streamed.to_dict()["content"] == whole.to_dict()["content"]
    assert (streamed.stop_reason, streamed.usage) == ("tool_use", whole.usage)


def test_events_come_in_the_providers_order() -> None:
    """The events of a stream, one by one."""
    reply = calls(use("toolu_1", "read_file", path="a"), text="Reading.", thought="Hm.")
    with Loopback(lambda _: reply) as server, Client(server) as client:
        arguments = _arguments((human(),), {"tools": TOOLS, "stream": True})
        with client.sdk.messages.with_streaming_response.create(**arguments) as response:
            lines = list(response.iter_lines())
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thought = [block[0], "ping", block[1], *block[1:]]
    used = [*block[:2], *block[1:]]
    assert events == [
        "message_start",
        *thought,
        *block,
        *used,
        "message_delta",
        "message_stop",
    ]


def test_clients_of_ones_own() -> None:
    """A client that was made without this folder's help works as well."""
    with (
        Loopback(lambda _: says("Yes.")) as server,
        Anthropic(base_url=server.url, api_key="test") as client,
    ):
        assert client.messages.create(**_arguments((human(),), {})).stop_reason == "end_turn"


def test_asynchronous_client() -> None:
    """The asynchronous client creates and streams."""

    async def run(server: Loopback) -> list[Any]:
        async with async_client(server.url) as client:
            arguments = _arguments((human(),), {})
            whole = await client.messages.create(**arguments)
            async with client.messages.stream(**arguments) as stream:
                streamed = await stream.get_final_message()
        return [whole.content[0], streamed.content[0]]

    with Loopback(Script(["One.", "Two."])) as server:
        assert [block.text for block in asyncio.run(run(server))] == ["One.", "Two."]


def test_tool_runner() -> None:
    """The SDK's own loop runs against it."""

    @beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return f"content of {path}"

    script = Script([calls(use("toolu_1", "read_file", path="a.py")), "Done."])
    with Loopback(script) as server, Client(server) as client:
        runner = client.sdk.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=100,
            tools=[read_file],
            messages=[{"role": "user", "content": "Go."}],
            thread=False,
        )
        assert runner.until_done().stop_reason == "end_turn"
    assert server.requests[-1].messages[-1]["content"][0]["content"] == "content of a.py"
    assert [len(seen.messages) for seen in server.requests] == [1, 3]


def test_threads() -> None:
    """The tool runner sends only what is new, until the server has forgotten the thread."""

    @beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        if path.startswith("late"):
            server.advance(301)
        return f"content of {path}"

    names = ("a.py", "late.py", "b.py")
    steps = [calls(use(f"toolu_{n}", "read_file", path=name)) for n, name in enumerate(names)]
    with Loopback(Script([*steps, "Done."])) as server, Client(server) as client:
        arguments: Any = {"model": MODEL, "max_tokens": 100, "tools": [read_file]}
        runner = client.sdk.beta.messages.tool_runner(messages=[_typed(human())], **arguments)
        assert runner.until_done().stop_reason == "end_turn"
    seen = [(request.status, len(request.messages)) for request in server.requests]
    assert seen == [(200, 1), (200, 1), (404, 1), (200, 5), (200, 1)]
    shared = [request.shared for request in server.answered[1:]]
    assert [part.broken_at for part in shared if part] == [None] * 3


def test_beta_stream(talker: tuple[Loopback, Client]) -> None:
    """The beta client streams."""
    _, client = talker
    with client.sdk.beta.messages.stream(**_arguments((human(),), {})) as stream:
        assert stream.get_final_text() == "Yes."


def test_other_endpoints(talker: tuple[Loopback, Client]) -> None:
    """Token counts agree with usage; models and batches get an answer."""
    _, client = talker
    counted = client.sdk.messages.count_tokens(model=MODEL, messages=[_typed(human())])
    assert counted.input_tokens == client.ask(human()).usage.input_tokens
    model = client.sdk.models.retrieve(MODEL)
    assert (model.max_input_tokens, model.max_tokens) == (200_000, 128_000)
    params: Any = _arguments((human(),), {})
    batch = client.sdk.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
    assert batch.request_counts.processing == 1
    with pytest.raises(anthropic.NotFoundError):
        client.sdk.models.retrieve("gpt-5")


def test_the_end_of_a_script_is_an_error() -> None:
    """A brain that fails fails the test that uses it."""
    with (
        pytest.raises(IndexError, match="script"),
        Loopback(Script([])) as server,
        Client(server) as client,
    ):
        assert "script" in client.failure(human())


def test_a_reply_longer_than_max_tokens_is_cut() -> None:
    """`max_tokens` holds for the reply."""
    with Loopback(lambda _: says("word " * 1_000)) as server, Client(server) as client:
        reply = client.ask(human(), max_tokens=100)
    assert reply.stop_reason == "max_tokens"
    assert 50 < reply.usage.output_tokens <= 100


# ---- the prompt cache


def test_a_marked_prefix_is_written_once_and_read_after(talker: tuple[Loopback, Client]) -> None:
    """A longer prompt reads what the shorter one wrote; each token is counted once."""
    server, client = talker
    system = [text(long(), cache_control=MARK)]
    first = client.ask(human(), system=system).usage
    assert first.cache_creation_input_tokens > 1_024
    assert (first.cache_read_input_tokens, first.input_tokens > 0) == (0, True)
    second = client.ask(human("Something else."), system=system).usage
    assert second.cache_creation_input_tokens == 0
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert server.answered[1].prompt_tokens > second.cache_read_input_tokens


def test_the_mark_may_move_on(talker: tuple[Loopback, Client]) -> None:
    """A later mark finds the prefix that an earlier one wrote, up to 20 blocks back."""
    _, client = talker
    start = human([text(long(), cache_control=MARK)])
    written = client.ask(start).usage.cache_creation_input_tokens
    plain = human([text(long())])
    near = human([*[text(f"a{n}") for n in range(18)], text("end", cache_control=MARK)])
    assert client.ask(plain, near).usage.cache_read_input_tokens == written
    far = human([*[text(f"b{n}") for n in range(19)], text("end", cache_control=MARK)])
    assert client.ask(plain, far).usage.cache_read_input_tokens == 0


def test_a_short_prefix_is_not_cached(talker: tuple[Loopback, Client]) -> None:
    """Below 1,024 tokens a mark does nothing."""
    _, client = talker
    for _ in range(2):
        usage = client.ask(human([text("short", cache_control=MARK)])).usage
        assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)


def test_the_cache_forgets(talker: tuple[Loopback, Client]) -> None:
    """Five minutes after its last use a prefix is gone, an hour where that was asked for."""
    server, client = talker
    for lifetime, seconds in (("5m", 300), ("1h", 3_600)):
        prompt = human([text(long(seconds), cache_control={**MARK, "ttl": lifetime})])
        written = client.ask(prompt).usage.cache_creation_input_tokens
        for _ in range(2):  # each use begins the time anew
            server.advance(seconds - 1)
            assert client.ask(prompt).usage.cache_read_input_tokens == written
        server.advance(seconds)
        assert client.ask(prompt).usage.cache_read_input_tokens == 0


def test_automatic_caching(talker: tuple[Loopback, Client]) -> None:
    """A mark on the request stands on its last block and moves with it."""
    _, client = talker
    first, second = human(long()), human("And now?")
    written = client.ask(first, cache_control=MARK).usage.cache_creation_input_tokens
    usage = client.ask(first, robot("Yes."), second, cache_control=MARK).usage
    assert (usage.cache_read_input_tokens, usage.input_tokens) == (written, 0)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"model": "claude-opus-5"}, 0),
        ({"tools": [definition("other", "x")]}, 0),
        ({"system": [text(long(2))]}, 1),
        ({"tool_choice": {"type": "any"}}, 2),
    ],
)
def test_tools_come_before_system_before_messages(
    talker: tuple[Loopback, Client], change: Json, kept: int
) -> None:
    """A change spoils the cache from its place on."""
    _, client = talker
    request = {
        "tools": [{**definition("read_file", "path"), "description": long(1)}],
        "system": [text(long(2), cache_control=MARK)],
    }
    request["tools"][0]["cache_control"] = MARK
    prompt = human([text(long(3), cache_control=MARK)])
    client.ask(prompt, **request)
    if "system" in change:
        change = {"system": [text(long(4), cache_control=MARK)]}
    usage = client.ask(prompt, **{**request, **change}).usage
    levels = round(usage.cache_read_input_tokens / 2_300)
    assert levels == kept


def test_how_much_prefix_two_requests_share(talker: tuple[Loopback, Client]) -> None:
    """The server says where a prompt left the one before it."""
    server, client = talker
    client.ask(human("one"), robot("two"), human("three"), tools=TOOLS)
    client.ask(human("one"), robot("two"), human("three"), robot("4"), human("5"), tools=TOOLS)
    client.ask(human("one"), robot("other"), human("three"), tools=TOOLS)
    first, second, third = (seen.shared for seen in server.answered)
    assert first is None
    assert second is not None
    assert (second.blocks, second.broken_at) == (4, None)
    assert third is not None
    assert (third.blocks, third.broken_at) == (2, "messages.1.content.0")


# ---- the window


def test_a_prompt_above_the_window() -> None:
    """It is refused with the numbers."""
    rules = Rules(window=5_000, windows={"claude-opus-5": 50_000})
    with Loopback(lambda _: says("Yes."), rules) as server, Client(server) as client:
        said = client.refusal(human(long(size=20_000)))
        assert said == "prompt is too long: 5719 tokens > 5000 maximum"
        client.ask(human(long(size=20_000)), model="claude-opus-5")
    assert [seen.status for seen in server.requests] == [400, 200]


def test_max_tokens_beyond_the_window() -> None:
    """A prompt that fits, and an answer that may not: refused, or stopped on newer models."""
    prompt = human(long(size=14_000))
    strict, lax = Rules(window=5_000), Rules(window=5_000, overflow="stop")
    with Loopback(lambda _: says("Yes."), strict) as server, Client(server) as client:
        assert client.refusal(prompt) == (
            "input length and `max_tokens` exceed context limit: 4004 + 1024 > 5000, "
            "decrease input length or `max_tokens` and try again"
        )
    with Loopback(lambda _: says("word " * 900), lax) as server, Client(server) as client:
        reply = client.ask(prompt)
    assert reply.stop_reason == "model_context_window_exceeded"
    assert server.answered[0].prompt_tokens + reply.usage.output_tokens <= 5_000


def test_a_body_with_too_many_bytes() -> None:
    """413, whatever the tokens."""
    rules = Rules(max_body=5_000)
    with Loopback(lambda _: says("Yes."), rules) as server, Client(server) as client:
        with pytest.raises(anthropic.RequestTooLargeError) as caught:
            client.ask(human(long(size=8_000)))
        assert caught.value.body == {
            "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}
        }
        client.ask(human())
    assert [seen.status for seen in server.requests] == [413, 200]


# ---- faults


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.APIStatusError, "overloaded_error"),
    ],
)
def test_a_status_on_demand(
    talker: tuple[Loopback, Client], status: int, error: type[anthropic.APIStatusError], kind: str
) -> None:
    """The next request fails, the one after it does not."""
    server, client = talker
    server.fail(status, retry_after=0.01)
    with pytest.raises(error) as caught:
        client.ask(human())
    assert caught.value.status_code == status
    assert caught.value.response.headers["retry-after"] == "0.01"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == kind
    client.ask(human())


def test_the_sdk_retries(talker: tuple[Loopback, Client]) -> None:
    """A client with retries gets its answer after two refusals."""
    server, _ = talker
    server.fail(529, next=2, retry_after=0.001)
    with Client(server, retries=2) as client:
        client.ask(human())
    assert [seen.status for seen in server.requests] == [529, 529, 200]


def test_a_stream_that_breaks_off(talker: tuple[Loopback, Client]) -> None:
    """The connection ends in the middle of the events; the next one works."""
    server, client = talker
    server.cut_stream(after_events=3, next=2)
    with pytest.raises(Exception, match=r"incomplete chunked read|peer closed"):
        client.stream(human())
    with pytest.raises(anthropic.APIConnectionError):
        client.ask(human())
    assert client.stream(human()).content[0].text == "Yes."


def test_an_error_in_a_stream(talker: tuple[Loopback, Client]) -> None:
    """An `error` event after some events."""
    server, client = talker
    server.error_event(after_events=4)
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        client.stream(human())


def test_a_malformed_body(talker: tuple[Loopback, Client]) -> None:
    """A body that is no JSON, and a stream with an event that is none."""
    server, client = talker
    server.malformed(next=2)
    with pytest.raises(Exception, match=r"EOF|JSON|Unterminated|validate"):
        client.ask(human())
    with pytest.raises(Exception, match=r"EOF|JSON|Unterminated|validate"):
        client.stream(human())


def test_a_connection_closed_without_an_answer(talker: tuple[Loopback, Client]) -> None:
    """Nothing comes back, and the server knows that it saw the request."""
    server, client = talker
    server.drop()
    with pytest.raises(anthropic.APIConnectionError):
        client.ask(human())
    assert [seen.status for seen in server.requests] == [0]


def test_an_answer_that_does_not_come(talker: tuple[Loopback, Client]) -> None:
    """The client's patience ends first."""
    server, _ = talker
    server.stall()
    with Client(server, timeout=0.1) as client, pytest.raises(anthropic.APITimeoutError):
        client.ask(human())
    server.resume()


def test_nothing_is_left_behind() -> None:
    """No thread of the server outlives it, though the client's connection is open."""
    before = set(threading.enumerate())
    server = Loopback(lambda _: says("Yes."))
    with Client(server) as client:
        client.ask(human())
        server.close()
        assert set(threading.enumerate()) <= before


# ---- validation

ANSWERED = (human(), robot([call("toolu_1")]), human([result("toolu_1")]))
UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
    "toolu_1. Each `tool_use` block must have a corresponding `tool_result` block in the next "
    "message."
)
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PICTURE = {"type": "image", "source": PIXEL}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages: at least one message is required"),
        ([robot("Yes.")], 'messages: first message must use the "user" role'),
        (
            [human(), {"role": "tool", "content": "x"}],
            "messages.1.role: Input should be 'user' or 'assistant'",
        ),
        (
            [human(), {"role": "system", "content": "x"}],
            "messages.1: role 'system' is not supported on this model",
        ),
        (
            [human(""), robot("x"), human()],
            "messages.0: all messages must have non-empty content except for the optional final",
        ),
        ([human([text("")])], "messages: text content blocks must be non-empty"),
        ([human(" \n")], "messages: text content blocks must contain non-whitespace text"),
        ([human(), robot([call("toolu_1")])], UNANSWERED),
        ([human(), robot([call("toolu_1")]), human("No.")], UNANSWERED),
        (
            [human(), robot([call("toolu_1")]), human([text("First."), result("toolu_1")])],
            UNANSWERED,
        ),
        (
            [human(), robot("x"), human([result("toolu_9")])],
            "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_9",
        ),
        (
            [*ANSWERED[:2], human([result("toolu_1"), result("toolu_1")])],
            "messages.2.content.1: each tool_use must have a single result. Found multiple",
        ),
        (
            [*ANSWERED, robot([call("toolu_1")]), human([result("toolu_1")])],
            "messages.3.content.0: `tool_use` ids must be unique",
        ),
        (
            [human(), robot([call("a b")]), human([result("a b")])],
            "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        ),
        (
            [human([call("toolu_1")])],
            "messages.0: `tool_use` blocks can only be in `assistant` messages",
        ),
        (
            [human(), robot("So: ")],
            "messages: final assistant content cannot end with trailing whitespace",
        ),
        (
            [human([text("x", note="y")])],
            "messages.0.content.0.text.note: Extra inputs are not permitted",
        ),
        (
            [{**human(), "id": "msg_1"}],
            "messages.0.id: Extra inputs are not permitted",
        ),
        (
            [human([text(str(n), cache_control=MARK) for n in range(5)])],
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
        (
            [human([text("a", cache_control=MARK), text("b", cache_control=HOUR)])],
            "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
        ),
        (
            [human([PICTURE] * 101)],
            "messages: too many images and documents: 101 + 0 > 100",
        ),
        (
            [human([{"type": "image", "source": {**PIXEL, "media_type": "image/tiff"}}])],
            "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg'",
        ),
        (
            [human([{"type": "image", "source": {**PIXEL, "data": "no base64!"}}])],
            "messages.0.content.0.image.source.base64.data: Could not process image",
        ),
    ],
)
def test_bad_messages(talker: tuple[Loopback, Client], messages: list[Json], said: str) -> None:
    """What the provider refuses is refused in its words."""
    _, client = talker
    assert client.refusal(*messages, tools=TOOLS).startswith(said)


def test_unknown_blocks(talker: tuple[Loopback, Client]) -> None:
    """A block type that the schema does not know is named in the refusal."""
    _, client = talker
    inside = [*ANSWERED[:2], human([result("toolu_1", [{"type": "foo"}])])]
    for messages, place in (
        ([human([{"type": "foo"}])], "messages.0.content.0"),
        (inside, "messages.2.content.0.tool_result.content.0"),
    ):
        said = client.refusal(*messages, tools=TOOLS)
        assert said.startswith(f"{place}: Input tag 'foo' found using 'type' does not match any of")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"tools": TOOLS * 2}, "tools: Tool names must be unique."),
        ({"system": " "}, "system: text content blocks must contain non-whitespace text"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"extra_body": {"max_tokens": None}}, "max_tokens: Field required"),
        ({"extra_body": {"colour": 1}}, "colour: Extra inputs are not permitted"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
        ),
        (
            {"max_tokens": 130_000, "timeout": 5},
            "max_tokens: 130000 > 128000, which is the maximum allowed number of output tokens",
        ),
    ],
)
def test_bad_arguments(talker: tuple[Loopback, Client], request_: Json, said: str) -> None:
    """So are arguments beside the messages."""
    _, client = talker
    assert client.refusal(human(), **request_).startswith(said)


@pytest.mark.parametrize(
    "messages",
    [
        [human("a"), human("b"), robot("c"), robot("d"), human("e")],
        [human(), robot([call("a"), call("b")]), human([result("b")]), human([result("a")])],
        [human(), robot([call("a")]), human([result("a", ""), text("And: why?")])],
        [human(), robot([text("\n\n"), call("a")]), human([result("a", [PICTURE])])],
        [human([text(" "), text("x")]), robot("So:")],
        [human(), robot([])],
    ],
)
def test_odd_messages_that_are_taken(talker: tuple[Loopback, Client], messages: list[Json]) -> None:
    """What the provider was seen to take is taken."""
    _, client = talker
    client.ask(*messages, tools=TOOLS)


def test_system_messages_in_the_conversation(talker: tuple[Loopback, Client]) -> None:
    """With the beta header they stand after the user and before the assistant, or at the end."""
    _, client = talker
    system = {"role": "system", "content": "Be brief."}
    headers = {"extra_headers": {"anthropic-beta": SYSTEM_ROLE}}
    client.ask(human(), system, robot("x"), human(), system, **headers)
    said = client.refusal(human(), system, human(), **headers)
    assert said == "messages.1: role 'system' must precede an 'assistant' message or end the array"
    said = client.refusal(human(), robot("x"), system, **headers)
    assert said == "messages.2: role 'system' must follow a 'user' message"


def test_white_space_beside_text() -> None:
    """A switch refuses it block by block."""
    rules = Rules(whole_blocks=True)
    with Loopback(lambda _: says("Yes."), rules) as server, Client(server) as client:
        said = client.refusal(human([text(" "), text("x")]))
    assert said == "messages: text content blocks must contain non-whitespace text"


def test_models_without_prefill() -> None:
    """A switch refuses a last message that is the assistant's."""
    rules = Rules(prefill=False)
    with Loopback(lambda _: says("Yes."), rules) as server, Client(server) as client:
        said = client.refusal(human(), robot("So"))
    assert "does not support assistant message prefill" in said


def test_no_key(talker: tuple[Loopback, Client]) -> None:
    """401 without a key, 404 elsewhere."""
    server, client = talker
    with pytest.raises(anthropic.AuthenticationError):
        client.ask(human(), extra_headers={"authorization": anthropic.Omit()})
    with pytest.raises(anthropic.NotFoundError):
        client.sdk.post("/v1/nothing", cast_to=object)
    assert [seen.status for seen in server.requests] == [401, 404]


# ---- thinking


def thinker(turns: int = 3, **rules: Any) -> Loopback:
    return Loopback(Agent(turns=turns, thinks=True, parallel=1), Rules(**rules))


def talked(client: Client, **request: Any) -> list[Json]:
    """Return the plain messages of a run to its end."""
    run = agent_loop(client.sdk, "Go on.", Workbench(size=200), thinking=ADAPTIVE, **request)
    return [_plain(message) for message in run.messages]


def test_signed_thinking_comes_back() -> None:
    """Thinking that is sent as it was is taken, bound or not."""
    for bound in (False, True):
        with thinker(bind_thinking=bound) as server, Client(server) as client:
            talked(client)
        assert len(server.answered) == 4


def test_redacted_thinking() -> None:
    """Thinking without its text is signed and held to what was sent in the same way."""
    hidden = Reply([{"type": "redacted_thinking"}, text("Yes.")])
    rules = Rules(bind_thinking=True)
    with Loopback(lambda _: hidden, rules) as server, Client(server) as client:
        reply = _plain({"role": "assistant", "content": client.ask(human()).content})
        client.ask(human(), reply, human())
        assert "bound to" in client.refusal(human("Else."), reply, human())
        reply["content"][0]["data"] = "bm90aGluZw=="
        said = client.refusal(human(), reply, human())
        assert said == "messages.1.content.0: Invalid `data` in `redacted_thinking` block"


def test_changed_thinking() -> None:
    """Another text is refused; a signature of somebody else too."""
    with thinker() as server, Client(server) as client:
        messages = talked(client)[:-1]
        messages[-2]["content"][0]["thinking"] = "I thought otherwise."
        said = client.refusal(*messages, tools=Workbench().tools)
        assert said == (
            "messages.5.content.0: `thinking` or `redacted_thinking` blocks in the latest "
            "assistant message cannot be modified. These blocks must remain as they were in the "
            "original response."
        )
        messages[1]["content"][0]["signature"] = "c2lnbmF0dXJl"
        said = client.refusal(*messages, tools=Workbench().tools)
        assert said == "messages.1.content.0: Invalid `signature` in `thinking` block"


def test_a_tool_loop_starts_with_thinking() -> None:
    """Where thinking is enabled by hand, the message whose calls are answered begins with it."""
    with Loopback(lambda _: says("Yes.", thought="Hm.")) as server, Client(server) as client:
        said = client.refusal(
            *ANSWERED,
            tools=TOOLS,
            max_tokens=2_000,
            thinking={"type": "enabled", "budget_tokens": 1_024},
        )
    assert said.startswith(
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        "`tool_use`."
    )


def test_thinking_after_an_edited_prefix() -> None:
    """Bound thinking is refused behind an edit, and taken before it."""
    with thinker(bind_thinking=True) as server, Client(server) as client:
        messages = talked(client)
        tools = Workbench().tools
        asked = [*messages, human("More.")]
        edited = [dict(message) for message in asked]
        edited[4] = {"role": "user", "content": [result(_id(edited[4]), "[saved]")]}
        said = client.refusal(*edited, tools=tools)
        assert said == (
            "messages.5.content.0: Invalid `signature` in `thinking` block. The block is bound to "
            "a different conversation. Remove the block, or set "
            '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
        )
        assert "bound to" in client.refusal(*asked, tools=tools, system="Be brief.")
        assert "bound to" in client.refusal(*asked, tools=tools[:1])
        for at in (5, 7):
            edited[at] = _thoughtless(edited[at])
        client.ask(*edited, tools=tools)


def test_left_out_thinking() -> None:
    """All thinking up to a block may be left out, none between two blocks may."""
    with thinker(bind_thinking=True) as server, Client(server) as client:
        messages = [*talked(client), human("More.")]
        tools = Workbench().tools
        front = [*messages[:1], _thoughtless(messages[1]), *messages[2:]]
        client.ask(*front, tools=tools)
        middle = [*messages[:3], _thoughtless(messages[3]), *messages[4:]]
        assert "messages.5.content.0" in client.refusal(*middle, tools=tools)


def test_marks_and_the_form_of_content_change_no_prefix() -> None:
    """A cache mark, a string for a text block and split messages leave thinking valid."""
    with thinker(bind_thinking=True) as server, Client(server) as client:
        messages = [*talked(client), human("More.")]
        messages[0] = human([text("Go on.", cache_control=MARK)])
        client.ask(*messages, tools=Workbench().tools)


def test_thinking_that_the_provider_drops() -> None:
    """A request can have void blocks dropped, and is told which; it goes on from there."""
    with thinker(bind_thinking=True) as server, Client(server) as client:
        edited = [*talked(client), human("More.")]
        edited[4] = {"role": "user", "content": [result(_id(edited[4]), "[saved]")]}
        binding = {"prefix_mismatch_behavior": "drop_block"}
        request: Json = {
            "tools": Workbench().tools,
            "thinking": {**ADAPTIVE, "block_binding": binding},
        }
        assert "beta header" in client.refusal(*edited, **request)
        reply = client.ask_beta(*edited, betas=[CONTROLS], **request)
        dropped = [(t.path, t.reason) for t in reply.input_transformations]
        assert dropped == [(f"messages.{at}.content.0", "prefix_binding_mismatch") for at in (5, 7)]
        answered = [*edited, _plain({"role": "assistant", "content": reply.content}), human()]
        again = client.ask_beta(*answered, betas=[CONTROLS], **request)
        assert [t.path for t in again.input_transformations] == [path for path, _ in dropped]


def test_thinking_of_another_model_is_dropped() -> None:
    """Quietly, as the provider does."""
    with thinker(bind_thinking=True) as server, Client(server) as client:
        messages = [*talked(client), human("More.")]
        request: Json = {"tools": Workbench().tools, "model": "claude-opus-5"}
        reply = client.ask_beta(*messages, betas=[CONTROLS], **request)
    assert {t.reason for t in reply.input_transformations} == {"model_binding_mismatch"}


def test_thinking_cleared_by_context_management() -> None:
    """The provider clears old thinking on request."""
    with thinker() as server, Client(server) as client:
        messages = [*talked(client), human("More.")]
        edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
        reply = client.ask_beta(
            *messages,
            betas=[CLEARING],
            context_management={"edits": [edit]},
            tools=Workbench().tools,
        )
    [applied] = reply.context_management.applied_edits
    assert applied.cleared_thinking_turns == 3
    assert applied.cleared_input_tokens > 0


# ---- agents and loops


@pytest.mark.parametrize("stream", [False, True])
def test_agents_run_the_same_each_time(stream: bool) -> None:  # noqa: FBT001 - a parameter
    """The same seed gives the same messages and the same side effects, another seed others."""
    runs = []
    for seed in (1, 1, 2):
        bench = Workbench(size=500)
        with Loopback(Agent(turns=12, seed=seed)) as server, Client(server) as client:
            run = agent_loop(client.sdk, "Go on.", bench, stream=stream)
        assert run.replies[-1].stop_reason == "end_turn"
        assert len(server.answered) == 13
        assert bench.edits
        runs.append(([_plain(message) for message in run.messages], bench.ran, bench.edits))
    assert runs[0] == runs[1] != runs[2]


def test_asynchronous_loop() -> None:
    """The asynchronous loop does what the other does."""

    async def run(server: Loopback, *, stream: bool) -> Run:
        async with async_client(server.url) as client:
            return await agent_loop_async(client, "Go on.", Workbench(), stream=stream)

    for stream in (False, True):
        with Loopback(Agent(turns=5)) as server:
            assert len(asyncio.run(run(server, stream=stream)).replies) == 6


def test_an_agent_goes_on_after_a_cut() -> None:
    """A request that is sent again gets the same reply again."""
    with Loopback(Agent(turns=4)) as server, Client(server) as client:
        bench = Workbench()
        run = Run([human()], bench)
        next(agent_steps(client.sdk, run))
        server.cut_stream()
        with pytest.raises(anthropic.APIConnectionError):
            next(agent_steps(client.sdk, run))
        for _ in agent_steps(client.sdk, run):
            pass
    assert len(server.answered) == 6
    assert len(run.replies) == 5
    first, second = (seen.reply for seen in server.answered[1:3])
    assert first is not None
    assert second is not None
    assert first["content"] == second["content"]


def test_agents_read_back() -> None:
    """Where a handle stands in the prompt and the tool is there, the agent reads it."""
    read: list[str] = []

    def other(use: Any) -> Json:
        read.append(use.input["handle"])
        return result(use.id, "what was saved")

    bench = Workbench(more=[definition("read_transcript", "handle")], other=other)
    prompt = "Go on. [Earlier tool result saved: out-7k3mxqa2]"
    with Loopback(Agent(turns=6, recall=3)) as server, Client(server) as client:
        agent_loop(client.sdk, prompt, bench)
    assert read == ["out-7k3mxqa2"] * 2


def test_the_cache_of_a_growing_conversation() -> None:
    """An append-only loop with automatic caching pays each token once."""
    with Loopback(Agent(turns=30)) as server, Client(server) as client:
        agent_loop(client.sdk, "Go on.", Workbench(size=2_000), cache_control=MARK)
    for before, after in zip(server.answered, server.answered[1:], strict=False):
        assert after.shared is not None
        assert after.shared.broken_at is None
        if before.usage["cache_creation_input_tokens"]:
            assert after.usage["cache_read_input_tokens"] == before.prompt_tokens


def _plain(message: Json) -> Json:
    """Return a message without objects of the SDK, as it goes over the wire."""
    content = message["content"]
    if isinstance(content, list):
        content = [block if isinstance(block, dict) else block.to_dict() for block in content]
    return {"role": message["role"], "content": content}


def _thoughtless(message: Json) -> Json:
    content = [block for block in message["content"] if block["type"] != "thinking"]
    return {**message, "content": content}


def _id(message: Json) -> str:
    return str(message["content"][0]["tool_use_id"])


def _typed(message: Json) -> Any:
    return message
