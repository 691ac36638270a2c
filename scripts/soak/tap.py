"""Stand between `compactor.storage` and the system: count its calls, and let one fail.

The module `os` is replaced inside the modules of that package (`files` makes nearly all calls).
"""

import errno
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import compactor.storage

_PACKAGE: Final = compactor.storage.__name__
# A call of `os` to the kind of system call that it makes.
KINDS: Final = {
    "open": "open",
    "write": "write",
    "pwrite": "write",
    "fsync": "fsync",
    "fdatasync": "fdatasync",
    "link": "link",
    "replace": "rename",
    "rename": "rename",
    "unlink": "unlink",
    "mkdir": "mkdir",
    "close": "close",
    "pread": "read",
}
Call = Callable[[], Any]


class Killed(BaseException):
    """The process ends here, as far as the program under test can tell."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of the `at`-th call of a kind (from 1; "any": of all), or of all from it on.

    `how`: "kill" (before the call), "torn" (a write takes a half, then the kill), "short" (a write
    takes a half and says so), or the name of an errno.
    """

    kind: str
    at: int
    how: str
    sticky: bool = False

    def hits(self, kind: str, counts: Counter[str]) -> bool:
        """Tell whether the present call is meant."""
        if self.kind not in {kind, "any"}:
            return False
        count = counts[kind] if self.kind == kind else counts.total()
        return count == self.at or (self.sticky and count > self.at)


class Tap:
    """Takes the place of the module `os` in the storage package."""

    def __init__(self, fault: Fault | None = None, kill: Callable[[], None] | None = None) -> None:
        """Let `fault` happen; `kill` ends the process (by SIGKILL if it is not given)."""
        self.counts: Counter[str] = Counter()
        self.fault = fault
        self.hit = False
        self._kill = kill or _die

    def install(self) -> None:
        """Put it in place, for the rest of this process."""
        for name, module in list(sys.modules.items()):
            if name.startswith(_PACKAGE) and getattr(module, "os", None) is os:
                module.__dict__["os"] = self

    def __getattr__(self, name: str) -> Any:
        """Return what `os` has, with the counted calls wrapped."""
        real = getattr(os, name)
        return partial(self._call, name, real) if name in KINDS else real

    def _call(self, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        kind = KINDS[name]
        self.counts[kind] += 1
        if self.fault is None or not self.fault.hits(kind, self.counts):
            return self.done(name, args, named, partial(real, *args, **named))
        self.hit = True
        return self._fail(self.fault.how, name, real, args, named)

    def _fail(
        self, how: str, name: str, real: Callable[..., Any], args: tuple[Any, ...], named: Any
    ) -> Any:
        if how == "kill":
            self._kill()
        if how in {"short", "torn"}:
            fd, data = args[0], memoryview(args[1])
            half = data[: max(len(data) // 2, 1)]
            took = self.done(name, (fd, half), named, partial(real, fd, half, **named))
            if how == "torn":
                self._kill()
            return took
        if name == "close":
            real(*args, **named)  # Linux has closed it even where it reports an error
        self.failed(name, args)
        code = getattr(errno, how)
        raise OSError(code, os.strerror(code))

    def done(self, name: str, args: tuple[Any, ...], named: Any, call: Call) -> Any:
        """Make a call that is to succeed; a model of the disk listens here."""
        del name, args, named
        return call()

    def failed(self, name: str, args: tuple[Any, ...]) -> None:
        """Hear of a call that was not made."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
