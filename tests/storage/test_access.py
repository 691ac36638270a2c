"""Modes, links, other users, and no plaintext anywhere."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactor.storage import Damaged, Keys, Kind, StorageError, UnsafePath, Vault

CANARY = "canary-4f1b"


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def all_modes(top: Path) -> dict[str, int]:
    return {str(p.relative_to(top)): p.stat().st_mode & 0o7777 for p in top.rglob("*")}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], indirect=True, ids=oct)
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Folders are 0700 and files 0600, in the vault and in the state folder."""
    keys = Keys(os.urandom(32), tmp_path / "state/deep")
    vault = Vault.create(tmp_path / "vault", keys)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "x" * 50_000)])
        writer.sync()
        writer.renew()
        writer.append([(Kind.MESSAGES, "x")])
    modes = all_modes(tmp_path)
    assert len(modes) == 19
    wrong = {
        name: oct(mode)
        for name, mode in modes.items()
        if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    }
    assert not wrong


@pytest.mark.parametrize("part", ["", "s", "s/one", "s/one/blobs"])
def test_a_folder_that_is_a_link_is_refused(
    vault: Vault, root: Path, write: Callable[..., None], part: str
) -> None:
    """Each level below the workspace, for reading and writing."""
    write("x" * 50_000)
    path = root / part
    moved = root.parent / "moved"
    path.rename(moved)
    path.symlink_to(moved)

    def read() -> None:
        with vault.read("one") as reader:
            [reader.value(frame) for frame in reader.frames()]

    for attempt in (read, lambda: vault.write("one")):
        with pytest.raises(UnsafePath) as caught:
            attempt()
        assert isinstance(caught.value, PermissionError)


def test_a_link_above_the_vault_is_the_users_business(tmp_path: Path, keys: Keys) -> None:
    """A workspace may be reached through a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Vault.create(tmp_path / "link/.transcripts", keys).write("one") as writer:
        writer.append([(Kind.OPEN, 1)])
        writer.sync()


def odd(path: Path, how: str) -> None:
    """Put something in the place of a file."""
    data = path.read_bytes()
    aside = path.with_name("aside")
    if how == "mode":
        path.chmod(0o604)
        return
    path.unlink()
    if how == "fifo":
        os.mkfifo(path, 0o600)
    elif how == "folder":
        path.mkdir(mode=0o700)
    else:
        aside.write_bytes(data)
        aside.chmod(0o600)
        path.hardlink_to(aside) if how == "hard link" else path.symlink_to(aside)


@pytest.mark.parametrize("how", ["symbolic link", "hard link", "fifo", "folder", "mode"])
@pytest.mark.parametrize("what", ["000001.lane", "blob", "lock", "STORE.json", "slot"])
def test_a_file_that_is_not_ours_alone_is_refused(
    vault: Vault, tmp_path: Path, write: Callable[..., None], what: str, how: str
) -> None:
    """Nothing is read through it, nothing is written, and nobody waits for a FIFO."""
    write("x" * 50_000)
    odd(next(path for path in tmp_path.rglob("*") if path.name.endswith(what)), how)

    def read() -> None:
        with vault.read("one") as reader:
            [reader.value(frame) for frame in reader.frames()]

    def write_again() -> None:
        write("x" * 50_000)

    if what != "lock":
        with pytest.raises(UnsafePath):
            read()
    with pytest.raises(UnsafePath):
        write_again()


def test_no_plaintext_is_on_the_disk_or_in_an_error(
    vault: Vault, write: Callable[..., None], tmp_path: Path, folder: Path
) -> None:
    """In no file, no file name, no error and no representation."""
    write({CANARY: CANARY}, [CANARY * 5000], {CANARY: b"".join([b"x"] * 9).decode()})
    with vault.write("one") as writer, pytest.raises(StorageError) as caught:
        writer.append([(Kind.MESSAGES, {CANARY: [CANARY, {CANARY}]})])
    assert CANARY not in repr(caught.value) + str(caught.value.hint) + caught.value.where
    for path in tmp_path.rglob("*"):
        assert CANARY not in str(path)
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes()
    (blob,) = (folder / "blobs").iterdir()
    blob.write_bytes(blob.read_bytes()[:-1])
    with vault.read("one") as reader:
        damaged = list(reader.frames())[1]
        with pytest.raises(Damaged) as wrong:
            reader.value(damaged)
        assert CANARY not in repr(wrong.value) + repr(damaged) + repr(vault) + repr(reader)


OTHER_USER = """
import os, sys
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.umask(0o777)
from compactor.storage import Keys, Kind, StorageError, Vault
theirs, mine = Path(sys.argv[1]), Path(sys.argv[2])
for path in (theirs, theirs / "STORE.json", theirs / "s/one/000001.lane"):
    try:
        os.open(path, os.O_RDONLY)
        sys.exit(f"opened {path}")
    except PermissionError:
        pass
try:
    Vault.open(theirs, Keys(bytes(32), mine / "state"))
    sys.exit("opened the vault")
except StorageError:
    pass
with Vault.create(mine / "vault", Keys(bytes(32), mine / "state")).write("one") as writer:
    writer.append([(Kind.OPEN, "x" * 50_000)])
    writer.sync()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_gets_nothing_and_works_under_any_umask() -> None:
    """A real second user, whom a umask of 0777 would keep out of the folders just made."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "mine").mkdir()
        os.chown(top / "mine", 65534, 65534)
        vault = Vault.create(top / "theirs", Keys(os.urandom(32), top / "state"))
        with vault.write("one") as writer:
            writer.append([(Kind.OPEN, 1)])
        # Loaded before the user changes: the checkout may not be open to others.
        preload = "import compactor.storage\n"
        command = [
            sys.executable,
            "-c",
            preload + OTHER_USER,
            str(top / "theirs"),
            str(top / "mine"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        modes = all_modes(top / "mine")
        assert len(modes) == 17
        assert set(modes.values()) == {0o600, 0o700}
        (top / "theirs").chmod(0o700)
        os.chown(top / "theirs", 65534, 65534)
        with pytest.raises(UnsafePath, match="another user"):
            vault.read("one")
