"""A process that restarts at every request sends what one that never does would have sent."""

import os
from pathlib import Path

import orjson
import pytest

from compactor import Compactor, Keys, Policy
from compactor.sources import load

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = ROOT.parent / "shared" / "sessions"
# Folder, pattern, window, and how many requests.
CASES: dict[str, tuple[Path, str, int, int]] = {
    "demo": (ROOT / "scripts", "demo-session.jsonl", 20_000, 60),
    "main": (SESSIONS, "claude_code/*4d5611e5-241a-462a-8d15-5122611a9569.jsonl", 20_000, 60),
    "agent": (SESSIONS, "claude_code/*agent-afc096d.jsonl", 20_000, 40),
    "pi": (SESSIONS, "pi_session/*.jsonl", 20_000, 60),
}


@pytest.mark.parametrize("name", CASES)
def test_a_restart_at_every_point(name: str, tmp_path: Path) -> None:
    """Byte for byte, whether the session was closed each time or not at all."""
    folder, pattern, window, requests = CASES[name]
    found = list(folder.glob(pattern))
    if not found:
        pytest.skip("the recorded sessions are not beside the repository")
    recording = load(found[0])
    policy, keys = Policy(window=window), Keys(os.urandom(32), tmp_path / "state")
    compacted = 0
    with Compactor.open(tmp_path, "steady", policy=policy, keys=keys) as steady:
        for point in recording.requests[:requests]:
            history = recording.messages[: point.length]
            expected = steady.view(history)
            with Compactor.open(tmp_path, "restarted", policy=policy, keys=keys) as restarted:
                view = restarted.view(history)
            assert orjson.dumps(view.messages) == orjson.dumps(expected.messages)
            assert view.rewrites_from == expected.rewrites_from
            compacted += bool(view.decisions)
    assert compacted
