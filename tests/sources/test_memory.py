from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

from compactor.sources import conversations, load

if TYPE_CHECKING:
    from pathlib import Path

JUNK = 30
ROUNDS = 400


def claude(kind: str, name: str, parent: str | None, content: object, **more: object) -> str:
    message = {"role": kind, "content": content}
    row = {"type": kind, "uuid": name, "parentUuid": parent, "message": message, **more}
    return json.dumps(row) + "\n"


def peak_of(path: Path) -> tuple[int, int]:
    """Return the peak of memory while loading, and the number of messages."""
    tracemalloc.start()
    recording = load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, len(recording.messages)


def test_junk_costs_no_memory(tmp_path: Path) -> None:
    """Memory follows the conversation, not the notices that it hangs on."""
    path = tmp_path / "session.jsonl"
    filler = "j" * 2000
    size = 0
    with path.open("w") as file:
        last: str | None = None
        for turn in range(ROUNDS):
            for n in range(JUNK):
                name = f"junk-{turn:08}-{n:08}-aaaa-bbbb"
                notice = {"type": "progress", "uuid": name, "parentUuid": last, "data": filler}
                file.write(json.dumps(notice) + "\n")
                last = name
            file.write(json.dumps({"type": "file-history-snapshot", "snapshot": filler}) + "\n")
            kind = "assistant" if turn % 2 else "user"
            text = f"{turn} " + "x" * 200
            file.write(claude(kind, f"row-{turn}", last, text, toolUseResult=filler))
            last = f"row-{turn}"
            size += len(text)
    peak, count = peak_of(path)
    assert count == ROUNDS
    # 24 MB of junk; the rest is a few hundred bytes a message.
    assert peak < 4 * size + 2_000_000
    assert path.stat().st_size > 24_000_000


def test_hole_of_nuls_costs_no_memory(tmp_path: Path) -> None:
    """A hole that a crash left in the file is not held in memory."""
    path = tmp_path / "session.jsonl"
    with path.open("wb") as file:
        file.write(claude("user", "1", None, "a").encode())
        file.seek(64_000_000, 1)
        file.write(claude("assistant", "2", "1", "b").encode())
    peak, count = peak_of(path)
    assert count == 2
    assert peak < 8_000_000


def test_junk_in_a_document_costs_no_memory(tmp_path: Path) -> None:
    """A document is on one line, most of it junk, and is never held as a whole."""
    path = tmp_path / "session.traj"
    history = [
        {"role": "assistant" if at % 2 else "user", "content": f"{at} " + "x" * 200}
        for at in range(ROUNDS)
    ]
    with path.open("w") as file:
        file.write('{"trajectory": [')
        for step in range(60):
            messages = [{"role": "user", "content": 'said "so" \n' * 4000}] * 8
            file.write("," * bool(step) + json.dumps({"action": "a", "messages": messages}))
        file.write(f'], "history": {json.dumps(history)}, "info": "{"j" * 2_000_000}"}}')
    peak, count = peak_of(path)
    assert count == ROUNDS
    assert path.stat().st_size > 24_000_000
    assert peak < 4 * ROUNDS * 200 + 2_000_000


def test_junk_in_a_rollout_costs_no_memory(tmp_path: Path) -> None:
    """What repeats the conversation is read line by line and let go of."""
    path = tmp_path / "rollout.jsonl"
    event = {"type": "event_msg", "payload": {"type": "agent_message", "message": "j" * 2000}}
    with path.open("w") as file:
        for at in range(ROUNDS):
            file.write((json.dumps(event) + "\n") * JUNK)
            role, kind = ("assistant", "output_text") if at % 2 else ("user", "input_text")
            content = [{"type": kind, "text": f"{at} " + "x" * 200}]
            item = {"type": "message", "role": role, "content": content}
            file.write(json.dumps({"type": "response_item", "payload": item}) + "\n")
    peak, count = peak_of(path)
    assert count == ROUNDS
    assert path.stat().st_size > 24_000_000
    assert peak < 6 * ROUNDS * 200 + 2_000_000


def test_one_run_of_many_is_held(tmp_path: Path) -> None:
    """Of a file with many conversations only one is in memory at a time."""
    path = tmp_path / "results.json"
    traj = [{"role": "user", "content": "x" * 100_000}, {"role": "assistant", "content": "y"}]
    with path.open("w") as file:
        file.write("[" + ",".join([json.dumps({"reward": 1.0, "traj": traj})] * 200) + "]")
    tracemalloc.start()
    count = sum(len(recording.requests) for recording in conversations(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 200
    assert peak < 2_000_000
