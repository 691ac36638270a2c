"""A word that only the conversation knows stands nowhere on the disk and in no log."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor import BadMessage, Compactor, Keys, MaskPolicy, PersistPolicy, Policy, Transcript

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CANARY = "Canary7Quartz9Violet3"
ZSTD = b"\x28\xb5\x2f\xfd"
WINDOW = 1 << 22
POLICY = Policy(
    window=9_000,
    persist=PersistPolicy(always_chars=20_000, preview_chars=1_000),
    mask=MaskPolicy(keep_recent=1, keep_least=1),
)


def _spellings(word: str) -> list[bytes]:
    """Return how a word looks as it is, in other encodings, and inside base64 at any offset."""
    plain = word.encode()
    found = [plain, plain.lower(), plain.hex().encode(), plain[::-1]]
    found += [word.encode("utf-16-le"), word.encode("utf-16-be")]
    for offset in range(3):
        text = b64encode(bytes(offset) + plain)
        found.append(text[4 * (offset > 0) : -4])  # without what its neighbours shape
    return found


NEEDLES = _spellings(CANARY)


def _frames(data: bytes) -> Iterator[bytes]:
    """Expand everything that starts like a zstd frame, as far as it goes."""
    start = data.find(ZSTD)
    while start >= 0:
        with contextlib.suppress(zstd.ZstdError):
            yield zstd.ZstdDecompressor().decompress(data[start:], max_length=WINDOW)
        start = data.find(ZSTD, start + 1)


def _leaks(data: bytes) -> list[bytes]:
    return [n for part in (data, *_frames(data)) for n in NEEDLES if n in part or n in part.lower()]


def found_in(folder: Path) -> list[str]:
    """Name the files under a folder whose name or content holds the canary in any spelling."""
    found = []
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder)).encode()
        content = path.read_bytes() if path.is_file() else b""
        found += [str(path)] * bool(_leaks(name) or _leaks(content))
    return found


def test_the_search_finds_what_it_should(tmp_path: Path) -> None:
    """Plain, in base64, compressed, and in a file's name."""
    text = f"some text, then {CANARY} and more of it. " * 3
    (tmp_path / "plain").write_text(text)
    (tmp_path / "base64").write_bytes(b64encode(b"x" + text.encode()))
    (tmp_path / "frame").write_bytes(b"head" + zstd.compress(text.encode()) + b"tail")
    (tmp_path / f"{CANARY}.txt").write_text("nothing")
    (tmp_path / "innocent").write_text("nothing")
    assert len(found_in(tmp_path)) == 4


def _result(name: str, content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def _call(name: str, tool: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": {CANARY: [f"cat {CANARY}"]}}


def _conversation() -> list[dict[str, Any]]:
    """Put the canary everywhere: small, persisted, above and below the size of a blob."""
    image = b64encode(b"\x89PNG" + CANARY.encode() * 3_000).decode()
    picture = {"type": "image", "source": {"type": "base64", "data": image}}
    results: list[object] = [
        f"small {CANARY}",
        f"{CANARY} {os.urandom(9_000).hex()}",  # a blob, hardly compressible
        f"error: {CANARY} failed\n" * 2_000,  # persisted, then masked: its line says so
        [{"type": "text", "text": f"{CANARY} with a picture"}, picture],
        f"{CANARY}\n" * 400,
    ]
    history: list[dict[str, Any]] = [{"role": "user", "content": f"Please find {CANARY}."}]
    for number in range(10):
        name, tool = f"{CANARY}_{number}", f"mcp__{CANARY}__search"
        thought = {"type": "thinking", "thinking": f"{CANARY}?", "signature": CANARY}
        history.append({"role": "assistant", "content": [thought, _call(name, tool)]})
        result = _result(name, results[number % len(results)])
        history.append({"role": "user", "content": [result]})
    return history


def _request() -> dict[str, Any]:
    schema = {"type": "object", "properties": {CANARY: {"type": "string"}}}
    tools = [{"name": f"mcp__{CANARY}__search", "description": CANARY, "input_schema": schema}]
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": f"You keep {CANARY} to yourself." * 900,
        "tools": tools,
        "metadata": {"user_id": CANARY},
    }


def test_no_trace_of_a_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Views, reads, a close, a resume, an auditor's reading: neither files nor logs know it."""
    caplog.set_level(logging.DEBUG)
    workspace, state = tmp_path / "work", tmp_path / "state"
    workspace.mkdir()
    keys, history = Keys(os.urandom(32), state), _conversation()
    for length in (*range(1, 13, 2), *range(11, len(history) + 1, 2)):
        with Compactor.open(workspace, "one", policy=POLICY, keys=keys) as session:
            view = session.view(history[:length], **_request())
            session.observe(
                {
                    "content": [{"type": "text", "text": CANARY}],
                    "stop_reason": "end_turn",
                    "usage": {"input_tokens": view.stats.view_tokens + 9_000, "tier": CANARY},
                }
            )
            for handle in session.handles():
                assert CANARY.encode() in session.read(handle) or b"image" in session.read(handle)
            session.flush()
            assert found_in(tmp_path) == []
    assert view.stats.archived_messages or view.stats.summarized_messages
    assert session.handles()
    with Transcript.open(workspace, "one", keys) as transcript:
        assert CANARY in json.dumps(transcript.messages())
        assert all(CANARY in json.dumps(request.messages) for request in transcript.requests())
    assert found_in(tmp_path) == []
    assert any((tmp_path / "work").rglob("*.blob"))
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "compacted" in logged
    assert CANARY.lower() not in logged.lower()


def test_no_trace_in_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is refused is named by its place, never by its content."""
    caplog.set_level(logging.DEBUG)
    keys = Keys(os.urandom(32), tmp_path / "state")
    bad: list[Any] = [
        [{"role": "user", "content": {CANARY}}],
        [{"role": "user", "content": CANARY.encode()}],
        [{"content": CANARY}],
        [{"role": "user", "content": [CANARY]}],
        [{"role": "user", "content": [{"type": "text", CANARY: float("nan")}]}],
        [{"role": "user", "content": CANARY, 7: CANARY}],
        {CANARY: 1},
    ]
    with Compactor.open(tmp_path, "one", keys=keys) as session:
        for messages in bad:
            with pytest.raises(BadMessage) as refused:
                session.view(messages)
            hint = getattr(refused.value, "hint", "")
            assert CANARY not in f"{refused.value} {hint}"
        with pytest.raises(LookupError) as unknown:
            session.read(CANARY)
        assert CANARY not in str(unknown.value)
    logged = "\n".join(str(record.__dict__) for record in caplog.records)
    assert CANARY not in logged


def _recording(path: Path) -> None:
    """Write the conversation as a session of Claude Code."""
    rows: list[dict[str, Any]] = []
    for number, message in enumerate(_conversation()):
        row = {
            "type": message["role"],
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": "s",
            "timestamp": f"2026-04-06T09:00:{number:02}.000Z",
            "message": message,
        }
        if message["role"] == "assistant":
            row["message"] = {**message, "id": f"msg_{number}", "model": "claude-sonnet-4-5"}
        rows.append(row)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("kept", [True, False])
def test_no_trace_of_a_replay(tmp_path: Path, *, kept: bool) -> None:
    """The command leaves it in no vault, state or temporary folder, and prints none of it."""
    source, place = tmp_path / "source", tmp_path / "place"
    folders = {n: place / n for n in ("tmp", "state", "home", "work", "cache", "config")}
    for folder in (source, *folders.values()):
        folder.mkdir(parents=True, mode=0o700)
    _recording(source / "session.jsonl")
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(folders["tmp"]),
        "HOME": str(folders["home"]),
        "COMPACTOR_STATE": str(folders["state"]),
        "XDG_CACHE_HOME": str(folders["cache"]),
        "XDG_CONFIG_HOME": str(folders["config"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    program = str(Path(sys.executable).with_name("compactor"))
    command = [program, "replay", str(source / "session.jsonl"), "--window", "9000"]
    options = ["--vault", str(folders["work"])] if kept else []
    done = subprocess.run(
        [*command, *options],
        env=environment,
        cwd=folders["work"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"proven" in done.stdout
    assert _leaks(done.stdout) == _leaks(done.stderr) == []
    assert found_in(place) == []
    assert list(folders["tmp"].iterdir()) == []
    assert bool(list(folders["work"].rglob("*.lane"))) == kept


def test_the_host_key_is_in_no_vault(tmp_path: Path) -> None:
    """Neither the key file's text nor its bytes stand in the workspace."""
    workspace, state = tmp_path / "work", tmp_path / "state"
    workspace.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPACTOR_STATE", str(state))
        with Compactor.open(workspace, "one", policy=POLICY) as session:
            session.view(_conversation(), **_request())
    text = (state / "host.key").read_bytes().strip()
    for path in workspace.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert text not in content
        assert b64decode(text) not in content
