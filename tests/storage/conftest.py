"""A vault of one's own for each test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.storage import Keys, Kind, Vault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work" / ".transcripts"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(os.urandom(32), tmp_path / "state")


@pytest.fixture
def vault(root: Path, keys: Keys) -> Vault:
    root.parent.mkdir()
    return Vault.create(root, keys)


@pytest.fixture
def write(vault: Vault) -> Callable[..., None]:
    """Write values as messages in a lane of their own, durably."""

    def write_values(*values: object, session: str = "one") -> None:
        with vault.write(session) as writer:
            for value in values:
                writer.append([(Kind.MESSAGES, value)])
            writer.sync()

    return write_values


@pytest.fixture
def read(vault: Vault) -> Callable[..., list[object]]:
    """Read all values of a session; every record must follow the one before it."""

    def read_values(session: str = "one") -> list[object]:
        with vault.read(session) as reader:
            frames = list(reader.frames())
            assert all(reader.follows(frame) for frame in frames)
            assert not reader.skipped
            return [reader.value(frame) for frame in frames]

    return read_values


@pytest.fixture
def folder(root: Path) -> Path:
    """The folder of the session that `write` writes by default."""
    return root / "s" / "one"


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set does not reach the tests; nobody waits for the disk."""
    for name in ("", "_HOME", "_KEY", "_KEY_FILE", "_IDENTITY"):
        monkeypatch.delenv(f"COMPACTOR{name}", raising=False)
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None, raising=False)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
