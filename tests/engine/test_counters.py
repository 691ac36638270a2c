"""Counters: the SDK against a server on the loopback, and an offline tokenizer."""

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from compactor.counters import OfflineCounter, SdkCounter, TokenCounter

if TYPE_CHECKING:  # two seconds, which only the tests that use it should take
    import anthropic

MESSAGES: list[Any] = [{"role": "user", "content": "Hello."}]


class Provider(ThreadingHTTPServer):
    """Answers each request with `status` and `answer`, and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.answer: Any = {"input_tokens": 14}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.betas: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        provider = self.server
        assert isinstance(provider, Provider)
        body = self.rfile.read(int(self.headers["content-length"]))
        provider.asked.append((self.path, json.loads(body)))
        provider.betas.append(self.headers["anthropic-beta"])
        answer = json.dumps(provider.answer).encode()
        self.send_response(provider.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def client(provider: Provider) -> Iterator["anthropic.Anthropic"]:
    import anthropic

    address = f"http://127.0.0.1:{provider.server_port}"
    with anthropic.Anthropic(api_key="none", base_url=address, max_retries=0) as made:
        yield made


def test_the_provider_counts(provider: Provider, client: "anthropic.Anthropic") -> None:
    """System prompt and tools go with the messages; what does not count stays here."""
    counter: TokenCounter = SdkCounter(client)
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    counted = counter.count(
        MESSAGES, model="claude-opus-5", system="Be brief.", tools=tools, max_tokens=5, stream=True
    )
    assert counted == 14
    (path, body), *more = provider.asked
    assert path == "/v1/messages/count_tokens"
    assert body == {
        "messages": MESSAGES,
        "model": "claude-opus-5",
        "system": "Be brief.",
        "tools": tools,
    }
    assert not more


def test_betas_go_along(provider: Provider, client: "anthropic.Anthropic") -> None:
    """A request with beta headers is counted with them."""
    betas = ["context-1m-2025-08-07"]
    assert SdkCounter(client).count(MESSAGES, model="claude-sonnet-4-5", betas=betas) == 14
    assert provider.betas[0] is not None
    assert provider.betas[0].startswith(betas[0])


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_refusal_is_no_count(
    provider: Provider, client: "anthropic.Anthropic", status: int
) -> None:
    """The estimate stands then."""
    provider.status, provider.answer = status, {"type": "error", "error": {"type": "x"}}
    assert SdkCounter(client).count(MESSAGES, model="claude-opus-5") is None


def test_an_answer_without_a_number_is_no_count(
    provider: Provider, client: "anthropic.Anthropic"
) -> None:
    """A gateway may answer anything."""
    provider.answer = {"total": 3}
    assert SdkCounter(client).count(MESSAGES, model="claude-opus-5") is None


def test_no_provider_is_no_count() -> None:
    """Nobody listens at that port, and a request without a model is none."""
    import anthropic

    with anthropic.Anthropic(
        api_key="none", base_url="http://127.0.0.1:1", max_retries=0
    ) as client:
        assert SdkCounter(client).count(MESSAGES, model="claude-opus-5") is None
        assert SdkCounter(client).count(MESSAGES) is None


def test_a_refusal_is_logged_without_content(
    provider: Provider, client: "anthropic.Anthropic", caplog: pytest.LogCaptureFixture
) -> None:
    """By the error's name alone: providers quote the prompt."""
    provider.status, provider.answer = 400, {"error": {"message": "Hello."}}
    SdkCounter(client).count(MESSAGES, model="claude-opus-5")
    assert caplog.messages == ["counting tokens: BadRequestError"]


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a tokenizer in the place of ctok: a token a word, in a frame of 7."""
    versions: list[str] = []

    def token_count(text: str, version: str) -> int:
        versions.append(version)
        return 7 + len(text.split())

    module = ModuleType("ctok")
    module.token_count = token_count  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ctok", module)
    return versions


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"type": "text", "text": "one two three"}, 33),
        ({"type": "thinking", "thinking": "one two", "signature": "s"}, 32),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {"c": "one two"}}, 32),
        ({"type": "tool_result", "tool_use_id": "a", "content": "one two"}, 32),
        ({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}, 1_630),
        ({"type": "document", "source": {"type": "base64", "data": "eA=="}}, 3_030),
        ({"type": "unheard_of", "x": 1}, 31),
    ],
)
@pytest.mark.usefixtures("words")
def test_an_offline_count_goes_by_blocks(block: dict[str, Any], tokens: int) -> None:
    """The tokenizer's count of the text without its frame, and 30 a block; media as estimated."""
    assert OfflineCounter().count([{"role": "user", "content": [block]}]) == tokens


@pytest.mark.usefixtures("words")
def test_an_offline_count_holds_system_and_tools() -> None:
    """They are part of the prompt."""
    tools = [{"name": "read", "description": "a b"}]
    assert OfflineCounter().count(MESSAGES, system="x y", tools=tools) == 31 + 32 + 32


def test_the_model_picks_the_tokenizer(words: list[str]) -> None:
    """Claude 4.7 and later cut finer."""
    OfflineCounter().count(MESSAGES, model="claude-opus-4-6")
    assert set(words) == {"3.0"}
    words.clear()
    OfflineCounter().count(MESSAGES, model="claude-sonnet-5")
    assert set(words) == {"4.7"}


def test_without_the_package_there_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "ctok", None)
    assert OfflineCounter().count(MESSAGES) is None
