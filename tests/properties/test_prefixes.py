"""Real sessions, request by request: what every view keeps, and what it may not change."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from compactor import MaskPolicy, PersistPolicy, Policy
from compactor.sources import Recording, load

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = ROOT.parent / "shared" / "sessions"
DEMO = ROOT / "scripts" / "demo-session.jsonl"
CLAUDE, PI = SESSIONS / "claude_code", SESSIONS / "pi_session"
SAMPLES = 5  # points of each session at which it is restarted and everything is read back

SHORT = Policy(
    persist=PersistPolicy(always_chars=6_000, item_chars=3_000, batch_chars=12_000),
    mask=MaskPolicy(keep_recent=3, keep_least=1),
    target=0.4,
)
TOOLS = [{"name": "read_transcript", "description": "", "input_schema": {"type": "object"}}]

# A part of a file's name, the window in tokens, the last request, the policy.
RUNS: list[tuple[str, int, int | None, Policy]] = [
    ("demo-session", 200_000, 160, Policy()),
    ("demo-session", 30_000, None, Policy()),
    ("demo-session", 6_000, 150, SHORT),
    ("transcripts_fa812bfe-b295-4cca-9c2f-fdf01028cb46.", 20_000, None, Policy()),
    ("transcripts_fa812bfe-b295-4cca-9c2f-fdf01028cb46.", 8_000, None, SHORT),
    ("transcripts_4d5611e5-241a-462a-8d15-5122611a9569.", 50_000, None, Policy()),
    ("transcripts_ae4a77f8-aedd-4bc1-888f-c94edc91af04.", 20_000, None, SHORT),
    ("subagents_agent-a2898e3", 5_000, None, Policy()),
    ("subagents_agent-afc096d", 4_000, None, SHORT),
    ("before-compaction", 50_000, 200, Policy()),
    ("before-compaction", 8_000, 120, SHORT),
]


def _runs() -> list[Any]:
    return [
        pytest.param(run, id=f"{run[0].strip('.')[-20:]}-{run[1]}{'-short' * (run[3] is SHORT)}")
        for run in RUNS
    ]


def _file(name: str) -> Path:
    found = [path for path in (*CLAUDE.glob("*.jsonl"), *PI.glob("*.jsonl")) if name in path.name]
    if name in DEMO.name:
        return DEMO
    if not found:
        pytest.skip(f"no recorded session {name} beside the repository")
    return found[0]


@cache
def _load(path: Path) -> Recording:
    return load(path)


@pytest.mark.parametrize("run", _runs())
def test_every_prefix_keeps_the_promises(
    run: tuple[str, int, int | None, Policy], watch: Any, tmp_path: Path
) -> None:
    """Each view is legal, extends the one before, reads back, and outlives a restart."""
    name, window, until, policy = run
    recording = _load(_file(name))
    points = recording.requests[:until]
    chosen = random.Random(window).sample(range(len(points)), min(SAMPLES, len(points)))
    watched = watch(tmp_path / "w", policy.but(window=window), max_tokens=500, tools=TOOLS)
    history: list[dict[str, Any]] = []
    for number, point in enumerate(points):
        history += recording.messages[len(history) : point.length]
        view = watched.view(history)
        if number in {*chosen, len(points) - 1}:
            watched.again(history, view)
            watched.restarted(history, view)
            watched.reads()
        elif view.decisions:
            watched.again(history, view)
    original, left = sum(len(m["content"]) for m in history), view.stats.original_tokens
    assert watched.sets or left < policy.trigger * window or not original
    watched.session.close()
    watched.rebuilt()
    with watched.transcript() as transcript:
        assert transcript.messages() == history


@pytest.mark.parametrize("window", [6_000, 30_000])
def test_a_session_closed_and_reopened_all_the_time(
    window: int, watch: Any, tmp_path: Path
) -> None:
    """Reopened at every third request, a session sends what one that stayed open sends."""
    recording = _load(DEMO)
    policy = SHORT.but(window=window)
    stayed, changing = watch(tmp_path / "a", policy), watch(tmp_path / "b", policy)
    history: list[dict[str, Any]] = []
    for number, point in enumerate(recording.requests[:90]):
        history += recording.messages[len(history) : point.length]
        one, other = stayed.view(history), changing.view(list(history))
        assert one.messages == other.messages
        assert one.decisions == other.decisions
        if number % 3 == 0:
            changing.reopen()
    assert stayed.sets
    changing.session.close()
    changing.rebuilt()
    stayed.session.close()


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.4])
def test_real_usage_moves_the_trigger_and_no_promise(
    factor: float, watch: Any, tmp_path: Path
) -> None:
    """Anchored on usage that differs from the estimate, views keep the same promises."""
    recording = _load(DEMO)
    watched = watch(tmp_path / "w", Policy(window=20_000))
    for point in recording.requests[:90]:
        history = recording.messages[: point.length]
        view = watched.view(history)
        watched.again(history, view)
        if not view.decisions:
            watched.session.observe({"input_tokens": int(factor * view.stats.view_tokens)})
    assert watched.sets
    watched.reads()
    watched.session.close()
    watched.rebuilt()
