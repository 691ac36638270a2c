"""A vault of one's own for each test, and nothing of the developer's settings."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compactor import Compactor, Keys

Open = Callable[..., Compactor]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open sessions in one vault; they are closed at the end."""
    keys = Keys(bytes(32), tmp_path / "state")
    with ExitStack() as stack:

        def open_session(name: str = "one", **settings: Any) -> Compactor:
            return stack.enter_context(Compactor.open(tmp_path, name, keys=keys, **settings))

        yield open_session


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COMPACTOR")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COMPACTOR_CONFIG", os.devnull)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None, raising=False)
