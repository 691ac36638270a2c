"""`compactor undo`, on real vaults."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compactor.cli
from compactor import Compactor, Keys, Policy

EARLY = Policy(window=40_000, trigger=0.2, target=0.03, min_gain=0.01, stages=("persist", "mask"))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    for name in ("COMPACTOR", "COMPACTOR_HOME", "COMPACTOR_KEY", "COMPACTOR_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def run(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["compactor", "undo", *map(str, arguments)])
        monkeypatch.chdir(work)
        with pytest.raises(SystemExit) as caught:
            compactor.cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def history(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]
    for n in range(turns):
        call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"n": n}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"line {n}\n" * 200}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return messages


def test_the_newest_compaction_is_taken_back(work: Path, run: Run) -> None:
    """The next view of the session shows all again."""
    messages = history(20)
    with Compactor.open(work, "one", policy=EARLY) as session:
        assert session.view(messages).changed
    code, out, err = run("one")
    assert (code, err) == (0, "")
    assert out.startswith("taken back: ")
    with Compactor.open(work, "one", policy=EARLY) as session:
        assert session.view(messages).messages == messages
    assert run("one")[1] == "nothing to take back\n"


def test_for_programs(work: Path, run: Run) -> None:
    """One JSON object, whether there was a set or not."""
    with Compactor.open(work, "one", policy=EARLY) as session:
        session.view(history(20))
    said = json.loads(run("one", "--json")[1])
    assert said["session"] == "one"
    assert said["undone"]["reason"] == "trigger"
    assert json.loads(run("one", "--json")[1])["undone"] is None


def test_what_is_refused(work: Path, run: Run) -> None:
    """No vault, no such session, a session at work: nothing is made, and the code says so."""
    assert run("one")[0] == 3
    assert list(work.iterdir()) == []
    with Compactor.open(work, "one", policy=EARLY, keys=Keys.default()) as session:
        session.view(history(1))
        code, _, err = run("one")
        assert (code, "has a writer" in err) == (3, True)
    code, out, err = run("two")
    assert (code, out) == (3, "")
    assert "hint" in err or "no session two" in err
    assert run()[0] == 2
