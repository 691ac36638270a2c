"""Measure the engine in one run and print each figure beside its aim.

Times of `view()` are compared with one `orjson.dumps` of the same history, taken in turn with
them; each is the median of the turns, and each turn adds one exchange. All is recorded to a vault
on the disk, system prompt and tools included, and each measurement has a process of its own.
"""

import argparse
import functools
import math
import random
import resource
import statistics
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import orjson

from compactor import Compactor, Policy
from compactor.messages import JsonObject
from compactor.policy import PersistPolicy
from compactor.replay import replay
from compactor.sources import UnknownFormat, load
from compactor.storage import Keys, Kind, Vault
from compactor.storage.compression import Compressor
from compactor.tokens import estimate_bytes

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts" / "demo-session.jsonl"
SESSIONS = ROOT.parent / "shared" / "sessions" / "claude_code"
FOLDER, KEY, MB = ".transcripts", bytes(32), 1_000_000
FRAME, LONG = 64 * 1024, 16 * 1024  # of a blob, and the string that becomes one
MEAN, LARGEST = 8_000, 300_000  # characters of a result
WINDOW = 300  # tokens a message where sets are in force: most results are masked then
AIMED = 10_000  # messages of a history for which the aims are meant
STEPS = 40  # views on the way to the whole history
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, how it is printed, and the most that it ought to be."""

    what: str
    value: float
    form: str
    at_most: float = math.inf

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value <= self.at_most

    def __str__(self) -> str:
        """Print it as a line of the table."""
        aim = f"<= {self._shown(self.at_most)}" if math.isfinite(self.at_most) else ""
        missed = "" if self.met else "  MISSED"
        return f"{self.what:<64} {self._shown(self.value):>11}  {aim}{missed}"

    def _shown(self, value: float) -> str:
        return f"1/{1 / value:.1f}" if self.form == "1/x" else self.form.format(value)


def main() -> int:
    """Measure all, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of it, few turns, times without aims"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if an aim is missed")
    parser.add_argument("--json", action="store_true", help="a list of objects, for programs")
    parser.add_argument("--only", nargs="*", choices=("view", "memory", "vault"), default=[])
    parser.add_argument("--messages", type=int, help="of the history (10000, quick 1000)")
    parser.add_argument("--turns", type=int, help="of each case (31, quick 5)")
    parser.add_argument("--folder", type=Path, help="where the vaults are made: a real disk")
    parser.add_argument("--sessions", type=Path, default=SESSIONS, help="recorded sessions")
    chosen = parser.parse_args()
    size = chosen.messages or (1_000 if chosen.quick else AIMED)
    turns = chosen.turns or (5 if chosen.quick else 31)
    steps: list[tuple[str, Callable[[Path], list[Row]]]] = [
        ("view", partial(case, size=size, turns=turns, masked=masked))
        for masked in (False, True)
        for case in (kept, rebuilt, reloaded)
    ]
    steps.append(("memory", partial(memory, size=size // (2 if chosen.quick else 1))))
    longest = _longest(chosen.sessions, 0 if chosen.quick else 4)
    steps += [("vault", partial(vault, session=path)) for path in [DEMO, *longest]]
    rows: list[Row] = []
    for name, step in steps:
        if name in (chosen.only or (name,)):
            with tempfile.TemporaryDirectory(prefix="compactor-", dir=chosen.folder) as folder:
                found = _alone(step, Path(folder))
            rows += found
            if not chosen.json:
                print(*found, sep="\n", flush=True)
    if chosen.json:
        made = [{**asdict(row), "met": row.met} for row in rows]
        sys.stdout.write(orjson.dumps(made).decode() + "\n")
    return 1 if chosen.check and not all(row.met for row in rows) else 0


@dataclass(slots=True)
class Loop:
    """An agent's loop: its history and its session."""

    session: Compactor
    history: list[JsonObject] = field(default_factory=list)
    used: int = 0
    masked: int = 0
    over: bool = False

    def grow(self) -> None:
        """Add the next exchange; its first message answers the last view."""
        said, told = exchange(len(self.history) // 2)
        if self.history:
            usage = {"input_tokens": self.used, "output_tokens": 300}
            self.session.observe({"content": said["content"], "usage": usage})
        else:
            self.history.append({"role": "user", "content": _text("prose")[:600]})
        self.history += [said, told]

    def view(self, messages: list[Any]) -> float:
        """Return the seconds of a view."""
        start = time.perf_counter()
        view = self.session.view(messages, **_request())
        seconds = time.perf_counter() - start
        if view.degraded:
            raise RuntimeError(view.degraded)
        self.over = view.over_budget
        self.used, self.masked = view.stats.view_tokens + _overhead(), view.stats.masked
        return seconds


def kept(folder: Path, size: int, turns: int, *, masked: bool) -> list[Row]:
    """Give the caller's own list, and a new list of its messages, long and short."""
    long = _loop(folder, "long", size, masked=masked)
    short = _loop(folder, "short", max(size // 10, 200), masked=masked)
    times: dict[str, list[float]] = {"dumps": [], "own": [], "new list": [], "short": []}
    for _ in range(turns):
        long.grow()
        times["own"].append(long.view(long.history))
        times["dumps"].append(_seconds(long.history))
        long.grow()
        times["new list"].append(long.view([*long.history]))
        short.grow()
        times["short"].append(short.view(short.history))
    middle = {name: statistics.median(values) for name, values in times.items()}
    state = _state(long)
    return [
        Row(f"history of {len(long.history)} messages", _size(long.history) / MB, "{:.1f} MB"),
        Row("  one orjson.dumps of it", middle["dumps"] * 1e3, "{:.1f} ms"),
        Row(
            f"view of the own list, {state}", middle["own"] / middle["dumps"], "1/x", _aim(size, 50)
        ),
        Row(
            f"  against its time at {len(short.history)} messages",
            middle["own"] / middle["short"],
            "{:.2f}",
            2,
        ),
        Row(
            f"view of a new list of the same messages, {state}",
            middle["new list"] / middle["dumps"],
            "1/x",
            _aim(size, 15),
        ),
    ]


def rebuilt(folder: Path, size: int, turns: int, *, masked: bool) -> list[Row]:
    """Give new messages, made each time, that share their content or only their strings."""
    rows = []
    cases = (("around the same content", _shallow, 15), ("with the same strings", _deep, 2))
    for what, make, aim in cases:
        value, state = _anew(folder / make.__name__, size, turns, make, masked=masked)
        rows.append(Row(f"view of new messages {what}, {state}", value, "1/x", _aim(size, aim)))
    return rows


def reloaded(folder: Path, size: int, turns: int, *, masked: bool) -> list[Row]:
    """Give what orjson reads back, each time."""
    value, state = _anew(folder, size, turns, _through_json, masked=masked)
    return [Row(f"view of messages reloaded from JSON, {state}", value, "1/x", _aim(size, 2))]


def _anew(
    folder: Path, size: int, turns: int, make: Callable[[Any], Any], *, masked: bool
) -> tuple[float, str]:
    folder.mkdir(exist_ok=True)
    loop = _loop(folder, "anew", size, masked=masked)
    dumped, viewed = [], []
    loop.view(make(loop.history))
    for _ in range(turns):
        dumped.append(_seconds(loop.history))
        loop.grow()
        viewed.append(loop.view(make(loop.history)))
    return statistics.median(viewed) / statistics.median(dumped), _state(loop)


def memory(folder: Path, size: int) -> list[Row]:
    """Load a session and replay it; its peak is that of this process."""
    file = folder / "session.jsonl"
    history = _alone(partial(_write, size=size), file)
    before = _peak()
    replay(load(file), window=WINDOW * size, workspace=folder, keys=_keys(folder), release=True)
    return [
        Row(f"replay of a history of {size} messages", history / MB, "{:.1f} MB"),
        Row("  memory before it", before / MB, "{:.0f} MB"),
        Row("  memory at its peak", _peak() / MB, "{:.0f} MB", 2 * history / MB + 100),
    ]


def vault(folder: Path, session: Path) -> list[Row]:
    """Record a session; compare what it takes with its content in zstd, and an allowance."""
    recording = load(session)
    report = replay(recording, window=200_000, workspace=folder, keys=_keys(folder))
    compressor, seen, content, start = Compressor(), set[str](), 0, 0
    for point in recording.requests:
        rest, strings = _split(recording.messages[start : point.length])
        content += len(compressor.frame(orjson.dumps(rest)))
        for text in dict.fromkeys(text for text in strings if text not in seen):
            data = text.encode("utf-8", "surrogatepass")
            content += sum(
                len(compressor.frame(data[at : at + FRAME])) for at in range(0, len(data), FRAME)
            )
            seen.add(text)
        start = point.length
    persisted = report.decisions["persist"]
    bound = content * 1.1 + 350 * report.requests + 1_500 * persisted
    kinds: Counter[str] = Counter()
    with Vault.open(folder / FOLDER, _keys(folder)).read(report.session) as reader:
        for frame in reader.frames():
            kinds[frame.kind.name.lower()] += frame.size
    files = [f for f in (folder / FOLDER / "s" / report.session).rglob("*") if f.is_file()]
    blobs = [f.stat().st_size for f in files if f.suffix == ".blob"]
    rest_bytes = report.vault_bytes - sum(kinds.values()) - sum(blobs)
    kb = "{:.1f} KB"
    return [
        Row(f"vault of {session.stem[-40:]}", report.vault_bytes / 1e3, kb, bound / 1e3),
        Row("  its history", report.history_bytes / 1e3, kb),
        Row("  the same content in zstd", content / 1e3, kb),
        Row(f"  350 bytes for each of {report.requests} requests", 0.35 * report.requests, kb),
        Row(f"  1.5 KB for each of {persisted} persisted results", 1.5 * persisted, kb),
        Row(f"  stored: {len(blobs)} blobs", sum(blobs) / 1e3, kb),
        *(
            Row(f"  stored: {kind.name.lower()} records", kinds[kind.name.lower()] / 1e3, kb)
            for kind in Kind
            if kinds[kind.name.lower()]
        ),
        Row(f"  (masked: {report.decisions['mask']}) all else", rest_bytes / 1e3, kb),
    ]


# The history: what an agent that works on a repository says, calls and is told.


def exchange(number: int) -> tuple[JsonObject, JsonObject]:
    """Return a message with calls, and that with their results; for a number always the same."""
    chance = random.Random(number)  # noqa: S311
    said: list[JsonObject] = [{"type": "text", "text": _slice(chance, "prose", 100, 700)}]
    told: list[JsonObject] = []
    for part in range(1 + (chance.random() < 0.15)):  # noqa: PLR2004
        name, kind, given = _call(chance)
        call = f"toolu_{number:06}_{part}"
        # Half of them below a third of the mean, one in a hundred ten times as large.
        chars = min(int(chance.lognormvariate(math.log(MEAN) - 1.125, 1.5)) + 20, LARGEST)
        result: JsonObject = {"type": "tool_result", "tool_use_id": call}
        result["content"] = _slice(chance, kind, chars, chars)
        if name == "Bash":
            result["is_error"] = chance.random() < 0.1  # noqa: PLR2004
        said.append({"type": "tool_use", "id": call, "name": name, "input": given})
        told.append(result)
    if number % 60 == 59:  # noqa: PLR2004
        told.append({"type": "text", "text": _slice(chance, "prose", 80, 400)})
    return {"role": "assistant", "content": said}, {"role": "user", "content": told}


def _call(chance: random.Random) -> tuple[str, str, JsonObject]:
    path = f"src/{chance.choice(_words())}/{chance.choice(_words())}.py"
    edit = {name: _slice(chance, "code", 50, 900) for name in ("old_string", "new_string")}
    calls: list[tuple[str, str, JsonObject]] = [
        ("Read", "code", {"file_path": path, "offset": chance.randrange(900), "limit": 200}),
        ("Bash", "logs", {"command": f"pytest -q {path}", "timeout": 120_000}),
        ("Grep", "json", {"pattern": chance.choice(_words()), "path": path, "-n": True}),
        ("Edit", "prose", {"file_path": path, **edit}),
    ]
    return chance.choice(calls)


def _slice(chance: random.Random, kind: str, least: int, most: int) -> str:
    text, size = _text(kind), chance.randint(least, most)
    start = chance.randrange(len(text) - size)
    return text[start : start + size]


@functools.cache
def _words() -> list[str]:
    chance = random.Random(1)  # noqa: S311
    return ["".join(chance.choices(string.ascii_lowercase, k=3 + i % 8)) for i in range(2_000)]


@functools.cache
def _text(kind: str) -> str:
    """Make half a million characters of a kind."""
    chance, words, lines, size = random.Random(kind), _words(), [], 0  # noqa: S311
    while size < MB // 2:
        a, b, c, d = chance.choices(words, k=4)
        number = chance.randrange(10**6)
        line = {
            "prose": f"The {a} of {b} {'is' if number % 20 else '✓'} {c}, see {d}.",
            "code": f"    {a}_{b} = self.{c}({d}, limit={number})  # {a}",
            "logs": f"2025-06-{number % 30 + 1:02} 12:{number % 60:02} INFO {a}.{b}: {c} {number}",
            "json": f'{{"path": "src/{a}/{b}.py", "line": {number}, "text": "{c} {d}"}}',
        }[kind]
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)


@functools.cache
def _request() -> JsonObject:
    """Return system prompt and tools of the size that coding agents send."""
    text, number = _text("prose"), {"type": "integer"}
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": number}}
    tools = [
        {"name": f"tool_{i}", "description": text[i * 1500 :][:1500], "input_schema": schema}
        for i in range(20)
    ]
    system = [{"type": "text", "text": text[-12_000:]}]
    return {"system": system, "tools": tools, "model": "claude-sonnet-4-5", "max_tokens": 8_000}


@functools.cache
def _overhead() -> int:
    return sum(estimate_bytes(_size(_request()[slot])) for slot in ("system", "tools"))


def _loop(folder: Path, name: str, size: int, *, masked: bool) -> Loop:
    """Bring a loop to a history of this size; its sets are taken on the way."""
    nothing = PersistPolicy(batch_chars=10**9, item_chars=10**9, always_chars=10**9, tools={})
    window = WINDOW * size + _overhead() + _request()["max_tokens"]
    policy = (
        Policy(window=window, max_bytes=10**12)
        if masked
        else Policy(window=10**9, max_bytes=10**12, persist=nothing)
    )
    session = Compactor.open(folder / FOLDER, name, policy=policy, keys=_keys(folder))
    loop = Loop(session)
    for step in range(1, STEPS + 1):
        while len(loop.history) < size * step // STEPS:
            loop.grow()
        loop.view(loop.history)
    return loop


def _state(loop: Loop) -> str:
    state = f"{loop.masked} masked" if loop.masked else "nothing left out"
    return f"{state}, over budget" if loop.over else state


def _aim(size: int, part: int) -> float:
    """Return an aim in parts of one orjson.dumps: a short history's is less than a turn costs."""
    return 1 / part if size >= AIMED else math.inf


def _shallow(history: list[JsonObject]) -> list[JsonObject]:
    return [{**message} for message in history]


def _deep(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep(item) for key, item in value.items()}
    return [*map(_deep, value)] if isinstance(value, list) else value


def _through_json(value: object) -> Any:
    return orjson.loads(orjson.dumps(value))


def _seconds(value: object) -> float:
    start = time.perf_counter()
    orjson.dumps(value)
    return time.perf_counter() - start


def _size(value: object) -> int:
    return len(orjson.dumps(value))


def _write(file: Path, size: int) -> int:
    """Write a history as lines of JSON, and return its bytes."""
    first: JsonObject = {"role": "user", "content": _text("prose")[:600]}
    pairs = (exchange(number) for number in range(size // 2))
    lines = [orjson.dumps(message) for message in (first, *(m for pair in pairs for m in pair))]
    return file.write_bytes(b"\n".join(lines))


def _split(value: Any) -> tuple[Any, list[str]]:
    """Part a value into what stays in a record and the strings that become blobs."""
    found: list[str] = []

    def without(part: Any) -> Any:
        if isinstance(part, str) and len(part.encode("utf-8", "surrogatepass")) > LONG:
            found.append(part)
            return None
        if isinstance(part, dict):
            return {key: without(item) for key, item in part.items()}
        return [*map(without, part)] if isinstance(part, list) else part

    return without(value), found


def _longest(folder: Path, count: int) -> list[Path]:
    """Return the recorded sessions with the most messages."""
    return [path for path, _ in sorted(_lengths(folder), key=lambda pair: -pair[1])[:count]]


def _lengths(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(folder.glob("*.jsonl")):
        try:
            yield path, len(load(path).messages)
        except UnknownFormat:
            continue


def _keys(folder: Path) -> Keys:
    return Keys(KEY, folder / "state")


def _alone(function: Callable[[Path], T], path: Path) -> T:
    """Call it in a new process: a peak of memory is that of a whole process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, path).result()


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main())
