"""Sessions that are watched, in an environment of their own."""

import os

import pytest

from tests.properties.watch import Watch


@pytest.fixture(scope="session")
def watch() -> type[Watch]:
    """Open sessions whose every view is checked."""
    return Watch


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COMPACTOR")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COMPACTOR_CONFIG", os.devnull)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut could tell."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None, raising=False)
