"""A model of a disk that keeps only what was synced, and of all else whatever it likes.

It follows the calls that go through a `Tap`. At the power cut it writes down one of the states that
POSIX allows: bytes of a file count after its fsync or fdatasync, names of a folder after the
folder's fsync, a failed fsync drops what it should have stored, and a later one does not bring it
back. Between two syncs each name and each page may have reached the disk or not.
"""

import os
import random
import stat
from collections.abc import Callable  # noqa: TC003
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .tap import Call, Fault, Killed, Tap

_PAGE = 4096


@dataclass(slots=True, eq=False)
class File:
    """Its bytes now, and those that are sure."""

    data: bytes = b""
    durable: bytes = b""
    lost: list[tuple[int, int]] = field(default_factory=list)

    def sync(self) -> None:
        """Make sure what no failed sync has dropped."""
        kept = bytearray(self.data)
        for start, end in self.lost:
            kept[start:end] = bytes(end - start)
        self.durable = bytes(kept)

    def drop(self) -> None:
        """Let a sync fail: what it should have stored is clean in the cache and on no disk."""
        self.lost.append((len(self.durable), len(self.data)))

    def after(self, dice: random.Random | None) -> bytes:
        """Return what a power cut leaves; without `dice`, no more than must be."""
        sure, rest = self.durable, self.data[len(self.durable) :]
        for start, end in self.lost:
            start, end = start - len(sure), end - len(sure)  # noqa: PLW2901
            if end > 0:
                rest = rest[: max(start, 0)] + bytes(end - max(start, 0)) + rest[end:]
        if dice is None or not rest:
            return sure
        choice = dice.randrange(5)
        if choice == 0:
            return sure
        if choice == 1:
            return sure + rest
        if choice == 2:  # noqa: PLR2004
            return sure + bytes(len(rest))
        if choice == 3:  # noqa: PLR2004
            return sure + rest[: dice.randrange(len(rest) + 1)]
        pages = [rest[i : i + _PAGE] for i in range(0, len(rest), _PAGE)]
        return sure + b"".join(p if dice.random() < 0.5 else bytes(len(p)) for p in pages)  # noqa: PLR2004


@dataclass(slots=True, eq=False)
class Folder:
    """Its names now, those that are sure, and all that each name has stood for since."""

    now: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)
    since: dict[str, list["Node | None"]] = field(default_factory=dict)

    def put(self, name: str, node: "Node | None") -> None:
        """Let a name stand for something, or for nothing."""
        self.since.setdefault(name, []).append(node)
        if node is None:
            self.now.pop(name, None)
        else:
            self.now[name] = node

    def sync(self) -> None:
        """Make the names sure that were given since the last sync."""
        for name in self.since:
            if name in self.now:
                self.durable[name] = self.now[name]
            else:
                self.durable.pop(name, None)
        self.since.clear()

    def drop(self) -> None:
        """Let a sync fail: what was given since stays in the cache and never reaches the disk."""
        self.since.clear()

    def after(self, dice: random.Random | None) -> dict[str, "Node"]:
        """Return the names that a power cut leaves."""
        left = dict(self.durable)
        for name, states in self.since.items() if dice else ():
            assert dice is not None  # noqa: S101
            chosen = dice.choice([self.durable.get(name), *states])
            if chosen is None:
                left.pop(name, None)
            else:
                left[name] = chosen
        return left


Node = File | Folder


class Disk(Tap):
    """A tap that knows what a power cut would leave of the folder `top`."""

    def __init__(self, top: Path, fault: Fault | None = None) -> None:
        """Take what stands in `top` now as durable; a kill raises `Killed` and the tap is dead."""
        super().__init__(fault, self._stop)
        self._nodes: dict[tuple[int, int], Node] = {}
        self._dead = False
        self.top = self._learn(top)

    def revive(self) -> None:
        """Start the next process: faults are over, the cache is as it was."""
        self._dead, self.fault = False, None

    def cut(self, target: Path, dice: random.Random | None = None) -> None:
        """Write down what a power cut now would leave."""
        self._lay_down(self.top, target, dice, {})

    def done(self, name: str, args: tuple[Any, ...], named: Any, call: Call) -> Any:
        """Make the call and note what it changes."""
        if self._dead:
            if name == "close":
                return call()
            raise Killed
        result = call()
        listen: Callable[..., None] | None = getattr(self, f"_on_{name}", None)
        if listen is not None:
            listen(result, *args, **named)
        return result

    def failed(self, name: str, args: tuple[Any, ...]) -> None:
        """Let a sync that fails drop what it should have stored."""
        if self._dead:
            raise Killed
        if name in {"fsync", "fdatasync"}:
            self._node(args[0]).drop()

    def _stop(self) -> None:
        self._dead, self.fault = True, None
        raise Killed

    def _on_open(self, fd: int, name: str, flags: int, *_: int, dir_fd: int | None = None) -> None:
        if flags & os.O_CREAT and dir_fd is not None:
            found = os.fstat(fd)
            self._nodes[found.st_dev, found.st_ino] = made = File()
            self._folder(dir_fd).put(name, made)

    def _on_write(self, _: int, fd: int, __: object) -> None:
        node = self._node(fd)
        assert isinstance(node, File)  # noqa: S101
        node.data = os.pread(fd, os.fstat(fd).st_size, 0)

    def _on_pwrite(self, _: int, fd: int, *__: object) -> None:
        self._on_write(0, fd, None)

    def _on_mkdir(self, _: None, name: str, *__: int, dir_fd: int) -> None:
        found = os.stat(name, dir_fd=dir_fd)
        self._nodes[found.st_dev, found.st_ino] = made = Folder()
        self._folder(dir_fd).put(name, made)

    def _on_link(
        self, _: None, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int, **__: Any
    ) -> None:
        self._folder(dst_dir_fd).put(new, self._folder(src_dir_fd).now[old])

    def _on_replace(self, _: None, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        node = self._folder(src_dir_fd).now[old]
        self._folder(dst_dir_fd).put(new, node)
        self._folder(src_dir_fd).put(old, None)

    def _on_unlink(self, _: None, name: str, *, dir_fd: int) -> None:
        self._folder(dir_fd).put(name, None)

    def _on_fsync(self, _: None, fd: int) -> None:
        self._node(fd).sync()

    _on_fdatasync = _on_fsync

    def _node(self, fd: int) -> Node:
        found = os.fstat(fd)
        return self._nodes[found.st_dev, found.st_ino]

    def _folder(self, fd: int) -> Folder:
        node = self._node(fd)
        assert isinstance(node, Folder)  # noqa: S101
        return node

    def _learn(self, path: Path) -> Node:
        found = path.lstat()
        node: Node
        if stat.S_ISDIR(found.st_mode):
            inside = {each.name: self._learn(each) for each in path.iterdir()}
            node = Folder(inside, dict(inside))
        else:
            data = path.read_bytes()
            node = File(data, data)
        self._nodes[found.st_dev, found.st_ino] = node
        return node

    def _lay_down(
        self, node: Node, target: Path, dice: random.Random | None, written: dict[File, Path]
    ) -> None:
        if isinstance(node, Folder):
            target.mkdir(mode=0o700)
            for name, each in sorted(node.after(dice).items()):
                self._lay_down(each, target / name, dice, written)
        elif node in written:
            target.hardlink_to(written[node])
        else:
            written[node] = target
            target.touch(mode=0o600)
            target.write_bytes(node.after(dice))
