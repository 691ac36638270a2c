"""Where keys come from, and what happens without the right one."""

import base64
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from compactor.storage import (
    Damaged,
    Keys,
    Kind,
    MissingKey,
    NoTranscript,
    NotStored,
    UnsafePath,
    Vault,
    WrongKey,
    files,
    rotate,
)
from compactor.storage.keys import count_slots, is_rotating, read_key
from compactor.storage.sealing import SessionKeys


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "deep" / "state"
    monkeypatch.setenv("COMPACTOR_STATE", str(state))
    monkeypatch.delenv("COMPACTOR_KEY", raising=False)
    monkeypatch.delenv("COMPACTOR_KEY_FILE", raising=False)
    return state


def opens(vault: Vault, keys: Keys) -> bool:
    """Tell whether these keys open the session that `write` wrote."""
    with Vault.open(vault.root, keys).read("one") as reader:
        return bool([reader.value(frame) for frame in reader.frames()])


def test_the_first_use_makes_a_key_file_and_the_second_finds_it(state: Path) -> None:
    """`made` is true once; the file is 0600 in folders that are 0700."""
    first, second = Keys.default(), Keys.default()
    assert (first.made, second.made) == (True, False)
    assert [(state / "host.key").stat().st_mode & 0o777, state.stat().st_mode & 0o777] == [
        0o600,
        0o700,
    ]
    assert state.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in state.iterdir()] == ["host.key"]


@pytest.mark.usefixtures("state")
def test_a_key_in_the_environment_comes_first_and_a_named_file_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vault: Vault
) -> None:
    """The same 32 bytes are the same key wherever they come from; nothing is made."""
    raw = os.urandom(32)
    with Vault.open(vault.root, Keys(raw, tmp_path / "state")).write("one") as writer:
        writer.append([(Kind.OPEN, {})])
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    (tmp_path / "key").write_bytes(base64.b64encode(raw) + b"\n")
    monkeypatch.setenv("COMPACTOR_KEY_FILE", str(tmp_path / "key"))
    assert opens(vault, Keys.default())
    monkeypatch.setenv("COMPACTOR_KEY", base64.b64encode(raw).decode())
    monkeypatch.setenv("COMPACTOR_KEY_FILE", "/nowhere")
    keys = Keys.default()
    assert opens(vault, keys)
    assert not keys.made


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("text", ["x", "AAAA", base64.b64encode(bytes(31)).decode(), "é" * 44])
def test_a_key_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has a hint and does not quote the key."""
    monkeypatch.setenv("COMPACTOR_KEY", text)
    with pytest.raises(WrongKey) as caught:
        Keys.default()
    assert caught.value.hint
    assert repr(text) not in repr(caught.value)


@pytest.mark.usefixtures("state")
def test_a_named_key_file_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other key takes its place."""
    monkeypatch.setenv("COMPACTOR_KEY_FILE", "/nowhere/key")
    with pytest.raises(MissingKey):
        Keys.default()


def test_a_key_file_that_others_may_read_is_refused(state: Path) -> None:
    """So is a state folder that others may enter."""
    Keys.default()
    (state / "host.key").chmod(0o640)
    with pytest.raises(UnsafePath, match="mode 640"):
        Keys.default()
    (state / "host.key").chmod(0o600)
    state.chmod(0o755)
    with pytest.raises(UnsafePath, match="mode 755"):
        Keys.default()


def test_two_first_uses_agree_on_one_key(state: Path) -> None:
    """Five processes at once: one makes the key, all use it."""
    code = (
        "import sys; from compactor.storage import Keys; sys.stdin.read();"
        "k = Keys.default(); print(int(k.made), k._host_key.hex())"
    )
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(5)]
    for process in running:
        assert process.stdin
        process.stdin.close()
        process.stdin = None
    said = [process.communicate()[0].split() for process in running]
    assert sum(int(made) for made, _ in said) == 1
    assert len({key for _, key in said}) == 1
    assert [path.name for path in state.iterdir()] == ["host.key"]


def test_a_publisher_killed_before_its_last_step_is_finished(state: Path) -> None:
    """A key file that still has its temporary name opens, and the other name goes."""
    Keys.default()
    os.link(state / "host.key", state / "host.key.0123456789abcdef.tmp")
    assert not Keys.default().made
    assert [path.name for path in state.iterdir()] == ["host.key"]


def test_missing_wrong_and_damaged_are_three_errors(
    vault: Vault, keys: Keys, write: Callable[..., None]
) -> None:
    """None of them looks like an empty session, for reading or writing."""
    write("x")
    (slot,) = keys.state.rglob("*.slot")
    whole = slot.read_bytes()

    def attempt(using: Keys, error: type[Exception]) -> None:
        other = Vault.open(vault.root, using)
        with pytest.raises(error):
            other.read("one")
        with pytest.raises(error):
            other.write("one")

    attempt(Keys(os.urandom(32), keys.state), WrongKey)
    for bad in (b"", whole[:-1], whole + b"x", whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]):
        slot.write_bytes(bad)
        attempt(keys, Damaged)
    slot.unlink()
    attempt(keys, MissingKey)
    with pytest.raises(NoTranscript):
        vault.read("two")


def test_a_slot_of_another_session_does_not_open(
    vault: Vault, keys: Keys, write: Callable[..., None]
) -> None:
    """A slot is bound to its session."""
    write("x")
    write("y", session="two")
    slots = {path.stem: path for path in keys.state.rglob("*.slot")}
    slots["one"].write_bytes(slots["two"].read_bytes())
    with pytest.raises(WrongKey):
        vault.read("one")


def test_a_remade_session_key_does_not_write_into_old_lanes(
    vault: Vault, root: Path, keys: Keys, write: Callable[..., None]
) -> None:
    """A whole header that another session key made is a wrong key, not damage."""
    write("x")
    lane = (root / "s/one/000001.lane").read_bytes()
    (root / "s/one/000001.lane").unlink()
    next(keys.state.rglob("*.slot")).unlink()
    write("y")
    (root / "s/one/000001.lane").write_bytes(lane)
    with vault.read("one") as reader, pytest.raises(WrongKey):
        [reader.value(frame) for frame in reader.frames()]
    with pytest.raises(WrongKey):
        vault.write("one")


def test_no_key_shows(tmp_path: Path) -> None:
    """The representation holds no key bytes."""
    shown = repr(Keys(b"k" * 32, tmp_path)) + repr(SessionKeys.derive(b"k" * 32, bytes(16), "one"))
    assert shown.count("hidden") == 2
    assert "kkk" not in shown


def test_a_host_key_has_one_size(tmp_path: Path) -> None:
    """Neither a short one nor a long one is stretched or cut."""
    for size in (0, 16, 31, 33):
        with pytest.raises(WrongKey):
            Keys(bytes(size), tmp_path)


def test_without_make_nothing_is_made(
    state: Path, vault: Vault, write: Callable[..., None]
) -> None:
    """Keys that are not there open nothing; a first session makes the file after all."""
    write("x")
    keys = Keys.default(make=False)
    for attempt in (keys.export, lambda: keys.fingerprint, lambda: opens(vault, keys)):
        with pytest.raises(MissingKey) as caught:
            attempt()
        assert caught.value.hint
    with pytest.raises(MissingKey):
        rotate(state)
    assert not state.exists()
    Vault.open(vault.root, keys).write("two").close()
    assert keys.fingerprint == Keys.default(make=False).fingerprint


def test_an_exported_key_is_a_key_file(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it is in a comment, and opens the same."""
    keys = Keys.default()
    (tmp_path / "backup").write_bytes(keys.export())
    assert base64.b64encode(read_key(tmp_path / "backup")) == (state / "host.key").read_bytes()[:-1]
    monkeypatch.setenv("COMPACTOR_KEY_FILE", str(tmp_path / "backup"))
    assert Keys.default().fingerprint == keys.fingerprint
    assert keys.fingerprint in keys.export().decode()
    assert (keys.source, Keys.default().source) == ("host.key", "COMPACTOR_KEY_FILE")


class Faults:
    """Stands for `os` in `files`: call number `at` of those that change the disk goes wrong."""

    CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "fchmod")

    def __init__(self, at: int, how: str) -> None:
        self.left = at
        self._how = how

    def __getattr__(self, name: str) -> object:
        real = (lambda _: None) if name == "fsync" else getattr(os, name)  # to be quick
        return self._counted(real) if name in self.CALLS else real

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any, **named: Any) -> object:
            if real is os.open and not args[1] & os.O_CREAT:
                return real(*args, **named)
            self.left -= 1
            if self.left == 0 and self._how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.left == 0 and self._how == "refused":
                raise OSError(5, "no")
            result = real(*args, **named)
            if self.left == 0:
                if isinstance(result, int) and real is os.open:
                    os.close(result)
                raise OSError(5, "done, but it says no")
            return result

        return call


@pytest.fixture
def sessions(state: Path, tmp_path: Path) -> Callable[[], None]:
    """Two vaults with a session each under the key in `state`; the call opens them all."""
    roots = [tmp_path / "a", tmp_path / "b"]
    for root, names in zip(roots, (("one",), ("two",)), strict=True):
        vault = Vault.create(root, Keys.default())
        for name in names:
            with vault.write(name) as writer:
                writer.append([(Kind.OPEN, name)])
    before = Keys.default()

    def check() -> None:
        for keys in (Keys.default(), before):
            for vault in (Vault.open(root, keys) for root in roots):
                for name in vault.sessions():
                    with vault.read(name) as reader:
                        assert [reader.value(frame) for frame in reader.frames()] == [name]
        assert count_slots(state) == (2, 2)

    return check


@pytest.mark.parametrize("how", ["refused", "done", "killed"])
def test_a_rotation_interrupted_anywhere_leaves_every_session_open(
    how: str, state: Path, sessions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each file operation, for keys found before and after; the next call ends it."""
    first = read_key(state / "host.key")
    copy = state.with_name("copy")
    shutil.copytree(state, copy)
    monkeypatch.setattr(files, "os", Faults(0, "never"))
    at = 0
    while True:
        at += 1
        shutil.rmtree(state)
        shutil.copytree(copy, state)
        if interrupted(at, how, state, monkeypatch):
            sessions()
            new = read_key(state / "host.key")
            rotate(state)
            sessions()
            # The key that an interrupted call made is the one that stays, if it did.
            assert new in {first, read_key(state / "host.key")} or not is_rotating(state)
            assert not [path for path in state.iterdir() if path.name.startswith("host.key.")]
            assert read_key(state / "host.key") != first
        else:
            break
    assert at > 20


def interrupted(at: int, how: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Rotate with a fault; tell whether it came."""
    if how == "killed":
        if (child := os.fork()) == 0:
            monkeypatch.setattr(files, "os", Faults(at, how))
            try:
                rotate(state)
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", Faults(at, how))
        try:
            rotate(state)
        except (NotStored, OSError):
            return True
    return False


def test_after_a_rotation_the_old_key_opens_nothing(
    state: Path, sessions: Callable[[], None], tmp_path: Path
) -> None:
    """All slots are wrapped anew; keys that were found before go on with the new key."""
    before, old = Keys.default(), read_key(state / "host.key")
    rotation = rotate(state)
    assert (rotation.wrapped, rotation.left) == (2, ())
    sessions()
    with pytest.raises(WrongKey):
        Vault.open(tmp_path / "a", Keys(old, state)).read("one")
    with Vault.open(tmp_path / "a", before).write("three") as writer:
        writer.append([(Kind.OPEN, "three")])
    with Vault.open(tmp_path / "a", Keys.default()).read("three") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == ["three"]
    assert before.fingerprint == Keys.default().fingerprint


def test_a_session_made_during_a_rotation_is_not_lost(
    state: Path, sessions: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot comes after the rotation has looked, under the key that goes away."""
    sessions()
    keys, publish = Keys.default(), files.Folder.publish
    rotations: list[None] = []

    def late(folder: files.Folder, name: str, pieces: Iterable[bytes], *, durable: bool) -> int:
        if name == "late.slot" and not rotations:
            rotations.append(None)
            rotate(state)
        return publish(folder, name, pieces, durable=durable)

    monkeypatch.setattr(files.Folder, "publish", late)
    with Vault.open(tmp_path / "a", keys).write("late") as writer:
        writer.append([(Kind.OPEN, "late")])
    assert rotations
    with Vault.open(tmp_path / "a", Keys.default()).read("late") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == ["late"]


def test_a_rotation_leaves_what_it_cannot_open(state: Path, sessions: Callable[[], None]) -> None:
    """Damaged slots and those under a third key stay as they are, and are named."""
    sessions()
    (damaged,), (other,) = state.rglob("one.slot"), state.rglob("two.slot")
    damaged.write_bytes(b"x")
    kept = other.read_bytes()
    third = os.urandom(32)
    Keys(third, state).rewrap(read_key(state / "host.key"))
    slot = other.read_bytes()
    rotation = rotate(state)
    assert (rotation.wrapped, tuple(sorted(rotation.left))) == (0, ("one", "two"))
    assert (damaged.read_bytes(), other.read_bytes()) == (b"x", slot)
    assert kept != slot


def test_slots_of_a_key_that_was_set_elsewhere_are_wrapped_by_request(
    vault: Vault, keys: Keys, write: Callable[..., None]
) -> None:
    """`rewrap` takes what the old key opens; again, it finds nothing to do."""
    write("x")
    old = base64.b64decode(keys.export().splitlines()[1])
    new = Keys(os.urandom(32), keys.state)
    assert new.rewrap(old).wrapped == 1
    assert opens(vault, new)
    with pytest.raises(WrongKey):
        opens(vault, keys)
    assert new.rewrap(old) == type(new.rewrap(old))(0, ())


def test_a_host_key_file_that_vanished_comes_back_with_the_next_session(
    state: Path, vault: Vault
) -> None:
    """A running host wraps nothing under a key that no file holds."""
    keys = Keys.default()
    shutil.rmtree(state)
    Vault.open(vault.root, keys).write("one").close()
    assert Keys.default().fingerprint == keys.fingerprint
