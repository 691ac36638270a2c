"""`compactor verify`: each verdict, by damage that was really done, with its exit code."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import compactor.cli
from compactor import Compactor, Keys, Policy
from compactor.cli.verify import CODES
from compactor.storage import Kind, Vault
from compactor.storage.findings import Verdict
from compactor.storage.heads import Heads
from compactor.storage.names import unb32
from compactor.verify import verify

PROGRAM = Path(sys.executable).with_name("compactor")
CANARY = "canary-7c1f"
HOST_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder and a key of one's own; nobody waits for the disk."""
    for name in ("COMPACTOR", "COMPACTOR_HOME", "COMPACTOR_KEY_FILE", "COMPACTOR_IDENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COMPACTOR_KEY", HOST_KEY)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def run(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Call the command line in this process, in the workspace."""

    def call(*arguments: object) -> Said:
        words = ["compactor", "verify", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.chdir(work)
        with pytest.raises(SystemExit) as caught:
            compactor.cli.main()
        out, err = capsys.readouterr()
        assert CANARY not in out + err
        assert "Traceback" not in err
        return Said(int(caught.value.code or 0), out, err)

    return call


def history(turns: int) -> list[dict[str, Any]]:
    """A conversation in which every result but small ones is put out of the view."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Look. {CANARY}"}]
    for n in range(turns):
        call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"n": n}}
        text = f"{CANARY} line {n}\n" * 3_000
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": text}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return messages


def converse(work: Path, turns: int = 2, session: str = "one") -> None:
    """Play a session, request by request, and close it."""
    messages = history(turns)
    with Compactor.open(work, session, policy=Policy(window=50_000)) as engine:
        for end in range(1, len(messages) + 1, 2):
            engine.view(messages[:end])


def lane_of(work: Path, number: int = 1, session: str = "one") -> Path:
    return work / ".transcripts" / "s" / session / f"{number:06}.lane"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut_close_record(work: Path, lane: Path) -> None:
    """Cut the last lane at the border of its last record."""
    with Vault.open(work / ".transcripts", Keys.default()).read("one") as reader:
        last = list(reader.frames())[-1]
    assert last.kind is Kind.CLOSE
    lane.write_bytes(lane.read_bytes()[: last.offset])


def drop_heads() -> None:
    shutil.rmtree(Path(os.environ["COMPACTOR_STATE"]) / "heads")


def test_a_closed_session_is_whole(work: Path, run: Callable[..., Said]) -> None:
    """One line; every view is rebuilt and every part reads back. The vault is not touched."""
    converse(work)
    converse(work, 3)
    before = {path: path.stat() for path in work.rglob("*")}
    said = run("one")
    assert said.code == 0
    assert said.err == ""
    (line,) = said.out.splitlines()
    assert line.startswith("one  whole  2 lanes, ")
    assert "7 of 7 views" in line
    assert "head compared" in line
    after = {path: path.stat() for path in work.rglob("*")}
    assert {path: (one.st_ino, one.st_mtime_ns) for path, one in after.items()} == {
        path: (one.st_ino, one.st_mtime_ns) for path, one in before.items()
    }


def test_all_sessions_are_verified_and_the_worst_decides(
    work: Path, run: Callable[..., Said]
) -> None:
    """A line each; findings stand below, with their places."""
    converse(work)
    converse(work, session="two")
    assert run().code == 0
    lane = lane_of(work, session="two")
    flip(lane, lane.stat().st_size // 2)
    said = run()
    assert said.code == 1
    assert [line.split()[:2] for line in said.out.splitlines()[:2]] == [
        ["one", "whole"],
        ["two", "damaged"],
    ]
    assert "  damaged: does not open (lane 1, record " in said.out


def test_an_open_tail_does_not_alarm(work: Path, run: Callable[..., Said]) -> None:
    """A writer that is killed, and while it works; exit code 0, and the words say which."""
    code = (
        "import sys; from compactor import Compactor;"
        "c = Compactor.open(sys.argv[1], 'one'); c.view([{'role': 'user', 'content': 'x'}]);"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert (run().code, run().out.split("  ")[1]) == (0, "open, in use")
        process.send_signal(signal.SIGKILL)
    said = run()
    assert (said.code, said.out.split("  ")[1]) == (0, "open tail")


def test_a_cut_is_older_than_last_seen_where_a_head_is_known(
    work: Path, run: Callable[..., Said], tmp_path: Path
) -> None:
    """The kept one, or one that was exported before; without either it is an open tail."""
    converse(work)
    assert run("--export-head", tmp_path / "heads").code == 0
    cut_close_record(work, lane_of(work))
    said = run()
    assert said.code == 6
    assert "older than last seen: the lane was cut (lane 1, record " in said.out
    assert "hint: if you restored this yourself" in said.err
    drop_heads()
    assert run().code == 0
    assert run("--head", tmp_path / "heads").code == 6


def test_a_rolled_back_vault_is_older_than_last_seen(work: Path, run: Callable[..., Said]) -> None:
    """A whole older copy, and after a session went on in it."""
    converse(work)
    shutil.copytree(work / ".transcripts", work / "old")
    converse(work, 3)
    shutil.rmtree(work / ".transcripts")
    (work / "old").rename(work / ".transcripts")
    assert run().code == 6
    converse(work, 3)
    said = run()
    assert said.code == 6
    assert "another lane stands in its place (lane 2)" in said.out


def test_a_session_that_is_gone_is_missed(work: Path, run: Callable[..., Said]) -> None:
    """The state folder knows that it was there."""
    converse(work)
    converse(work, session="two")
    shutil.rmtree(work / ".transcripts/s/one")
    said = run()
    assert said.code == 6
    assert "older than last seen: the session is gone" in said.out


def test_a_session_begun_anew_is_a_remark(
    work: Path, run: Callable[..., Said], tmp_path: Path
) -> None:
    """The vault vanished under a running session: the engine wrote the history anew."""
    messages = history(3)
    heads = tmp_path / "heads"
    with Compactor.open(work, "one", policy=Policy(window=50_000)) as engine:
        engine.view(messages[:5])
        engine.flush()
        assert run("--export-head", heads).code == 0
        shutil.rmtree(work / ".transcripts")
        engine.view(messages)
        engine.flush()
    said = run("--head", heads)
    assert said.code == 0
    assert "remark: begun anew after it was last seen" in said.out


def test_a_session_folder_that_vanished_is_a_remark(work: Path, run: Callable[..., Said]) -> None:
    """Within the same vault, by the kept head; and an older state put back is none."""
    converse(work)
    shutil.copytree(work / ".transcripts/s/one", work / "old")
    shutil.rmtree(work / ".transcripts/s/one")
    converse(work)
    said = run()
    assert said.code == 0
    assert "remark: begun anew" in said.out
    shutil.rmtree(work / ".transcripts/s/one")
    (work / "old").rename(work / ".transcripts/s/one")
    assert run().code == 6


def test_a_lane_cut_off_before_the_next_one_is_damage(work: Path, run: Callable[..., Said]) -> None:
    """Known without any head: the next lane names what stood before it."""
    converse(work)
    cut_close_record(work, lane_of(work))
    whole = lane_of(work).read_bytes()
    converse(work, 3)
    drop_heads()
    assert run().code == 0
    lane_of(work).write_bytes(whole[: whole.rindex(whole[-200:])])
    said = run()
    assert said.code == 1
    assert "another record stood before this lane" in said.out


def test_missing_and_wrong_keys_have_codes_of_their_own(
    work: Path, run: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is damage."""
    converse(work)
    monkeypatch.setenv("COMPACTOR_KEY", "A" * 43 + "=")
    assert run().code == 5
    monkeypatch.setenv("COMPACTOR_KEY", HOST_KEY)
    (slot,) = Path(os.environ["COMPACTOR_STATE"]).glob("slots/*/one.slot")
    away = slot.rename(slot.with_name("away"))
    said = run()
    assert said.code == 4
    assert "missing key: the key of session one is not on this machine" in said.out
    away.rename(slot)
    flip(slot, 50)
    assert run().code == 1


def test_blobs_and_headers(work: Path, run: Callable[..., Said]) -> None:
    """A missing blob and a damaged copy of a header are damage; stray files are remarks."""
    converse(work)
    blobs = sorted((work / ".transcripts/s/one/blobs").iterdir())
    data = blobs[0].read_bytes()
    blobs[0].unlink()
    said = run()
    assert said.code == 1
    assert f"blob {blobs[0].stem}" in said.out
    assert "does not read back" in said.out
    blobs[0].write_bytes(data)
    blobs[0].chmod(0o600)
    assert run().code == 0
    flip(lane_of(work), 20)
    said = run()
    assert said.code == 1
    assert "nothing is lost" in said.out
    flip(lane_of(work), 20)
    (blobs[0].parent / "x.blob.0.tmp").touch()
    said = run()
    assert said.code == 0
    assert "remark: 0 blobs that no record names, 1 temporary files" in said.out


def test_a_view_that_is_not_rebuilt_is_damage(work: Path, run: Callable[..., Said]) -> None:
    """All bytes are whole, but what the engine recorded does not add up."""
    converse(work)
    with Vault.open(work / ".transcripts", Keys.default()).write("one") as writer:
        assert writer.previous_hash
        digest = "A" * 43
        writer.append(
            [
                (Kind.OPEN, {"wire": "anthropic", "previous": "B" * 43, "time": 1}),
                (Kind.REQUEST, {"at": 5, "chain": digest, "time": 1}),
                (Kind.CLOSE, {"time": 1}),
            ]
        )
        writer.sync()
    said = run()
    assert said.code == 1
    assert "view 4 is not rebuilt as it was sent" in said.out
    assert "another record stood before this lane" in said.out


def test_a_damaged_store_file(work: Path, run: Callable[..., Said]) -> None:
    """Damage that a reader refuses, and a date that only the head knows."""
    converse(work)
    store = work / ".transcripts/STORE.json"
    data = store.read_bytes()
    store.write_bytes(data.replace(b"20", b"21", 1))
    said = run()
    assert said.code in {1, 4}
    where = data.index(b'"created": "') + 15
    store.write_bytes(data)
    flip(store, where)
    said = run()
    assert said.code == 1
    assert "STORE.json is not as it was written" in said.out
    store.write_bytes(b"{}\n")
    said = run("--vault", work / ".transcripts")
    assert said.code == 1
    assert said.err.startswith("error: ")


def test_what_cannot_be_read_is_no_damage(
    work: Path, run: Callable[..., Said], tmp_path: Path
) -> None:
    """No vault, no session, a vault open to others."""
    assert run().code == 3
    converse(work)
    assert run("nobody").code == 3
    blob = next((work / ".transcripts/s/one/blobs").iterdir())
    blob.chmod(0o644)
    assert run().code == 3
    blob.chmod(0o600)
    lane_of(work).chmod(0o644)
    assert run().code == 3
    (work / ".transcripts").chmod(0o755)
    said = run()
    assert (said.code, "hint: " in said.err) == (3, True)
    assert run("--vault", tmp_path / "nowhere").code == 2


def test_a_wrong_call_is_said(work: Path, run: Callable[..., Said], tmp_path: Path) -> None:
    """A name that is none; a file that holds no heads, or none of this session."""
    converse(work)
    assert run("../x").code == 2
    file = tmp_path / "heads"
    for text in ("", "no head\n", "\ud800"):
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        said = run("--head", file)
        assert said.code == 2
        assert "Error: " in said.err
    run("--export-head", file)
    assert run("two", "--head", file).code == 2
    assert run("one", "--head", file).code == 0


def test_a_head_is_exported_only_of_what_is_not_wrong(
    work: Path, run: Callable[..., Said], tmp_path: Path
) -> None:
    """One line a session, that a later call compares with."""
    converse(work)
    converse(work, session="two")
    flip(lane_of(work, session="two"), 300)
    file = tmp_path / "heads"
    said = run("--export-head", file)
    assert said.code == 1
    assert "warning: no head of two was written" in said.err
    (line,) = file.read_text().splitlines()
    kept = Heads(
        Keys.default().state, unb32(Vault.open(work / ".transcripts", Keys.default()).id)
    ).load("one")
    assert line.split()[:8] == kept[0].line().split()[:8]


def test_an_unreadable_kept_head_is_said(work: Path, run: Callable[..., Said]) -> None:
    """Nothing is compared then."""
    converse(work)
    (head,) = Path(os.environ["COMPACTOR_STATE"]).glob("heads/*/one.head")
    head.write_text("{}")
    said = run()
    assert said.code == 0
    assert "warning: no kept head of one" in said.err
    assert "no head known" in said.out


def test_json(work: Path, run: Callable[..., Said]) -> None:
    """All that the lines say, for programs; alone on stdout."""
    converse(work)
    lane = lane_of(work)
    flip(lane, 300)
    said = run("--json")
    found = json.loads(said.out)
    assert found.keys() == {"verdict", "code", "sessions"}
    assert (found["verdict"], found["code"], said.code) == ("damaged", 1, 1)
    (row,) = found["sessions"]
    assert row.keys() == {
        *("session", "verdict", "lanes", "records", "requests", "blobs", "unreferenced"),
        *("temporaries", "read", "compared", "views", "handles", "handles_read", "findings"),
        "head",
    }
    assert (row["session"], row["verdict"], row["lanes"]) == ("one", "damaged", 1)
    first = row["findings"][0]
    assert first["verdict"] == "damaged"
    assert (first["what"], first["lane"], first["first"]) == ("does not open", 1, 1)
    assert first["offset"] == 128
    assert row["head"].startswith("compactor-head-1 ")


def test_no_flipped_byte_is_whole_or_an_error(work: Path) -> None:
    """Bytes at regular distances of a session of the engine; each is damage, never an exception."""
    converse(work)
    keys = Keys.default()
    vault = Vault.open(work / ".transcripts", keys)
    heads = Heads(keys.state, unb32(vault.id)).load("one")
    for path in sorted((work / ".transcripts/s/one").rglob("*.*")):
        for offset in range(0, path.stat().st_size, path.stat().st_size // 25):
            flip(path, offset)
            assert verify(vault, "one", heads=heads).verdict is Verdict.DAMAGED, (path, offset)
            flip(path, offset)
    assert verify(vault, "one", heads=heads).verdict is Verdict.WHOLE


def test_help_names_every_verdict_and_code(run: Callable[..., Said]) -> None:
    """A verdict without a documented code would be a number to guess."""
    said = run("--help")
    assert set(CODES) == set(Verdict)
    for verdict, code in CODES.items():
        word = "cannot be read" if verdict is Verdict.UNREADABLE else verdict.value
        assert any(f"  {code}  " in line and word in line for line in said.out.splitlines()), word
    assert "compactor verify nightly --head" in said.out


def test_a_bar_shows_on_a_terminal_only(work: Path) -> None:
    """On stderr, gone at the end."""
    converse(work, 4)
    master, slave = pty.openpty()
    words = [str(PROGRAM), "verify", "--vault", str(work)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=slave, timeout=60, check=True)
    os.close(slave)
    assert os.read(master, 100_000)
    os.close(master)
    assert done.stdout.startswith(b"one  whole  1 lanes")
    quiet = subprocess.run(words, capture_output=True, timeout=60, check=True)
    assert quiet.stderr == b""
