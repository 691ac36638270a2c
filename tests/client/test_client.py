"""The derived client: the real SDK against a Messages API on 127.0.0.1."""

import asyncio
import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_async_tool, beta_tool

from compactor import (
    ArchivePolicy,
    CannotFit,
    Closed,
    Compactor,
    DecisionSet,
    Keys,
    Policy,
    Transcript,
    View,
)
from tests.loopback.brains import Agent, Script
from tests.loopback.loops import (
    MODEL,
    Workbench,
    agent_loop,
    agent_loop_async,
    async_client,
    definition,
    plain_client,
)
from tests.loopback.replies import calls, says, use
from tests.loopback.server import Loopback, Recorded
from tests.loopback.shapes import Json, Rules
from tests.loopback.validation import CLEARING

from .conftest import Open

REQUEST = "Fix the login, and do not touch the vault."
WINDOW = 30_000
SMALL = Policy(window=WINDOW)
RULES = Rules(window=WINDOW)
WORDS = ["parser", "cache", "index", "lane", "vault", "stream", "ledger", "view", "token", "block"]
NAMES = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS]
TOOLS = [definition("read_file", "path")]
ARGUMENTS: dict[str, Any] = {"model": MODEL, "max_tokens": 1_024, "tools": TOOLS}


@dataclass
class Sets:
    """The sets that a session took, each by the number of requests that the server had seen."""

    server: Loopback
    taken: list[tuple[int, DecisionSet]] = field(default_factory=list)

    def __call__(self, one: DecisionSet, _: View) -> None:
        self.taken.append((len(self.server.asked), one))

    @property
    def rewriting(self) -> list[int]:
        """The requests that a set rewrote."""
        return [number for number, one in self.taken if one.reason != "arrival"]


def human(text: str = REQUEST) -> Any:
    return {"role": "user", "content": text}


def robot(*uses: Json, text: str = "Yes.") -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}, *uses]}


def long_history(exchanges: int = 30, size: int = 4_000) -> list[Any]:
    """Return a history that is above the trigger of `SMALL`, unlike its first half."""
    made: list[Any] = [human()]
    for number in range(exchanges):
        name = f"toolu_{number}"
        text = f"This is what the file {NAMES[number]} says.\n" * (size // 40)
        result = {"type": "tool_result", "tool_use_id": name, "content": text}
        made += [robot(use(name, "read_file", path=f"{number}.py"))]
        made += [{"role": "user", "content": [result]}]
    return made


@contextmanager
def derived(session: Compactor, server: Loopback, **how: Any) -> Iterator[Anthropic]:
    with closing(plain_client(server.url, **how)) as client:
        yield session.client(client)


def talker(rules: Rules = RULES) -> Loopback:
    """A server that says "Yes." to everything."""
    return Loopback(lambda _: says("Yes."), rules)


def legal(server: Loopback) -> bool:
    return all(seen.status == 200 for seen in server.asked)


def sent(seen: Recorded) -> bytes:
    return json.dumps(seen.body).encode()


def unstreamed(seen: Recorded) -> str:
    """Return a body without saying how it is to be answered."""
    return json.dumps({**seen.body, "stream": None}, sort_keys=True)


# ---- loops


def run_plain(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    with derived(session, server) as client:
        return agent_loop(client, REQUEST, bench).messages


def run_streaming(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    with derived(session, server) as client:
        return agent_loop(client, REQUEST, bench, stream=True).messages


def run_async(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    async def run() -> list[Any]:
        async with async_client(server.url) as client:
            return (await agent_loop_async(session.client(client), REQUEST, bench)).messages

    return asyncio.run(run())


def run_async_streaming(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    async def run() -> list[Any]:
        async with async_client(server.url) as plain:
            client = session.client(plain)
            return (await agent_loop_async(client, REQUEST, bench, stream=True)).messages

    return asyncio.run(run())


def run_runner(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    @beta_tool
    def read_file(path: str) -> str:
        return bench.run("read_file", {"path": path})

    @beta_tool
    def run(command: str) -> str:
        return bench.run("run", {"command": command})

    @beta_tool
    def edit(path: str, old: str, new: str) -> str:
        return bench.run("edit", {"path": path, "old": old, "new": new})

    with closing(plain_client(server.url)) as client:
        arguments = {**ARGUMENTS, "tools": [read_file, run, edit]}
        session.runner(client, **arguments, messages=[human()]).until_done()
    return []


def run_async_runner(server: Loopback, session: Compactor, bench: Workbench) -> list[Any]:
    @beta_async_tool
    async def read_file(path: str) -> str:
        return bench.run("read_file", {"path": path})

    @beta_async_tool
    async def run(command: str) -> str:
        return bench.run("run", {"command": command})

    @beta_async_tool
    async def edit(path: str, old: str, new: str) -> str:
        return bench.run("edit", {"path": path, "old": old, "new": new})

    async def runs() -> None:
        async with async_client(server.url) as client:
            arguments = {**ARGUMENTS, "tools": [read_file, run, edit], "stream": True}
            runner = session.runner(client, **arguments, messages=[human()])
            async for stream in runner:
                await stream.get_final_message()

    asyncio.run(runs())
    return []


Run = Callable[[Loopback, Compactor, Workbench], list[Any]]
RUNS = [run_plain, run_streaming, run_async, run_async_streaming, run_runner, run_async_runner]


@pytest.fixture(scope="module")
def whole() -> tuple[Workbench, list[Any]]:
    """What the same agent does in a window that is large enough, without compaction."""
    bench = Workbench()
    with Loopback(Agent(turns=60, thinks=True)) as server, closing(plain_client(server.url)) as sdk:
        return bench, agent_loop(sdk, REQUEST, bench).messages


@pytest.mark.parametrize("run", RUNS, ids=[run.__name__[4:] for run in RUNS])
def test_loops(run: Run, opened: Open, whole: tuple[Workbench, list[Any]], tmp_path: Path) -> None:
    """A long run in a small window: nothing is refused, done twice, lost or rewritten between."""
    bench = Workbench()
    with Loopback(Agent(turns=60, thinks=True), RULES) as server:
        sets = Sets(server)
        with opened(policy=SMALL, on_compaction=sets) as session:
            messages = run(server, session, bench)
    assert legal(server)
    assert len(server.asked) == 61
    assert (bench.edits, bench.ran) == (whole[0].edits, whole[0].ran)
    assert all(human() in seen.messages for seen in server.asked)
    broken = [n for n, seen in enumerate(server.asked) if seen.shared and seen.shared.broken_at]
    assert broken == sets.rewriting
    assert broken
    assert plain(messages) == plain(whole[1] if messages else [])
    with Transcript.open(tmp_path, "one", Keys(bytes(32), tmp_path / "state")) as transcript:
        requests = list(transcript.requests())
    assert len(requests) == 61
    assert all(one.whole and one.answered for one in requests)
    # Each reply is known to be the message that followed it, streamed or not: none is kept twice.
    assert [one.number for one in requests if "reply" in (one.answered or {})] == [61]


def plain(messages: list[Any]) -> Any:
    """Return messages without thinking, whose signatures depend on what was sent."""
    made = json.loads(json.dumps(messages, default=lambda block: block.to_dict()))
    for message in made:
        if isinstance(message["content"], list):
            message["content"] = [b for b in message["content"] if b["type"] != "thinking"]
    return made


# ---- what a request is


def test_the_original_client_stays(opened: Open) -> None:
    """The client that was passed has no middleware; deriving twice is deriving once."""
    with talker() as server, closing(plain_client(server.url)) as client:
        session = opened()
        once = session.client(client)
        assert not client.middleware
        assert session.client(once) is once
        assert len(opened("two").client(once).middleware) == 2
        with pytest.raises(TypeError, match="not a list"):
            session.client([])


def test_messages_stay_as_they_are(opened: Open) -> None:
    """The caller's list and its dictionaries are never written to."""
    history = long_history()
    before, objects = copy.deepcopy(history), list(history)
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        client.messages.create(**ARGUMENTS, messages=history)
    assert history == before
    assert all(one is other for one, other in zip(history, objects, strict=True))
    assert len(sent(server.asked[0])) < len(json.dumps(before))


def test_other_arguments_pass(opened: Open) -> None:
    """Headers, extra fields and the order of the body stay; only the messages differ."""
    extra: dict[str, Any] = {
        "extra_headers": {"anthropic-beta": "x-1"},
        "extra_body": {"metadata": {}},
    }
    with talker() as server, closing(plain_client(server.url)) as client:
        for one in (client, opened(policy=SMALL).client(client)):
            one.messages.create(**ARGUMENTS, **extra, messages=long_history(5))
            one.beta.messages.create(**ARGUMENTS, betas=["x-2"], messages=long_history(5))
    first, second = server.asked[:2], server.asked[2:]
    assert [sent(seen) for seen in first] == [sent(seen) for seen in second]
    assert [seen.betas for seen in first] == [seen.betas for seen in second] == [["x-1"], ["x-2"]]


def test_usage_is_observed(opened: Open) -> None:
    """After a reply the estimate of the same prompt is what the provider has counted."""
    arguments: dict[str, Any] = {"model": MODEL, "max_tokens": 1_024}
    for stream in (False, True):
        history = long_history(10)
        with talker() as server:
            session = opened(f"stream-{stream:d}", policy=SMALL)
            with derived(session, server) as client:
                reply = client.messages.create(**arguments, messages=history, stream=stream)
                for _ in reply if stream else ():
                    pass
        view = session.view(history, **arguments)
        assert view.stats.view_tokens == server.asked[0].prompt_tokens


# ---- what passes


def test_foreign_conversations_pass(opened: Open) -> None:
    """Another conversation passes byte for byte and is no rewind of this one."""
    other = long_history(40)
    other[0] = human("Somebody else's work.")
    other[1::2] = [robot(*one["content"][1:], text="Other.") for one in other[1::2]]
    with talker(Rules()) as server:
        sets = Sets(server)
        with derived(opened(policy=SMALL, on_compaction=sets), server) as client:
            client.messages.create(**ARGUMENTS, messages=long_history())
            client.messages.create(**ARGUMENTS, messages=other)
            client.messages.create(**ARGUMENTS, messages=long_history())
    assert server.asked[1].messages == other
    assert sent(server.asked[0]) == sent(server.asked[2])
    assert len(sets.taken) == 1


def test_titles_pass(opened: Open) -> None:
    """A request without the tools, about the start of the conversation, is no rewind."""
    title = [human()]
    with talker() as server:
        sets = Sets(server)
        with derived(opened(policy=SMALL, on_compaction=sets), server) as client:
            client.messages.create(**ARGUMENTS, messages=long_history())
            client.messages.create(model=MODEL, max_tokens=20, messages=title)
            client.messages.create(**ARGUMENTS, messages=long_history())
    assert server.asked[1].messages == title
    assert sent(server.asked[0]) == sent(server.asked[2])
    assert len(sets.taken) == 1


def test_a_probe_first(opened: Open) -> None:
    """A probe before the conversation does not keep the conversation out."""
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        client.messages.create(model=MODEL, max_tokens=1, messages=[human("quota")])
        client.messages.create(**ARGUMENTS, messages=long_history())
    assert len(sent(server.asked[1])) < len(json.dumps(long_history()))


def test_another_beginning(opened: Open) -> None:
    """A first message that changes (a date in it) does not make the conversation foreign."""
    later = [human("It is Tuesday."), *long_history()[1:]]
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        client.messages.create(**ARGUMENTS, messages=long_history(10))
        client.messages.create(**ARGUMENTS, messages=long_history())
        client.messages.create(**ARGUMENTS, messages=later)
    assert server.asked[2].messages[0] == later[0]
    assert server.asked[2].messages[1:] == server.asked[1].messages[1:]


@pytest.mark.parametrize("own_first", [True, False])
def test_resumed_sessions_know_their_own(opened: Open, own_first: bool) -> None:  # noqa: FBT001
    """After a restart too, a conversation is told from another and from a title."""
    other = [human("Something else.")]
    with talker() as server:
        with opened(policy=SMALL) as session, derived(session, server) as client:
            client.messages.create(**ARGUMENTS, messages=long_history())
        with opened(policy=SMALL) as session, derived(session, server) as client:
            if own_first:
                client.messages.create(**ARGUMENTS, messages=long_history())
            client.messages.create(**ARGUMENTS, messages=other)
            client.messages.create(model=MODEL, max_tokens=20, messages=[human()])
            client.messages.create(**ARGUMENTS, messages=long_history())
    views = [sent(seen) for seen in server.asked if len(seen.messages) > 1]
    assert len(set(views)) == 1
    assert len(views[0]) < len(json.dumps(long_history()))


def test_written_back_views_are_own(opened: Open) -> None:
    """A host that goes on with the view in the place of its history goes on, restarted or not."""
    policy = Policy(window=WINDOW, archive=ArchivePolicy(max_messages=20, keep_tail=8))
    with talker() as server:
        with opened(policy=policy) as session, derived(session, server) as client:
            view = session.view(long_history(), **ARGUMENTS).messages
            client.messages.create(**ARGUMENTS, messages=view)
        with opened(policy=policy) as session, derived(session, server) as client:
            client.messages.create(**ARGUMENTS, messages=view)
    assert len(view) < len(long_history())
    assert server.asked[0].messages == server.asked[1].messages == view


def test_batches_and_models_pass(opened: Open) -> None:
    """Other endpoints are none of the engine's business."""
    params: Any = {"model": MODEL, "max_tokens": 20, "messages": long_history(40)}
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
        client.models.retrieve(MODEL)
    assert server.requests[0].body["requests"][0]["params"] == params


def test_counts_are_of_the_view(opened: Open) -> None:
    """A count of tokens counts what would be sent, and decides nothing."""
    counted: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "messages": long_history()}
    with talker(Rules()) as server:
        sets = Sets(server)
        with derived(opened(policy=SMALL, on_compaction=sets), server) as client:
            before = client.messages.count_tokens(**counted).input_tokens
            assert not sets.taken
            client.messages.create(**ARGUMENTS, messages=long_history())
            after = client.messages.count_tokens(**counted).input_tokens
            assert client.beta.messages.count_tokens(**counted).input_tokens == after
    assert after == server.asked[0].prompt_tokens < before
    assert len(sets.taken) == 1


def test_async_counts(opened: Open) -> None:
    """The asynchronous client counts the view too."""

    async def count(session: Compactor, server: Loopback) -> int:
        async with async_client(server.url) as plain_one:
            client = session.client(plain_one).messages
            await client.create(**ARGUMENTS, messages=long_history())
            tools: Any = TOOLS
            counted = await client.count_tokens(model=MODEL, tools=tools, messages=long_history())
            return counted.input_tokens

    with talker() as server:
        assert asyncio.run(count(opened(policy=SMALL), server)) == server.asked[0].prompt_tokens


def test_other_platforms(opened: Open) -> None:
    """Vertex's client rewrites the address behind the middleware: views reach it too."""
    with talker() as server:
        vertex = anthropic.AnthropicVertex(
            base_url=server.url, access_token="x", project_id="p", region="r", max_retries=0
        )
        client = opened(policy=SMALL).client(vertex)
        with closing(vertex), pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ARGUMENTS, messages=long_history())
    [seen] = server.requests
    assert "/projects/p/" in seen.path
    assert seen.messages != long_history()
    assert seen.size < len(json.dumps(long_history()))


@pytest.mark.filterwarnings("ignore:The model 'claude-sonnet-4-5' is deprecated")
def test_betas_of_the_client(opened: Open) -> None:
    """A beta that the client sends with each request counts: a window of a million is known."""
    beta = {"anthropic-beta": "context-1m-2025-08-07"}
    arguments = {**ARGUMENTS, "model": "claude-sonnet-4-5"}
    history = long_history(200)
    with talker(Rules(window=1_000_000)) as server, closing(plain_client(server.url)) as client:
        wide = client.with_options(default_headers=beta)
        opened().client(wide).messages.create(**arguments, messages=history)
        opened("two").client(client).messages.create(**arguments, messages=history)
    assert server.asked[0].messages == history
    assert server.asked[1].messages != history


def test_two_do_not_compact(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A request that has the provider compact passes as it is, with one warning."""
    edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    history = long_history(40)
    with talker(Rules()) as server, derived(opened(policy=SMALL), server) as client:
        for _ in range(3):
            client.beta.messages.create(
                **ARGUMENTS, betas=[CLEARING], context_management=edits, messages=history
            )
    assert all(seen.messages == history for seen in server.asked)
    [warning] = [record for record in caplog.records if record.name == "compactor"]
    assert "context_management" in warning.message
    assert "login" not in warning.message


def test_switched_off(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """`COMPACTOR=off` lets everything pass, also in the middle of a session."""
    with talker(Rules()) as server, derived(opened(policy=SMALL), server) as client:
        client.messages.create(**ARGUMENTS, messages=long_history())
        monkeypatch.setenv("COMPACTOR", "off")
        client.messages.create(**ARGUMENTS, messages=long_history())
    assert server.asked[1].messages == long_history()


def test_what_the_engine_refuses_passes(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    """The provider judges what the engine cannot take; nobody sees the engine's errors."""
    bad: Any = [human(), {"content": "no role"}]
    with talker(Rules()) as server, derived(opened(policy=SMALL), server) as client:
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ARGUMENTS, messages=bad)
        reply = client.messages.create(**{**ARGUMENTS, "max_tokens": 50_000}, messages=[human()])
        assert reply.stop_reason == "end_turn"
    assert server.asked[0].messages == bad
    assert len(caplog.records) == 2


def test_closed_sessions_say_so(opened: Open) -> None:
    """A client outlives its session only in order to say so."""
    with talker() as server, opened(policy=SMALL) as session, derived(session, server) as client:
        session.close()
        with pytest.raises(Closed):
            client.messages.create(**ARGUMENTS, messages=[human()])


# ---- attempts, streams, raw responses


def test_retries_decide_nothing(opened: Open) -> None:
    """The SDK's own retries send the same bytes; one decision, one request in the transcript."""
    with talker() as server:
        sets = Sets(server)
        server.fail(529, next=2, retry_after=0.01)
        with derived(opened(policy=SMALL, on_compaction=sets), server, retries=2) as client:
            client.messages.create(**ARGUMENTS, messages=long_history())
    assert [seen.status for seen in server.asked] == [529, 529, 200]
    assert len({sent(seen) for seen in server.asked}) == len(sets.taken) == 1


@pytest.mark.parametrize("fault", ["cut_stream", "error_event"])
def test_broken_streams_tell_nothing(fault: str, opened: Open, tmp_path: Path) -> None:
    """A stream that breaks is not taken for an answer; the request sent again decides nothing."""
    history = long_history()
    with talker() as server:
        sets = Sets(server)
        with opened(policy=SMALL, on_compaction=sets) as session, derived(session, server) as one:
            getattr(server, fault)()
            with pytest.raises(Exception, match=r"."):
                for _ in one.messages.create(**ARGUMENTS, messages=history, stream=True):
                    pass
        with Transcript.open(tmp_path, "one", Keys(bytes(32), tmp_path / "state")) as transcript:
            assert [request.answered for request in transcript.requests()] == [None]
        with opened(policy=SMALL, on_compaction=sets) as session, derived(session, server) as one:
            one.messages.create(**ARGUMENTS, messages=history)
    assert len({unstreamed(seen) for seen in server.asked}) == len(sets.taken) == 1


def test_streams_pass_at_once(opened: Open) -> None:
    """Each event passes when it arrives, as the SDK made it, and the stream closes as it would."""
    with talker() as server, closing(plain_client(server.url)) as client:
        own = opened().client(client)
        arguments = {**ARGUMENTS, "messages": [human()], "stream": True}
        streams = [one.messages.create(**arguments) for one in (client, own)]
        first, second = [[event.to_dict() for event in stream] for stream in streams]
        assert first[0]["message"].pop("id") != second[0]["message"].pop("id")
        assert first == second
        with own.messages.stream(**ARGUMENTS, messages=[human()]) as events:
            next(iter(events))
        assert events.response.is_closed


def test_raw_responses(opened: Open) -> None:
    """`with_raw_response` and `with_streaming_response` give what they always give."""
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        raw = client.messages.with_raw_response.create(**ARGUMENTS, messages=long_history())
        assert raw.status_code == 200
        assert raw.parse().stop_reason == json.loads(raw.text())["stop_reason"] == "end_turn"
        stream = client.messages.with_raw_response.create(
            **ARGUMENTS, messages=long_history(), stream=True
        ).parse()
        assert [event.type for event in stream][-1] == "message_stop"
        with client.messages.with_streaming_response.create(
            **ARGUMENTS, messages=long_history()
        ) as streaming:
            assert json.loads(b"".join(streaming.iter_bytes()))["stop_reason"] == "end_turn"
        with client.messages.with_streaming_response.create(
            **ARGUMENTS, messages=long_history(), stream=True
        ) as streaming:
            assert next(iter(streaming.iter_lines())) == "event: message_start"
    assert legal(server)
    assert len({unstreamed(seen) for seen in server.asked}) == 1


def test_malformed_answers(opened: Open) -> None:
    """An answer that is no JSON is the SDK's matter."""
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        server.malformed()
        with pytest.raises(ValueError, match=r"."):
            client.messages.create(**ARGUMENTS, messages=[human()])
        assert client.messages.create(**ARGUMENTS, messages=[human()]).stop_reason == "end_turn"


def test_cancelled_requests(opened: Open) -> None:
    """A request that is cancelled leaves the session as it was."""

    async def run(session: Compactor, server: Loopback) -> None:
        async with async_client(server.url) as plain_one:
            client = session.client(plain_one)
            server.stall()
            waiting = asyncio.create_task(client.messages.create(**ARGUMENTS, messages=[human()]))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            server.resume()
            await client.messages.create(**ARGUMENTS, messages=long_history())

    with talker() as server:
        sets = Sets(server)
        asyncio.run(run(opened(policy=SMALL, on_compaction=sets), server))
    assert len(sets.taken) == 1


# ---- refusals


def test_a_rescue(opened: Open) -> None:
    """A refusal for length is answered with a smaller view, once, and the loop goes on."""
    wide = Policy(window=200_000)
    with talker() as server:
        sets = Sets(server)
        session = opened(policy=wide, on_compaction=sets)
        with derived(session, server) as client:
            client.messages.create(**ARGUMENTS, messages=long_history())
            client.messages.create(**ARGUMENTS, messages=long_history())
    assert [seen.status for seen in server.asked] == [400, 200, 200]
    assert [number for number, _ in sets.taken] == [1]


def test_a_rescue_where_the_estimate_is_too_high(opened: Open) -> None:
    """What the provider has counted corrects what is estimated of the view after a rescue."""
    history = long_history()
    for message in history[2::2]:
        message["content"][0]["content"] = "line 7 of 9\n" * 330
    with talker() as server, derived(opened(policy=Policy(window=200_000)), server) as client:
        client.messages.create(**ARGUMENTS, messages=history)
    assert [seen.status for seen in server.asked] == [400, 200]


def test_an_async_rescue(opened: Open) -> None:
    """The asynchronous client is rescued the same, streaming too."""

    async def run(session: Compactor, server: Loopback) -> None:
        async with async_client(server.url) as plain_one:
            client = session.client(plain_one).messages
            async with client.stream(**ARGUMENTS, messages=long_history()) as stream:
                assert (await stream.get_final_message()).stop_reason == "end_turn"

    with talker() as server:
        asyncio.run(run(opened(policy=Policy(window=200_000)), server))
    assert [seen.status for seen in server.asked] == [400, 200]


def test_no_second_rescue(opened: Open) -> None:
    """Where the rescue is refused too, the SDK's error goes up, and no other is tried."""
    message = "prompt is too long: 400000 tokens > 200000 maximum"
    with talker(Rules()) as server, derived(opened(policy=SMALL), server) as client:
        server.fail(400, next=3, message=message)
        for calls_made in (2, 3):
            with pytest.raises(anthropic.BadRequestError, match="too long"):
                client.messages.create(**ARGUMENTS, messages=long_history())
            assert len(server.asked) == calls_made
        client.messages.create(**ARGUMENTS, messages=long_history())
        server.fail(400, message=message)
        client.messages.create(**ARGUMENTS, messages=long_history(35))
    assert [seen.status for seen in server.asked][3:] == [200, 400, 200]


def test_nothing_to_leave_out(opened: Open) -> None:
    """A request that cannot be smaller is not sent again: an error says what takes the room."""
    history = [human("x " * 60_000)]
    with (
        talker() as server,
        derived(opened(policy=Policy(window=200_000)), server) as client,
        pytest.raises(CannotFit, match="smallest view"),
    ):
        client.messages.create(**ARGUMENTS, messages=history)
    assert len(server.asked) == 1


def test_less_room_for_the_answer(opened: Open) -> None:
    """Where the prompt fits and `max_tokens` does not, only that is lowered."""
    history = long_history(15)
    with talker() as server, derived(opened(policy=Policy(window=200_000)), server) as client:
        client.messages.create(**{**ARGUMENTS, "max_tokens": 25_000}, messages=history)
    first, second = server.asked
    assert (first.status, second.status) == (400, 200)
    assert first.messages == second.messages == history
    assert second.body["max_tokens"] + second.prompt_tokens == WINDOW


def test_bound_thinking_that_nobody_knew_of(opened: Open) -> None:
    """Where the provider turns out to bind thinking to its prefix, the void blocks go."""
    policy = Policy(window=WINDOW, bound_thinking=False)
    server = Loopback(Agent(turns=60, thinks=True), Rules(window=WINDOW, bind_thinking=True))
    with server, derived(opened(policy=policy), server) as client:
        agent_loop(client, REQUEST, Workbench())
    refused = [seen for seen in server.asked if seen.status != 200]
    assert refused
    assert all("bound to a different conversation" in str(seen.error) for seen in refused)
    assert len(server.answered) == 61


def test_other_errors_are_the_sdks(opened: Open) -> None:
    """Rate limits, keys and bad requests go up as they are, after one attempt."""
    errors = {401: anthropic.AuthenticationError, 429: anthropic.RateLimitError}
    with talker() as server, derived(opened(policy=SMALL), server) as client:
        for status, error in errors.items():
            server.fail(status, message="prompt is too long: 2 tokens > 1 maximum")
            with pytest.raises(error):
                client.messages.create(**ARGUMENTS, messages=[human()])
    assert len(server.asked) == len(errors)


def test_a_full_window_is_a_reply(opened: Open) -> None:
    """A reply that ended because the window was full is not asked for again."""
    rules = Rules(window=WINDOW, overflow="stop")
    arguments = {**ARGUMENTS, "max_tokens": 28_000, "messages": [human("x " * 6_000)]}
    server = Loopback(lambda _: says("word " * 20_000), rules)
    with server, derived(opened(policy=SMALL), server) as client:
        reply = client.messages.create(**arguments)
    assert reply.stop_reason == "model_context_window_exceeded"
    assert len(server.asked) == 1


# ---- the engine's own tools


def test_the_model_compacts(opened: Open) -> None:
    """In the SDK's runner the model asks for a compaction; the next request has it."""
    steps = [calls(use(f"toolu_{n}", "write", path="a.py")) for n in range(12)]
    bad = calls(use("toolu_x", "compact_context", checkpoint=""))
    good = calls(use("toolu_y", "compact_context", checkpoint="All is read."))

    @beta_tool
    def write(path: str) -> str:
        return f"This is what {path} says now.\n" * 100

    with Loopback(Script([*steps, bad, good, "Done."]), RULES) as server:
        sets = Sets(server)
        session = opened(policy=Policy(window=WINDOW, manual_tool=True), on_compaction=sets)
        with closing(plain_client(server.url)) as client:
            tools: list[Any] = [write]
            arguments = {**ARGUMENTS, "tools": tools, "messages": [human()]}
            assert session.runner(client, **arguments).until_done().stop_reason == "end_turn"
    assert [tool["name"] for tool in server.asked[0].body["tools"]] == [
        "write",
        "compact_context",
    ]
    [refused] = server.asked[13].messages[-1]["content"]
    assert refused["is_error"]
    assert "checkpoint" in str(refused["content"])
    assert sets.rewriting == [14]
    assert legal(server)


def test_async_tools(opened: Open) -> None:
    """The asynchronous runner gets the asynchronous form."""
    session = opened(policy=Policy(manual_tool=True))
    [tool] = session.async_runner_tools
    text = asyncio.run(tool.call({"checkpoint": "All is read."}))
    assert "before your next turn" in text
    assert [one.name for one in session.runner_tools] == [tool.name] == ["compact_context"]


def test_logs_hold_no_content(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    """What is logged speaks of sizes and numbers only."""
    caplog.set_level(logging.DEBUG, "compactor")
    with talker() as server, derived(opened(policy=Policy(window=200_000)), server) as client:
        client.messages.create(**ARGUMENTS, messages=long_history())
    said = "".join(record.getMessage() for record in caplog.records if record.name == "compactor")
    assert said
    assert "login" not in said
    assert "file" not in said
