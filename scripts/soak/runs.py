"""One run: the work in a child under a fault, then the check of what it had promised."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import work
from .disk import Disk
from .tap import Fault, Killed, Tap

Broken = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to; `hit` tells whether the fault happened, `found` what does not hold."""

    hit: bool
    found: list[str] = field(default_factory=list)
    promises: int = 0

    def count(self, word: str) -> int:
        """Count the findings of a kind."""
        return sum(each.startswith(word) for each in self.found)


@contextmanager
def _place() -> Iterator[tuple[Path, work.Log]]:
    # In memory where there is such a place: what a disk would do is modelled here.
    memory = Path("/dev/shm")  # noqa: S108
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compactor-soak-", dir=where) as name:
        folder = Path(name) / "disk"
        folder.mkdir()
        yield folder, work.Log(Path(name) / "log")


def _fork(act: Callable[[], None], log: work.Log, *, kill_after: float | None = None) -> bool:
    """Do something in a child; tell whether it was killed. What it raises goes to the log."""
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - whatever is raised is the finding
            log.add("untyped", f"untyped: {error!r} in {_product_line(error)}")
        finally:
            os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _product_line(error: BaseException) -> str:
    """Name the innermost functions of the product that an error went through."""
    here = Path(__file__).parent
    frames = [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(here)
    ]
    return " > ".join(frames[-4:])


def _outcome(level: str, folder: Path, log: work.Log, *, hit: bool, powered: bool) -> Outcome:
    found = [text for (text,) in log.facts("untyped")]
    if folder.is_dir():
        found += work.check(level, folder, log, powered=powered)
    promises = len(log.facts("stored")) + len(log.facts("viewed")) + len(log.facts("flushed"))
    return Outcome(hit, found, promises)


def counted(level: str) -> dict[str, int]:
    """Return how many calls of each kind the work makes."""
    with _place() as (folder, log):
        work.prepare(folder)

        def act() -> None:
            tap = Tap()
            tap.install()
            work.WORK[level](folder, log)
            log.add("counts", dict(tap.counts))

        _fork(act, log)
        return dict(log.facts("counts")[0][0])


def faulted(level: str, fault: Fault) -> Outcome:
    """Let one system call (or all from it on) fail or kill, while the power stays on."""
    with _place() as (folder, log):
        work.prepare(folder)

        def act() -> None:
            tap = Tap(fault)
            tap.install()
            work.WORK[level](folder, log)
            log.add("hit", tap.hit)

        killed = _fork(act, log)
        hit = killed or [True] in log.facts("hit")
        return _outcome(level, folder, log, hit=hit, powered=True)


def killed_at(level: str, seconds: float) -> Outcome:
    """Kill the work after a time."""
    with _place() as (folder, log):
        work.prepare(folder)
        hit = _fork(lambda: work.WORK[level](folder, log), log, kill_after=seconds)
        return _outcome(level, folder, log, hit=hit, powered=True)


class _Cut(BaseException):
    """The power is off."""


class _CutLog(work.Log):
    """A log that ends the run right behind the `last`-th fact."""

    last = 0

    def add(self, *fact: object) -> None:
        """Say it, and cut the power if it was the last."""
        super().add(*fact)
        self.last -= 1
        if self.last == 0:
            raise _Cut


def power_cut(
    level: str,
    seed: int,
    *,
    fault: Fault | None = None,
    cut: int | Fault | None = None,
    broken: Broken | None = None,
) -> Outcome:
    """Do the work on a disk that forgets what was not synced, and cut the power.

    Args:
        level: which work.
        seed: of the dice that choose what else reached the disk; 0 for nothing else.
        fault: a kill, after which the work goes on in a new process; or a failing call.
        cut: the call before which the power goes (a number of all, or a kill); None: behind a
            fact that the dice choose.
        broken: takes something out of the product, for a control that must lose.

    """
    dice = random.Random(seed)  # noqa: S311
    with _place() as (folder, log):
        work.prepare(folder)
        after = folder.with_name("after")

        def act() -> None:
            off = Fault("any", cut, "kill") if isinstance(cut, int) else cut
            disk = Disk(folder, fault or off)
            disk.install()
            if broken is not None:
                broken()
            said = _CutLog(folder.with_name("log"))
            if cut is None and fault is None:
                said.last = dice.randint(1, 60)
            _through(level, folder, said, disk, dice, again=fault is not None)
            disk.cut(after, dice if seed else None)
            log.add("hit", disk.hit or cut is None)

        _fork(act, log)
        if not after.is_dir():
            return _outcome(level, after, log, hit=False, powered=False)
        return _outcome(level, after, log, hit=[True] in log.facts("hit"), powered=False)


def _through(  # noqa: PLR0913 - what a run consists of
    level: str, folder: Path, said: _CutLog, disk: Disk, dice: random.Random, *, again: bool
) -> None:
    try:
        work.WORK[level](folder, said)
    except _Cut:
        return
    except Killed:
        if not again:
            return
        disk.revive()
        said.last = dice.randint(1, 8)
        try:
            work.WORK[level](folder, said)
        except _Cut:
            return


def traced(level: str, call: str, when: int, how: str, trace: Path | None = None) -> Outcome:
    """Do the work under strace, which kills or refuses at the `when`-th call of the process."""
    with _place() as (folder, log):
        work.prepare(folder)
        action = "signal=SIGKILL" if how == "kill" else f"error={how}"
        inject = ["-e", f"inject={call}:{action}:when={when}"] if when else []
        strace = shutil.which("strace") or "strace"
        command = [
            *(strace, "-f", "-qq", "--seccomp-bpf", "-y", "-o", str(trace or "/dev/null")),
            *("-e", f"trace={call}", *inject, sys.executable, "-m", "soak.work", level),
            *(str(folder), str(folder.with_name("log"))),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(  # noqa: S603
            command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in {0, -signal.SIGKILL, 128 + signal.SIGKILL}:
            log.add("untyped", f"untyped: {done.stderr.strip().splitlines()[-1:]}")
        if trace is not None:
            trace.write_text(trace.read_text().replace(str(folder), "<disk>"))
        return _outcome(level, folder, log, hit=True, powered=True)
