"""Where keys come from, and what happens without the right one."""

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import (
    Damaged,
    Keys,
    Kind,
    MissingKey,
    NoTranscript,
    UnsafePath,
    Vault,
    WrongKey,
)
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
