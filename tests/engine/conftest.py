"""A vault of one's own for each test; `histories` holds the builders."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves it out

from histories import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set does not reach the tests."""
    for name in [name for name in os.environ if name.startswith("COMPACTOR")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COMPACTOR_CONFIG", os.devnull)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut could tell; a failing sync is injected above this, in `storage.files`."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None, raising=False)
