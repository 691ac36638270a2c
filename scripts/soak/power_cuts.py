"""Take the disk away right behind a promise, and count what its copy has lost.

The work stops itself (SIGSTOP) behind a promise; the image file below the loop mount is the disk at
that moment. Its copy is mounted, which replays the journal, and what was promised is looked for.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compactor.storage import files

from . import work
from .controls import CONTROLS
from .runs import Broken, Outcome

_SIZE = 48 << 20  # bytes of the image
_WIDTH = 40
# Journals commit names and order on their own after some seconds, so some controls may get away.
_MUST_LOSE = ("nothing is synced", "no fdatasync of lanes")


def main() -> int:
    """Run all rounds, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each row")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    reason = _missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    print(f"{'power cut on ext4':<{_WIDTH}} {'rounds':>6} {'promises':>8} {'lost':>6} {'other':>6}")
    failed = False
    rows: dict[str, Broken | None] = {"as it is": None, "nothing is synced": _no_sync, **CONTROLS}
    for level in work.WORK:
        for name, broken in rows.items():
            dice = random.Random(chosen.seed)  # noqa: S311
            each = [_round(level, dice.randint(1, 24), broken) for _ in range(chosen.rounds)]
            lost = sum(outcome.count("lost") for outcome in each)
            other = sum(any(found != "lost" for found in outcome.found) for outcome in each)
            promises = sum(outcome.promises for outcome in each)
            row = f"{level}: {name}"
            print(f"{row:<{_WIDTH}} {len(each):>6} {promises:>8} {lost:>6} {other:>6}", flush=True)
            if broken is None:
                failed |= lost + other > 0
                for text in sorted({found for outcome in each for found in outcome.found}):
                    print(f"  {text[:200]}")
            elif name in _MUST_LOSE:
                failed |= lost == 0
    return 1 if failed else 0


def _missing() -> str | None:
    """Say what a run needs and does not find, None if all is there."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, for loop mounts"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    with tempfile.TemporaryDirectory(prefix="compactor-cut-") as name:
        try:
            with _mounted(_image(Path(name)), Path(name) / "try"):
                return None
        except subprocess.CalledProcessError:
            return "a loop mount is not possible here"


def _no_sync() -> None:
    def nothing(_: int) -> None:
        pass

    for name in ("sync_folder", "sync_file", "sync_data"):
        setattr(files, name, nothing)


def _image(folder: Path) -> Path:
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(_SIZE)
    _call("mkfs.ext4", "-q", "-F", str(image))
    return image


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    # No commit of its own accord while a round runs: only what is synced counts.
    _call("mount", "-o", "loop,commit=300", str(image), str(at))
    try:
        yield at
    finally:
        _call("umount", str(at))


def _call(tool: str, *arguments: str) -> None:
    path = shutil.which(tool)
    assert path is not None  # noqa: S101
    subprocess.run([path, *arguments], check=True, capture_output=True)  # noqa: S603


class _StopLog(work.Log):
    """A log that stops its process right behind the `last`-th promise."""

    last = 0

    def add(self, *fact: object) -> None:
        """Say it, and stop if it was the last."""
        super().add(*fact)
        if fact[0] in {"stored", "viewed", "flushed"}:
            self.last -= 1
            if self.last == 0:
                os.kill(os.getpid(), signal.SIGSTOP)


def _round(level: str, last: int, broken: Broken | None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="compactor-cut-") as name:
        top = Path(name)
        image, copy, log = _image(top), top / "copy", top / "log"
        with _mounted(image, top / "disk") as disk:
            work.prepare(disk)
            os.sync()

            def act() -> None:
                if broken is not None:
                    broken()
                said = _StopLog(log)
                said.last = last
                work.WORK[level](disk, said)

            child = _start(act)
            try:
                os.waitpid(child, os.WUNTRACED)
                shutil.copyfile(image, copy)
            finally:
                _end(child)
        with _mounted(copy, top / "after") as after:
            said = work.Log(log)
            found = work.check(level, after, said, powered=False)
            promises = sum(len(said.facts(word)) for word in ("stored", "viewed", "flushed"))
            return Outcome(hit=True, found=found, promises=promises)


def _start(act: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


if __name__ == "__main__":
    sys.exit(main())
