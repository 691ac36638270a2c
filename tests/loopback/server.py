"""A Messages API on 127.0.0.1 that the real SDK talks to over real HTTP.

    with Loopback(Script([says("Hello.")])) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="test")

Every request is kept in `Loopback.requests`, before its answer goes out.
"""

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import orjson

from . import prompts, replies
from .connections import Listener, Outgoing
from .faults import Fault, Kind
from .prompts import Piece, Shared
from .provider import Brain, Provider
from .shapes import Json, Refused, Rules, error_body, refuse

_MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request and what became of it.

    `size` is the length of the body in bytes; `status` is 0 where the
    connection was closed instead of an answer. `shared` compares the prompt
    with that of the last answered request, None where there is none.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: Any
    size: int
    status: int
    error: str | None = None
    reply: Json | None = None
    shared: Shared | None = None
    fault: Fault | None = None

    @property
    def messages(self) -> list[Json]:
        return list(self.body["messages"])

    @property
    def usage(self) -> Json:
        return dict(self.reply["usage"]) if self.reply else {}

    @property
    def prompt_tokens(self) -> int:
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return sum(int(self.usage.get(name, 0)) for name in names)

    @property
    def betas(self) -> list[str]:
        return _betas(self.headers)


class Loopback:
    """The server: a context manager that leaves no socket and no thread behind.

    `clock` is the provider's time in seconds, which tests move with `advance`.
    """

    def __init__(self, brain: Brain, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.clock = 0.0
        self.requests: list[Recorded] = []
        self.provider = Provider(brain, self.rules, lambda: self.clock)
        self._faults: deque[Fault] = deque()
        self._resumed = threading.Event()
        self._broken: list[Exception] = []
        self._pieces: list[Piece] | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._http = Listener(self.handle)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._broken:
            raise self._broken[0]

    @property
    def url(self) -> str:
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def answered(self) -> list[Recorded]:
        """The requests for a message that got one."""
        return [seen for seen in self.requests if seen.path == _MESSAGES and seen.reply]

    @property
    def asked(self) -> list[Recorded]:
        """The requests for a message, answered or not."""
        return [seen for seen in self.requests if seen.path == _MESSAGES]

    def advance(self, seconds: float) -> None:
        """Move the clock of the prompt cache."""
        self.clock += seconds

    def fail(
        self,
        status: int = 529,
        *,
        next: int = 1,  # noqa: A002 - it reads `fail(529, next=3)`
        retry_after: float | None = None,
        message: str = "",
        error: str = "",
    ) -> None:
        """Refuse the next requests for a message with a status."""
        self._queue(
            next,
            Fault(
                kind=Kind.STATUS,
                status=status,
                error=error,
                message=message,
                retry_after=retry_after,
            ),
        )

    def cut_stream(self, after_events: int = 3, *, next: int = 1) -> None:  # noqa: A002
        """Close the connection in the middle of the next answers."""
        self._queue(next, Fault(kind=Kind.CUT, after_events=after_events))

    def error_event(
        self,
        after_events: int = 3,
        *,
        next: int = 1,  # noqa: A002
        error: str = "overloaded_error",
    ) -> None:
        """Put an `error` event into the next streams; an answer that is no stream becomes a 529."""
        self._queue(next, Fault(kind=Kind.EVENT, after_events=after_events, error=error))

    def malformed(self, *, next: int = 1) -> None:  # noqa: A002
        """Answer the next requests with a body that is no JSON."""
        self._queue(next, Fault(kind=Kind.MALFORMED))

    def drop(self, *, next: int = 1) -> None:  # noqa: A002
        """Close the connection of the next requests without an answer."""
        self._queue(next, Fault(kind=Kind.DROP))

    def stall(self, *, next: int = 1) -> None:  # noqa: A002
        """Keep the next requests waiting until `resume` (or the end), then answer them."""
        self._resumed.clear()
        self._queue(next, Fault(kind=Kind.STALL))

    def resume(self) -> None:
        """Let stalled requests go on."""
        self._resumed.set()

    def close(self) -> None:
        """Close the listening socket and all connections, and wait for their threads."""
        self._resumed.set()
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()
        self._thread.join()

    def handle(self, method: str, target: str, headers: Mapping[str, str], raw: bytes) -> Outgoing:
        """Answer one request; called by the connections' threads."""
        path, query = _parsed(target)
        fault = self._next_fault(path)
        if fault and fault.kind is Kind.STALL:
            self._resumed.wait()
            fault = None
        with self._lock:
            seen = {
                "method": method,
                "path": path,
                "query": query,
                "headers": headers,
                "body": None,
                "size": len(raw),
            }
            request_id = f"req_loopback_{next(self._numbers):06d}"
            try:
                seen["body"] = _body(raw, self.rules)
                return self._outcome(seen, fault)
            except Refused as refused:
                self._record(seen, status=refused.status, error=refused.message, fault=fault)
                body = error_body(refused, request_id)
                after = fault.retry_after if fault else None
                return Outgoing(refused.status, orjson.dumps(body), retry_after=after)
            except Exception as error:  # noqa: BLE001 - it is raised again at the end of the test
                self._broken.append(error)
                self._record(seen, status=400, error=repr(error), fault=fault)
                broken = Refused(f"the loopback broke: {error!r}", kind="api_error")
                body = error_body(broken, request_id)
                return Outgoing(400, orjson.dumps(body))

    def _outcome(self, seen: dict[str, Any], fault: Fault | None) -> Outgoing:
        _check_headers(seen["headers"])
        if fault and fault.kind is Kind.DROP:
            self._record(seen, status=0, fault=fault)
            return Outgoing(0, b"", fault=fault)
        if fault and fault.kind is Kind.STATUS:
            raise Refused(fault.message, status=fault.status, kind=fault.error)
        return self._answer(seen, fault)

    def _answer(self, seen: dict[str, Any], fault: Fault | None) -> Outgoing:
        method, path, body = seen["method"], seen["path"], seen["body"]
        betas = _betas(seen["headers"])
        match method, path:
            case "POST", "/v1/messages":
                return self._message(seen, betas, fault)
            case "POST", "/v1/messages/count_tokens":
                answer = self.provider.count_tokens(body, betas)
            case "POST", "/v1/messages/batches":
                answer = self.provider.batch(body)
            case "GET", name if name.startswith("/v1/models/"):
                answer = self.provider.model(name.removeprefix("/v1/models/"))
            case _:
                raise Refused(status=404)
        self._record(seen, status=200)
        return Outgoing(200, orjson.dumps(answer))

    def _message(self, seen: dict[str, Any], betas: list[str], fault: Fault | None) -> Outgoing:
        request = seen["body"]
        answer = self.provider.create(request, betas)
        streamed = bool(request.get("stream"))
        if fault and fault.kind is Kind.EVENT and not streamed:
            raise Refused(status=529)
        now = list(answer.pieces)
        shared = None if self._pieces is None else prompts.shared(self._pieces, now)
        self._pieces = now
        self._record(seen, status=200, reply=answer.body, shared=shared, fault=fault)
        events = tuple(replies.events(answer.body)) if streamed else None
        return Outgoing(200, orjson.dumps(answer.body), events, fault=fault)

    def _record(self, seen: dict[str, Any], **outcome: Any) -> None:
        self.requests.append(Recorded(**seen, **outcome))

    def _queue(self, number: int, fault: Fault) -> None:
        with self._lock:
            self._faults.extend([fault] * number)

    def _next_fault(self, path: str) -> Fault | None:
        with self._lock:
            return self._faults.popleft() if path == _MESSAGES and self._faults else None


def _parsed(target: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(target)
    return parts.path, parse_qs(parts.query)


def _body(raw: bytes, rules: Rules) -> Any:
    if len(raw) > rules.max_body:
        raise Refused(status=413)
    try:
        return orjson.loads(raw) if raw else None
    except orjson.JSONDecodeError as error:
        refuse(f"The request body is not valid JSON: {error}")


def _check_headers(headers: Mapping[str, str]) -> None:
    if not headers.get("x-api-key") and not headers.get("authorization"):
        raise Refused(status=401)
    if "anthropic-version" not in headers:
        refuse("anthropic-version: header is required")


def _betas(headers: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in headers.get("anthropic-beta", "").split(",") if name.strip()]
