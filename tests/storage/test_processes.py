"""Real processes: one writer, killed writers, forked children."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactor.storage import Keys, Kind, NotStored, SessionBusy, Vault

HOST_KEY = bytes(range(32))
SCRIPT = """
import sys
from pathlib import Path
from compactor.storage import Keys, Kind, Vault
root, state, key = sys.argv[1:]
writer = Vault.open(Path(root), Keys(bytes.fromhex(key), Path(state))).write("one")
n = 0
while True:
    writer.append([(Kind.MESSAGES, [n, "x" * (20_000 if n % 7 == 0 else 10)])])
    print(n, flush=True)
    n += 1
"""


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(HOST_KEY, tmp_path / "state")


@contextmanager
def other_writer(root: Path, keys: Keys) -> Iterator[subprocess.Popen[str]]:
    """Run a process that appends without end and says what it has appended."""
    command = [sys.executable, "-c", SCRIPT, str(root), str(keys.state), HOST_KEY.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05])
def test_what_a_killed_writer_appended_is_readable(
    vault: Vault, root: Path, keys: Keys, seconds: float
) -> None:
    """No sync is needed for that; the lock is free, and the next writer goes on."""
    with other_writer(root, keys) as process:
        assert process.stdout
        said = [process.stdout.readline()]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    last = int(said[-1])
    with vault.write("one") as writer:
        assert writer.append([(Kind.OPEN, "next")])[0].lane == 2
    with vault.read("one") as reader:
        values = [reader.value(frame) for frame in reader.frames()]
        assert not reader.skipped
    assert values[: last + 1] == [
        [n, "x" * (20_000 if n % 7 == 0 else 10)] for n in range(last + 1)
    ]
    assert values[-1] == "next"


def test_a_session_has_one_writer(vault: Vault, root: Path, keys: Keys) -> None:
    """Another process and another writer in this one are refused; other sessions are free."""
    with other_writer(root, keys) as process:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(SessionBusy) as caught:
            vault.write("one")
        assert isinstance(caught.value, TimeoutError)
        vault.write("two").close()
    with vault.write("one"):
        for wait in (0.0, 0.02):
            with pytest.raises(SessionBusy):
                vault.write("one", wait=wait)
    vault.write("one").close()


def test_a_writer_may_wait_for_its_turn(vault: Vault) -> None:
    """`wait` is in seconds."""
    first = vault.write("one")
    timer = threading.Timer(0.1, first.close)
    timer.start()
    vault.write("one", wait=5).close()
    timer.join()


def in_child(act: Callable[[], None]) -> None:
    """Run `act` in a forked child; fail if it fails there."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_not_write(vault: Vault, read: Callable[..., list[object]]) -> None:
    """Two processes would write the same sequence numbers; closing there changes nothing here."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "a")])

        def child() -> None:
            for attempt in (writer.sync, writer.renew, lambda: writer.append([(Kind.SET, 1)])):
                with pytest.raises(NotStored, match="fork"):
                    attempt()
            writer.close()
            with pytest.raises(SessionBusy):
                vault.write("one")

        in_child(child)
        with pytest.raises(SessionBusy):
            vault.write("one")
        writer.append([(Kind.MESSAGES, "b")])
        writer.sync()
    assert read() == ["a", "b"]


def test_two_makers_of_a_vault_agree_on_one(tmp_path: Path) -> None:
    """Five processes at once: one id, five sessions."""
    code = (
        "import sys; from pathlib import Path; from compactor.storage import *;"
        "v = Vault.create(Path(sys.argv[1]), Keys(bytes(32), Path(sys.argv[2])));"
        "w = v.write(new_name()); w.append([(Kind.OPEN, 1)]); w.sync(); print(v.id)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "vault"), str(tmp_path / "state")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    ids = {process.communicate()[0] for process in running}
    assert len(ids) == 1
    vault = Vault.open(tmp_path / "vault", Keys(bytes(32), tmp_path / "state"))
    assert ids == {vault.id + "\n"}
    assert len(vault.sessions()) == 5
