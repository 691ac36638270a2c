"""Measure what the derived client adds to a request of the SDK, on a history of 50 MB.

Plain requests and those of the derived client are sent in turn to a server on this machine that
reads them and gives a short answer; each turn adds an exchange. Printed are the medians, and their
ratio beside its aim.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from anthropic import Anthropic

from compactor import Compactor, Policy
from compactor.policy import PersistPolicy
from compactor.storage import Keys

from .engine_speed import exchange

AIM = 1.2
MODEL = "claude-sonnet-5"
REPLY = orjson.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 3},
    }
)


class Answer(BaseHTTPRequestHandler):
    """Reads a request to its end and answers it, whatever it says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        left = int(self.headers["content-length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(REPLY)))
        self.end_headers()
        self.wfile.write(REPLY)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served() -> Iterator[str]:
    """Yield the address of a running server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the history")
    parser.add_argument("--check", action="store_true", help="exit 1 if the aim is missed")
    parser.add_argument("--turns", type=int, default=9)
    chosen = parser.parse_args()
    size = 1_000 if chosen.quick else 10_000
    history: list[Any] = [{"role": "user", "content": "Fix the failing test."}]
    while len(history) < size:
        history += exchange(len(history) // 2)
    nothing = PersistPolicy(batch_chars=10**9, item_chars=10**9, always_chars=10**9, tools={})
    policy = Policy(window=10**9, max_bytes=10**12, persist=nothing)
    times: dict[str, list[float]] = {"plain": [], "derived": []}
    with served() as url, tempfile.TemporaryDirectory() as folder:
        keys = Keys(os.urandom(32), Path(folder) / "state")
        plain = Anthropic(api_key="none", base_url=url, max_retries=0)
        with Compactor.open(folder, "bench", policy=policy, keys=keys) as session:
            clients = {"plain": plain, "derived": session.client(plain)}
            for turn in range(chosen.turns + 1):
                history += exchange(len(history) // 2)
                both = list(clients.items())
                for name, client in both if turn % 2 else both[::-1]:
                    start = time.perf_counter()
                    client.messages.create(model=MODEL, max_tokens=1_000, messages=history)
                    if turn:  # the first one takes everything in
                        times[name].append(time.perf_counter() - start)
        plain.close()
    middle = {name: statistics.median(values) for name, values in times.items()}
    ratio = middle["derived"] / middle["plain"]
    megabytes = len(orjson.dumps(history)) / 1e6
    print(f"history of {len(history)} messages: {megabytes:.1f} MB")
    print(f"plain request:   {middle['plain'] * 1e3:8.1f} ms")
    print(f"derived client:  {middle['derived'] * 1e3:8.1f} ms")
    print(f"ratio:           {ratio:8.2f}   <= {AIM}{'' if ratio <= AIM else '  MISSED'}")
    return 1 if chosen.check and ratio > AIM else 0


if __name__ == "__main__":
    sys.exit(main())
