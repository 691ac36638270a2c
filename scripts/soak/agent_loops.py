"""Run an agent against a Messages API on this machine, through the derived client.

The same agent in every way that the SDK offers: plainly, with thinking that is bound to what was
sent before it, and with a window that is believed to be four times as large as it is; always with a
summarizer that reaches nobody. The server is as strict as the
provider's; what it saw is compared with a run in a window that is large enough. Exit 1 where
anything differs.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise, product
from pathlib import Path

from anthropic import Anthropic

from compactor import Compactor, Keys, Policy, Transcript
from compactor.summarize.claude import ClaudeSummarizer
from tests.client.test_client import REQUEST, RUNS, Run, Sets
from tests.loopback.brains import Agent
from tests.loopback.loops import Workbench, agent_loop, plain_client
from tests.loopback.server import Loopback, Recorded
from tests.loopback.shapes import Rules

OK = 200
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


def main() -> int:
    """Run all, print a row each, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--window", type=int, default=50_000)
    chosen = parser.parse_args()
    whole = Workbench()
    agent = Agent(turns=chosen.turns, thinks=True)
    with (
        Loopback(agent, Rules(window=10**9)) as server,
        closing(plain_client(server.url)) as client,
    ):
        agent_loop(client, REQUEST, whole)
    print(
        f"{'run':<18} mode     requests refused rescued rewritten  sets  largest "
        "cached  effects request rebuilt"
    )
    failed = 0
    for run, mode in product(RUNS, ("free", "bound", "blind")):
        failed += _row(run, whole, chosen.turns, chosen.window, mode)
    return 1 if failed else 0


def _row(run: Run, whole: Workbench, turns: int, window: int, mode: str) -> bool:
    rules = Rules(window=window, bind_thinking=mode == "bound")
    believed = 4 * window if mode == "blind" else window
    policy = Policy(window=believed, bound_thinking=mode == "bound")
    bench = Workbench()
    nobody = Anthropic(api_key="none", base_url=NOWHERE, max_retries=0)
    with (
        tempfile.TemporaryDirectory() as name,
        Loopback(Agent(turns=turns, thinks=True), rules) as server,
        closing(nobody),
    ):
        folder, sets = Path(name), Sets(server)
        keys = Keys(os.urandom(32), folder / "state")
        summarizer = ClaudeSummarizer(nobody, "claude-haiku-5-5")
        with Compactor.open(
            folder, "loop", policy=policy, keys=keys, on_compaction=sets, summarizer=summarizer
        ) as session:
            run(server, session, bench)
        with Transcript.open(folder, "loop", keys) as transcript:
            rebuilt = all(request.whole for request in transcript.requests())
    asked = server.asked
    refused = [number for number, seen in enumerate(asked) if seen.status != OK]
    broken = [n for n, seen in enumerate(asked) if seen.shared and seen.shared.broken_at]
    checks = {
        "in a row": not any(b - a == 1 for a, b in pairwise(refused)),
        "rescued": all(n + 1 < len(asked) and asked[n + 1].status == OK for n in refused),
        "requests": len(asked) == turns + 1 + len(refused),
        "broken": broken == [n for n in sets.rewriting if n not in refused],
        "effects": (bench.edits, bench.ran) == (whole.edits, whole.ran),
        "request": all(_has_request(seen) for seen in asked),
        "rebuilt": rebuilt,
    }
    cached = _cached(asked)
    print(
        f"{run.__name__[4:]:<18} {mode:<8} {len(asked):>8} "
        f"{len(refused):>7} {len(refused):>7} {len(broken):>9} {len(sets.rewriting):>5} "
        f"{max(seen.prompt_tokens for seen in asked):>8} {cached:>6.1%} "
        f"{_word(checks['effects']):>8} {_word(checks['request']):>7} {_word(rebuilt):>7}",
        flush=True,
    )
    for what, holds in checks.items():
        if not holds:
            print(f"        FAILED: {what}")
    return not all(checks.values())


def _has_request(seen: Recorded) -> bool:
    """Tell whether the human's words stand in a request, once, as they were written."""
    found = 0
    for message in seen.messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += sum(block.get("type") == "text" and block["text"] == REQUEST for block in blocks)
    return found == 1


def _cached(asked: Sequence[Recorded]) -> float:
    """Return the share of all prompt tokens that the request before had sent already."""
    shared = sum(seen.shared.tokens for seen in asked if seen.shared)
    return shared / max(sum(seen.prompt_tokens for seen in asked), 1)


def _word(holds: bool) -> str:  # noqa: FBT001
    return "same" if holds else "OTHER"


if __name__ == "__main__":
    sys.exit(main())
