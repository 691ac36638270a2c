"""Measure the vault in one run and print each figure beside its target; exit 1 if one is missed.

Times are the best of a few turns, each measurement has a process of its own, and
files are as warm as the turns before left them.
"""

import argparse
import math
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from compactor.storage import Keys, Kind, Vault
from compactor.storage.blobs import FRAME
from compactor.storage.compression import Compressor
from compactor.storage.sealing import seal

DEMO = Path(__file__).resolve().parents[1] / "demo-session.jsonl"
MB = 1_000_000
KEY, CONTEXT = bytes(32), b"bench"
RANGE, LINES = 4096, 50
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, how it is printed, and the bounds that it ought to keep."""

    what: str
    value: float
    form: str
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bounds."""
        return self.at_least <= self.value <= self.at_most

    def __str__(self) -> str:
        """Print it as a line of the table."""
        bounds = [(">=", self.at_least), ("<=", self.at_most)]
        target = [f"{sign} {self.form.format(at)}" for sign, at in bounds if math.isfinite(at)]
        verdict = "" if self.met else "  MISSED"
        return f"{self.what:<56} {self.form.format(self.value):>10}  {''.join(target)}{verdict}"


def main() -> int:
    """Measure all, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=100, help="MB of the blob read in parts")
    parser.add_argument("--write", type=int, default=500, help="MB of the blob written")
    parser.add_argument("--pages", type=int, default=1074, help="MB of the blob read by pages")
    parser.add_argument("--turns", type=int, default=200, help="turns appended")
    parser.add_argument("--small", action="store_true", help="as 16, 32 and 64 MB, and 50 turns")
    chosen = parser.parse_args()
    sizes = (chosen.parts, chosen.write, chosen.pages, chosen.turns)
    if chosen.small:
        sizes = (16, 32, 64, 50)
    steps: list[tuple[Callable[[Path, int], list[Row]], int]] = list(
        zip((parts, write, pages, turns), sizes, strict=True)
    )
    missed = 0
    print(f"{'what':<56} {'measured':>10}  target")
    for step, size in steps:
        with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
            for row in _alone(step, Path(folder), size):
                print(row, flush=True)
                missed += not row.met
    return 1 if missed else 0


def parts(folder: Path, size: int) -> list[Row]:
    """Read a range of bytes and one of lines out of a blob, and all of it; audit the session."""
    _alone(_store, folder, size)
    name = (folder / "name").read_text()
    chance = random.Random(1)  # noqa: S311
    with _vault(folder).read("one") as reader:
        with reader.blob(name) as blob:
            last, last_line = blob.size - RANGE, blob.lines - LINES

        def whole() -> None:
            with reader.blob(name) as blob:
                sum(map(len, blob.pages()))

        def some_bytes() -> None:
            with reader.blob(name) as blob:
                blob.read(chance.randrange(last), RANGE)

        def some_lines() -> None:
            with reader.blob(name) as blob:
                blob.read_lines(chance.randrange(last_line), LINES)

        seconds = min(_times(whole, 3))
        rows = [Row(f"{size} MB blob read whole", size / seconds, "{:.0f} MB/s")]
        for what, part in ((f"{RANGE} bytes", some_bytes), (f"{LINES} lines", some_lines)):
            each = statistics.median(_times(part, 300))
            rows.append(Row(f"{what} of it, with opening the blob", each * 1e6, "{:.0f} µs"))
            # A part costs the same whatever the blob's size: the target is for 100 MB.
            rows.append(Row("  whole against that", seconds / each, "{:.0f} x", at_least=size))
        seconds = min(_times(reader.audit, 2))
        rows.append(Row("its session audited", size / seconds, "{:.0f} MB/s"))
    return rows


def write(folder: Path, size: int) -> list[Row]:
    """Append one large string, against compressing and sealing its bytes in memory."""
    text = _text(size * MB)
    vault = _vault(folder)
    before = _peak()
    appended, synced, in_memory = [], [], []
    growth = 0.0
    for turn in range(3):
        session = f"turn{turn}"
        with vault.write(session) as writer:
            start = time.perf_counter()
            writer.append([(Kind.MESSAGES, text)])
            appended.append(time.perf_counter() - start)
            growth = growth or (_peak() - before) / (size * MB)
            start = time.perf_counter()
            writer.sync()
            synced.append(time.perf_counter() - start)
        in_memory += _times(partial(_in_memory, text), 1)
    speed, ideal = size / min(appended), size / min(in_memory)
    (file, *_) = (folder / "vault/s/turn0/blobs").iterdir()
    share = file.stat().st_size / (size * MB)
    return [
        Row(f"{size} MB string appended", speed, "{:.0f} MB/s"),
        Row("  zstd 3 in the same frames, sealed in memory", ideal, "{:.0f} MB/s"),
        Row("  share of that speed", speed / ideal, "{:.2f}", at_least=0.7),
        Row("  memory for it, above the string, in its sizes", growth, "{:.2f}", at_most=1.2),
        Row("  its sync", min(synced), "{:.2f} s"),
        Row("  the blob's size, in the string's", share, "{:.2f}"),
    ]


def pages(folder: Path, size: int) -> list[Row]:
    """Read a blob from end to end, and look how much memory that took."""
    _alone(_store, folder, size)
    before = _peak()
    with _vault(folder).read("one") as reader, reader.blob((folder / "name").read_text()) as blob:
        start = time.perf_counter()
        total = sum(map(len, blob.pages()))
        seconds = time.perf_counter() - start
    grown = (_peak() - before) / MB
    return [
        Row(f"{total / MB:.0f} MB blob read by pages", size / seconds, "{:.0f} MB/s"),
        Row("  memory for it, at the peak", grown, "{:.1f} MB", at_most=150),
    ]


def turns(folder: Path, count: int) -> list[Row]:
    """Append turns, each new messages and a request: without a sync, with one, with a blob."""
    text = _text(10 * MB)
    request = (Kind.REQUEST, {"at": 3, "chain": text[:43], "marks": [[0, 0], [7, 1]]})
    decided = (Kind.SET, {"at": 3, "reason": "arrival", "decisions": [{"note": text[:600]}]})
    chance = random.Random(1)  # noqa: S311
    rows = []
    with _vault(folder).write("one") as writer:

        def turn(size: int, *, sync: bool) -> None:
            start = chance.randrange(len(text) - size)
            messages = (Kind.MESSAGES, {"messages": [{"content": text[start : start + size]}]})
            writer.append([messages, decided, request] if sync else [messages, request])
            if sync:
                writer.sync()

        for what, size, sync in (
            ("a turn without a set, 2 KB", 2000, False),
            ("a turn without a set, a new 50 KB blob", 50_000, False),
            ("a turn with a set (one sync), 2 KB", 2000, True),
            ("a turn with a set (three syncs), a new 50 KB blob", 50_000, True),
        ):
            seconds = statistics.median(_times(partial(turn, size, sync=sync), count))
            rows.append(Row(what, seconds * 1e6, "{:.0f} µs"))
    return rows


def _store(folder: Path, size: int) -> None:
    """Write a blob of `size` MB, and its name beside the vault."""
    vault = _vault(folder)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, _text(size * MB))])
        writer.sync()
    with vault.read("one") as reader:
        (frame,) = reader.frames()
        (folder / "name").write_text(reader.blobs(frame)[0].name)


def _in_memory(text: str) -> bytes:
    content = text.encode()
    compressor = Compressor()
    view = memoryview(content)
    frames = [compressor.frame(view[at : at + FRAME]) for at in range(0, len(content), FRAME)]
    return seal(KEY, CONTEXT, b"".join(frames))


def _text(size: int) -> str:
    """Make text of tool results and JSON; what repeats lies further apart than a frame."""
    demo = DEMO.read_text().replace("\\n", "\n")
    demo = demo.encode("ascii", "replace").decode()
    count, rest = divmod(size, len(demo))
    return "".join([*[demo] * count, demo[:rest]])  # its memory once, not twice


def _vault(folder: Path) -> Vault:
    return Vault.create(folder / "vault", Keys(KEY, folder / "state"))


def _alone(function: Callable[[Path, int], T], folder: Path, size: int) -> T:
    """Call it in a new process: a peak of memory is that of a whole process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, folder, size).result()


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _times(function: Callable[[], object], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
