"""Whoever writes into or beside a vault: nothing of theirs is followed, believed or waited for."""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from compactor.storage import Damaged, Keys, Kind, StorageError, UnsafePath, Vault, WrongKey, files
from compactor.storage.blobs import pack, unpack
from compactor.storage.compression import expand
from compactor.storage.frames import FIRST_FRAME, HEAD_SIZE, HEADER_SIZE, Head
from compactor.storage.records import MAX_BODY, decode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGE = "some content of a blob\n" * 3_000
LINUX = sys.platform == "linux"
MIB = 1 << 20


@contextlib.contextmanager
def soon(seconds: float) -> Iterator[None]:
    """Fail what hangs."""

    def late(*_: object) -> None:
        message = "it hangs"
        raise AssertionError(message)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def find(top: Path, name: str) -> Path:
    return next(path for path in top.rglob("*") if path.name.endswith(name))


def put(path: Path, how: str, target: Path) -> None:
    """Put something odd in the place of a file; links lead to `target`."""
    path.unlink()
    if how == "fifo":
        os.mkfifo(path, 0o600)
    elif how == "folder":
        path.mkdir(mode=0o700)
    elif how == "socket":
        # By its short name: the path of a socket is limited to some 100 bytes.
        with socket.socket(socket.AF_UNIX) as end, contextlib.chdir(path.parent):
            end.bind(path.name)
    elif how == "device":
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: it never ends
    elif how == "hard link":
        path.hardlink_to(target)
    else:
        path.symlink_to(target)


KINDS = [
    "symbolic link",
    "hard link",
    "fifo",
    "folder",
    "socket",
    pytest.param("device", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
]


def read_all(vault: Vault, session: str = "one") -> list[Any]:
    with vault.read(session) as reader:
        return [reader.value(frame) for frame in reader.frames()]


def write_one(vault: Vault, value: object, session: str = "one") -> None:
    with vault.write(session) as writer:
        writer.append([(Kind.MESSAGES, value)])
        writer.sync()


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("what", ["000001.lane", ".blob", "lock", "STORE.json", ".slot"])
def test_nothing_odd_is_followed_by_any_accessor(  # noqa: PLR0913, PLR0917 - fixtures
    vault: Vault, keys: Keys, tmp_path: Path, write: Callable[..., None], what: str, how: str
) -> None:
    """`open`, `create`, `sessions`, `exists`, `read`, `write`: a typed error or what was written.

    The file behind a link stays as it is, and nobody waits.
    """
    write(LARGE)
    path = find(tmp_path, what)
    target = tmp_path / "target"
    target.write_bytes(path.read_bytes())
    target.chmod(0o600)
    before = target.read_bytes()
    put(path, how, target)
    doors: list[Callable[[], object]] = [
        lambda: Vault.open(vault.root, keys),
        lambda: Vault.create(vault.root, keys),
        vault.sessions,
        lambda: vault.exists("one"),
        lambda: read_all(vault),
        lambda: write_one(vault, LARGE),
    ]
    refused = 0
    with soon(20):
        for door in doors:
            try:
                found = door()
            except StorageError:
                refused += 1
            else:
                assert found != []
    assert refused
    assert target.read_bytes() == before
    assert path.name != "lock" or not stat.S_ISREG(path.lstat().st_mode) or how == "hard link"


@pytest.mark.parametrize("how", KINDS)
def test_an_odd_key_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The host key in the state folder; it is not made anew either."""
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    for name in ("COMPACTOR_KEY", "COMPACTOR_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    Keys.default()
    path, target = tmp_path / "state/host.key", tmp_path / "target"
    target.write_bytes(path.read_bytes())
    target.chmod(0o600)
    put(path, how, target)
    with soon(10), pytest.raises(UnsafePath):
        Keys.default()


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("what", ["000001.lane", ".blob"])
def test_a_file_that_turns_odd_under_an_open_reader(
    vault: Vault, tmp_path: Path, write: Callable[..., None], what: str, how: str
) -> None:
    """Each access looks again."""
    write(LARGE)
    with vault.read("one") as reader:
        (frame,) = reader.frames()
        path = find(tmp_path, what)
        target = tmp_path / "target"
        target.write_bytes(path.read_bytes())
        target.chmod(0o600)
        put(path, how, target)
        with soon(10), pytest.raises(UnsafePath):
            reader.value(frame)


@pytest.mark.parametrize("name", [".gitignore", "STORE.json", "s", "lock", "blobs", "000001.lane"])
def test_what_stands_there_before_a_vault_is_made_is_not_written_through(
    root: Path, keys: Keys, tmp_path: Path, name: str
) -> None:
    """Dangling links where the vault's own files are about to come: nothing is made behind them."""
    root.parent.mkdir()
    inside = root / "s" / "one" if name in {"lock", "blobs", "000001.lane"} else root
    for folder in (root, root / "s", root / "s" / "one"):
        if inside.is_relative_to(folder):
            folder.mkdir(mode=0o700)
    target = tmp_path / "target"
    (inside / name).symlink_to(target)
    with contextlib.suppress(StorageError):
        write_one(Vault.create(root, keys), LARGE)
    assert not target.exists()
    assert (inside / name).is_symlink()


def test_a_folder_inside_the_vault_that_leads_out_is_refused(
    vault: Vault, root: Path, write: Callable[..., None], tmp_path: Path
) -> None:
    """F65: also to a folder of the same content, and also under an open writer."""
    write(LARGE)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, 1)])
        outside = tmp_path / "outside"
        (root / "s/one").rename(outside)
        (root / "s/one").symlink_to(outside)
        with pytest.raises(StorageError):
            writer.sync()
        before = sorted(outside.rglob("*"))
        with pytest.raises(StorageError):
            writer.renew()
    with pytest.raises(UnsafePath):
        read_all(vault)
    assert set(outside.rglob("*")) <= set(before)


def test_a_lane_that_was_replayed_is_not_read_twice(
    vault: Vault, write: Callable[..., None], folder: Path
) -> None:
    """A copy under the next number is another lane, moved here."""
    write("a", "b")
    shutil.copy(folder / "000001.lane", folder / "000002.lane")
    with vault.read("one") as reader:
        frames = list(reader.frames())
        assert [reader.value(frame) for frame in frames[:2]] == ["a", "b"]
        for frame in frames[2:]:
            with pytest.raises(Damaged, match="moved"):
                reader.value(frame)


def test_swapped_lanes_do_not_open(vault: Vault, write: Callable[..., None], folder: Path) -> None:
    """Each is bound to its number; nothing of either is believed."""
    write("a")
    write("b")
    first, second = (folder / f"00000{n}.lane" for n in (1, 2))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with vault.read("one") as reader:
        for frame in reader.frames():
            with pytest.raises(Damaged):
                reader.value(frame)


def test_frames_of_two_lanes_do_not_mix(
    vault: Vault, write: Callable[..., None], folder: Path
) -> None:
    """The right number in the wrong lane does not open, even under the lane's own header."""
    write("a", "b")
    write("c", "d")
    first, second = (folder / f"00000{n}.lane" for n in (1, 2))
    second.write_bytes(second.read_bytes()[:FIRST_FRAME] + first.read_bytes()[FIRST_FRAME:])
    with vault.read("one") as reader:
        for frame in reader.frames():
            if frame.place.lane == 2:
                with pytest.raises(Damaged):
                    reader.value(frame)


def test_slots_of_another_vault_do_not_open(
    vault: Vault, keys: Keys, write: Callable[..., None], tmp_path: Path
) -> None:
    """The same host, the same session name."""
    write("x")
    other = Vault.create(tmp_path / "other", keys)
    write_one(other, "y")
    mine, theirs = (keys.state / "slots" / each.id / "one.slot" for each in (vault, other))
    mine.write_bytes(theirs.read_bytes())
    with pytest.raises(WrongKey):
        vault.read("one")
    with pytest.raises(WrongKey):
        vault.write("one")


EXCHANGE = 2  # of renameat2(2): two names change places in one step
HERE = -100  # AT_FDCWD


def swap_without_end(one: Path, other: Path) -> NoReturn:
    """Let two names change places until this process is killed."""
    rename = ctypes.CDLL(None).renameat2
    names = os.fsencode(one), os.fsencode(other)
    while rename(HERE, names[0], HERE, names[1], EXCHANGE) == 0:
        pass
    os._exit(1)


@contextlib.contextmanager
def swapped(folder: Path, outside: Path) -> Iterator[None]:
    """Let a folder be itself and a link that leads out, by turns, in another process."""
    link = folder.with_name("link")
    link.symlink_to(outside)
    child = os.fork()
    if child == 0:
        try:
            swap_without_end(folder, link)
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "nothing was swapped"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


needs_exchange = pytest.mark.skipif(not LINUX, reason="needs renameat2")


@needs_exchange
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("plain", [False, True], ids=["ours", "control"])
def test_a_folder_swapped_for_a_link_while_it_is_read(
    vault: Vault, write: Callable[..., None], tmp_path: Path, folder: Path, *, plain: bool
) -> None:
    """About a second of it: nothing behind the link is read; plain `open` reads it."""
    write("inside")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "000001.lane").write_bytes(b"outside")
    (outside / "000001.lane").chmod(0o600)
    escapes = 0

    def ours() -> None:
        nonlocal escapes
        with contextlib.suppress(StorageError):
            escapes += read_all(vault) != ["inside"]

    def control() -> None:
        nonlocal escapes
        with contextlib.suppress(FileNotFoundError):
            escapes += (folder / "000001.lane").read_bytes() == b"outside"

    acts, end = 0, time.monotonic() + 1
    with swapped(folder, outside):
        while time.monotonic() < end:
            control() if plain else ours()
            acts += 1
    assert acts > 20
    assert (escapes > 0) == plain


@needs_exchange
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_folder_swapped_for_a_link_while_it_is_written(
    vault: Vault, write: Callable[..., None], tmp_path: Path, folder: Path
) -> None:
    """Nothing is made, changed or emptied behind the link."""
    write("inside")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    for name in ("lock", "000002.lane"):
        (outside / name).write_bytes(b"outside")
        (outside / name).chmod(0o600)

    written, end = 0, time.monotonic() + 1
    with swapped(folder, outside):
        while time.monotonic() < end:
            with contextlib.suppress(StorageError):
                write_one(vault, 1)
                written += 1
    assert written
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {
        "lock": b"outside",
        "000002.lane": b"outside",
    }


def test_a_folder_swapped_for_a_link_while_it_is_locked(
    vault: Vault,
    write: Callable[..., None],
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the check of the lock and its opening: no file is made behind the link."""
    write("inside")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    close = files.close

    def swap(fd: int) -> None:
        close(fd)
        if not folder.is_symlink() and (folder / "lock").exists():
            folder.rename(tmp_path / "aside")
            folder.symlink_to(outside)

    with monkeypatch.context() as patch:
        patch.setattr(files, "close", swap)
        with contextlib.suppress(StorageError):
            vault.write("one")
    assert folder.is_symlink()
    assert list(outside.iterdir()) == []


def test_every_file_is_private_from_its_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Keys
) -> None:
    """C74, C75, F67: looked at behind every system call of a writer, under umask 000."""
    seen: set[str] = set()
    wrong: set[tuple[str, str]] = set()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in {"open", "mkdir", "link", "replace", "write"}:
                return real

            def call(*args: Any, **named: Any) -> Any:
                made = real(*args, **named)
                for path in tmp_path.rglob("*"):
                    kind = path.suffix or path.name
                    seen.add(kind)
                    with contextlib.suppress(FileNotFoundError):
                        if path.stat().st_mode & 0o077:
                            wrong.add((kind, oct(path.stat().st_mode)))
                return made

            return call

    before = os.umask(0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", Watched())
            vault = Vault.create(tmp_path / "vault", keys)
            write_one(vault, LARGE)
            os.truncate(find(tmp_path, ".blob"), 9)
            write_one(vault, LARGE)
    finally:
        os.umask(before)
    assert not wrong
    assert {".tmp", ".lane", ".blob", ".slot", "lock", ".json", ".gitignore"} <= seen


def test_keys_stand_elsewhere_and_git_ignores_the_rest(
    vault: Vault, keys: Keys, root: Path, write: Callable[..., None]
) -> None:
    """C76, C77: two hosts have nothing in common, and no key or slot is in the vault."""
    write(LARGE)
    assert (root / ".gitignore").read_text() == "*\n"
    assert not [path for path in root.rglob("*") if path.suffix in {".slot", ".key"}]
    slot = next(keys.state.rglob("*.slot")).read_bytes()
    assert not [path for path in root.rglob("*") if path.is_file() and slot in path.read_bytes()]
    found = {os.environ.get("HOSTNAME", ""), str(root), vault.id}
    guesses = [Keys((text.encode() * 32 + bytes(32))[:32], keys.state) for text in found]
    for guess in guesses:
        with pytest.raises(WrongKey):
            Vault.open(root, guess).read("one")


@pytest.mark.parametrize("length", [0, 1, 103, 104, 2 * MIB, 2 * MIB + 1, 2**31, 2**32 - 1])
def test_a_forged_length_of_a_frame_costs_its_record(
    vault: Vault, write: Callable[..., None], folder: Path, length: int
) -> None:
    """With the right checksum; nothing is read or allocated by it."""
    write("a", "b", "c")
    lane = folder / "000001.lane"
    with vault.read("one") as reader:
        second = list(reader.frames())[1]
    whole = lane.read_bytes()
    head = Head(length, Kind.MESSAGES, 2).encode()
    lane.write_bytes(whole[: second.offset] + head + whole[second.offset + HEAD_SIZE :])
    kept = []
    with vault.read("one") as reader:
        for frame in reader.frames():
            with contextlib.suppress(Damaged):
                kept.append(reader.value(frame))
    assert kept == ["a", "c"]


@pytest.mark.parametrize("offset", [8, 9, 10, 12, 16, 32, 48])
def test_a_forged_header_of_a_lane_does_not_open(
    vault: Vault, write: Callable[..., None], folder: Path, offset: int
) -> None:
    """Each field, in both copies, with the right checksum: damage or a wrong key, and no bytes."""
    write("a")
    lane = folder / "000001.lane"
    whole = lane.read_bytes()
    for forged in (0, 2, 0xFF):
        fields = bytearray(whole[: HEADER_SIZE - 4])
        if fields[offset] == forged:
            continue
        fields[offset] = forged
        header = bytes(fields) + struct.pack(">I", zlib.crc32(fields))
        lane.write_bytes(header * 2 + whole[FIRST_FRAME:])
        with vault.read("one") as reader:
            for frame in reader.frames():
                with pytest.raises((Damaged, WrongKey)):
                    reader.value(frame)


def peak(act: Callable[[], object]) -> int:
    """Return by how many bytes the largest size of a forked child grew while it acted.

    The child may have no more than 4 GiB of addresses.
    """
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (4096 * MIB, 4096 * MIB))
            start = _resident()
            act()
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
            os.write(ends[1], struct.pack(">q", max(grown, 0)))
        finally:
            os._exit(0)
    os.close(ends[1])
    said = os.read(ends[0], 8)
    os.close(ends[0])
    os.waitpid(child, 0)
    assert said, "the child failed"
    (grown,) = struct.unpack(">q", said)
    return int(grown)


def _resident() -> int:
    # ru_maxrss of a child begins with what its parent had.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def is_damaged(act: Callable[[], object]) -> Callable[[], None]:
    def check() -> None:
        with pytest.raises(Damaged):
            act()

    return check


def bomb(size: int, *, stated: bool = True) -> bytes:
    """Compress zeros; without `stated`, into a frame that does not say how many."""
    compressor = zstd.ZstdCompressor(level=3)
    if stated:
        return compressor.compress(bytes(size), zstd.ZstdCompressor.FLUSH_FRAME)
    return compressor.compress(bytes(size)) + compressor.flush()


# 13 bytes that ask for a window of 2 GiB.
WIDE = bytes.fromhex("28b52ffd00a8") + bytes.fromhex("010000") + b"\0" * 4


@pytest.mark.skipif(not LINUX, reason="reads what Linux reports of memory")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("stated", [True, False])
def test_a_compressed_bomb_expands_to_nothing(*, stated: bool) -> None:
    """512 MiB of zeros in a frame of a blob and in the body of a record."""
    frame = bomb(512 * MIB, stated=stated)
    assert len(frame) < 64 * 1024
    for act in (
        lambda: expand(frame, at_most=64 * 1024, where="x"),
        lambda: expand(WIDE, at_most=64 * 1024, where="x"),
        lambda: decode(b"\x01" + frame, lambda _: b"", where="x"),
    ):
        assert peak(is_damaged(act)) < 8 * MIB


def test_a_frame_that_states_too_little_gives_nothing() -> None:
    """Two frames in a row, a frame with a rest, a frame that is cut."""
    good = bomb(1_000)
    assert expand(good, at_most=1_000, where="x") == bytes(1_000)
    for bad in (good + good, good + b"x", good[:-1], good[:5], b""):
        with pytest.raises(Damaged):
            expand(bad, at_most=4_000, where="x")
    with pytest.raises(Damaged):
        expand(good, at_most=999, where="x")
    with pytest.raises(Damaged):
        decode(b"\x01" + bomb(MAX_BODY + 1), lambda _: b"", where="x")


@pytest.mark.parametrize("field", ["frames", "table", "raw", "offset", "size", "content"])
def test_forged_numbers_in_a_pack_are_damage(field: str) -> None:
    """Whoever holds the key and lies: no number is believed, and none is allocated by."""
    good = pack(b"x" * 200_000)
    rows = 4
    trailer, row = len(good) - 40, len(good) - 40 - rows * 24
    at, size = {
        "frames": (trailer + 8, 4),
        "table": (trailer + 16, 8),
        "raw": (trailer + 24, 8),
        "offset": (row + 24, 8),
        "size": (row + 8, 4),
        "content": (row + 12, 4),
    }[field]
    top = 1 << (8 * size)
    for number in (0, 1, 65_537, top // 2, top - 1):
        forged = good[:at] + number.to_bytes(size, "big") + good[at + size :]
        if forged == good or (field == "offset" and number == 0):
            continue
        with pytest.raises(Damaged):
            unpack(forged, "x")


SPARSE = 6 * 1024 * MIB  # more than the child may have addresses


@pytest.mark.skipif(not LINUX, reason="reads what Linux reports of memory")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("what", ["STORE.json", ".slot", ".blob"])
def test_a_file_of_gigabytes_in_the_place_of_a_small_one(
    vault: Vault, tmp_path: Path, write: Callable[..., None], what: str
) -> None:
    """Sparse, so that it costs the attacker nothing: it is damage, and fills no memory."""
    write(LARGE)
    os.truncate(find(tmp_path, what), SPARSE)
    assert peak(is_damaged(lambda: read_all(vault))) < 16 * MIB


@pytest.mark.skipif(not LINUX, reason="reads what Linux reports of memory")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_lane_of_zeros_without_end_is_read_a_window_at_a_time(
    vault: Vault, write: Callable[..., None], folder: Path
) -> None:
    """32 MiB of them behind the records, in half of that memory at the most."""
    write("a")
    os.truncate(folder / "000001.lane", 32 * MIB)

    def act() -> None:
        assert read_all(vault) == ["a"]

    assert peak(act) < 16 * MIB
