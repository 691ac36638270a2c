"""The sockets: HTTP/1.1 with connections that stay open, JSON bodies and event streams."""

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import orjson

from .faults import Fault, Kind
from .shapes import Json, Refused


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes back over the wire: a body, or the events of a stream."""

    status: int
    body: bytes
    events: tuple[Json, ...] | None = None
    retry_after: float | None = None
    fault: Fault | None = None


# Method, target, headers (lower case) and body of a request to what goes back.
Handle = Callable[[str, str, Mapping[str, str], bytes], Outgoing]


class Listener(ThreadingHTTPServer):
    """Joins its threads at the end, which needs its connections closed first."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in tuple(self._open):
            _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name above
        """Keep quiet."""

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        handle = cast("Listener", self.server).handle
        answer = handle(self.command, self.path, headers, raw)
        if answer.status == 0:
            self._hang_up()
        elif answer.events is not None:
            self._stream(answer)
        else:
            self._whole(answer)

    def _whole(self, answer: Outgoing) -> None:
        kind = answer.fault.kind if answer.fault else None
        body = b'{"id": "msg_' if kind is Kind.MALFORMED else answer.body
        self._head(answer, "application/json", ("Content-Length", str(len(body))))
        if kind is Kind.CUT:
            self.wfile.write(body[: len(body) // 2])
            self._hang_up()
            return
        self.wfile.write(body)

    def _stream(self, answer: Outgoing) -> None:
        fault = answer.fault
        kind = fault.kind if fault else None
        events: Iterable[Json] = answer.events or ()
        if fault and kind in (Kind.CUT, Kind.EVENT):
            events = itertools.islice(events, fault.after_events)
        self._head(answer, "text/event-stream; charset=utf-8", ("Transfer-Encoding", "chunked"))
        for event in events:
            self._event(event)
        if fault and kind is Kind.EVENT:
            error = Refused(status=529, kind=fault.error)
            self._event({"type": "error", "error": {"type": error.kind, "message": error.message}})
        if kind is Kind.MALFORMED:
            self._chunk(b'event: content_block_delta\ndata: {"type": "content_bl\n\n')
        if kind is Kind.CUT:
            self._hang_up()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, answer: Outgoing, kind: str, length: tuple[str, str]) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", kind)
        self.send_header(*length)
        self.send_header("request-id", "req_loopback")
        if answer.retry_after is not None:
            self.send_header("retry-after", f"{answer.retry_after:g}")
        self.end_headers()

    def _event(self, event: Json) -> None:
        self._chunk(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)))

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _hang_up(self) -> None:
        self.close_connection = True
        _shut(self.connection)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
