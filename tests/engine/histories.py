"""Builders of histories, a vault to record them in, and an independent judge of views."""

import contextlib
import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compactor import Compactor, Policy, Request, Transcript, View
from compactor.storage import Keys, Kind, Vault

Message = dict[str, Any]
History = list[Message]

HANDLE = re.compile(r"\bout-[a-z2-7]{8,}")
MARK = {"type": "ephemeral"}
# Tool results only give way.
RESULTS = ("persist", "mask")
# About 11 exchanges of 1,500 characters reach its trigger.
SMALL = Policy(window=10_000, stages=RESULTS)


def output(number: int, size: int) -> str:
    """Text of exactly `size` characters that no other number has."""
    line = f"line of output {number}: nothing to see here\n"
    return (line * (size // len(line) + 1))[:size]


def human(text: str, *more: Message) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text}, *more]}


def call(name: str, tool: str = "Bash", **fields: object) -> Message:
    return {"type": "tool_use", "id": name, "name": tool, "input": {"command": name}, **fields}


def asks(*calls: Message, text: str | None = None) -> Message:
    said = [] if text is None else [{"type": "text", "text": text}]
    return {"role": "assistant", "content": [*said, *calls]}


def result(of: str, content: object, **fields: object) -> Message:
    return {"type": "tool_result", "tool_use_id": of, "content": content, **fields}


def answers(*blocks: Message) -> Message:
    return {"role": "user", "content": list(blocks)}


def says(text: str) -> Message:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def image(size: int = 400) -> Message:
    data = "iVBORw0KGgo" + "A" * size
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def exchange(number: int, size: int = 1_500, tool: str = "Bash") -> History:
    """Return a call and the answer to it."""
    name = f"toolu_{number}"
    return [asks(call(name, tool)), answers(result(name, output(number, size)))]


def conversation(exchanges: int, size: int = 1_500, request: str = "Fix the login.") -> History:
    """Return a history that ends with an unread result."""
    made = [human(request)]
    for number in range(exchanges):
        made += exchange(number, size)
    return made


def reloaded(history: History) -> History:
    """Return an equal history of new objects, as from a file."""
    loaded: History = json.loads(json.dumps(history))
    return loaded


def unmarked(value: Any) -> Any:
    """Return messages as digests see them: no marks, no nulls, lone texts as one block."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {k: unmarked(v) for k, v in value.items() if k != "cache_control" and v is not None}
    if isinstance(made.get("content"), str):
        made["content"] = [{"type": "text", "text": made["content"]}]
    return made


def marks_in(value: Any) -> int:
    """Count cache marks at any depth."""
    if isinstance(value, list):
        return sum(map(marks_in, value))
    if not isinstance(value, dict):
        return 0
    own = value.get("cache_control") is not None
    return own + sum(map(marks_in, value.values()))


def result_blocks(messages: History) -> list[Message]:
    return [
        block
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def text_of(block: Message) -> str:
    """Return the text of a tool result."""
    content = block.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def is_masked(block: Message) -> bool:
    return text_of(block).startswith("[Earlier tool result saved: ")


def is_preview(block: Message) -> bool:
    return text_of(block).startswith("<persisted-output ")


def hidden(messages: History) -> list[Message]:
    """Return the results of a view that stand as notes."""
    return [block for block in result_blocks(messages) if is_masked(block) or is_preview(block)]


def handle_of(block: Message) -> str:
    found = HANDLE.search(text_of(block))
    assert found is not None
    return found[0]


def assert_legal(messages: History) -> None:
    """Hold messages to the pairing rules of the Messages API."""
    waiting: set[str] = set()
    for message in messages:
        blocks = message["content"]
        blocks = [] if isinstance(blocks, str) else blocks
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "assistant":
            assert not waiting, "a call without its result"
            assert not results
            waiting = set(calls)
            continue
        assert not calls
        assert set(results) <= waiting, "a result without its call"
        waiting -= set(results)
        kinds = [block["type"] for block in blocks]
        assert kinds[: len(results)] == ["tool_result"] * len(results)


def assert_faithful(history: History, view: View) -> None:
    """Hold a view to what may differ from its history: the content of results, nothing else."""
    assert len(view.messages) == len(history)
    for mine, sent in zip(history, view.messages, strict=True):
        assert skeleton(mine) == skeleton(sent)
    assert_legal(view.messages)


def skeleton(message: Message) -> Message:
    """Return a message without the content of its tool results."""
    made = copy.deepcopy(message)
    if isinstance(made["content"], list):
        for block in made["content"]:
            if block.get("type") == "tool_result":
                block.pop("content", None)
    return made


class World:
    """A workspace with its vault, and the keys that open it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = Keys(os.urandom(32), folder / "state")

    @property
    def root(self) -> Path:
        """The vault's folder."""
        return self.folder / ".transcripts"

    @property
    def session_folder(self) -> Path:
        """The folder of the session that `open` opens by default."""
        return self.root / "s" / "one"

    def open(self, session: str = "one", **settings: Any) -> Compactor:
        settings = {"policy": SMALL, "keys": self.keys, **settings}
        return Compactor.open(self.folder, session, **settings)

    @contextlib.contextmanager
    def transcript(self, session: str = "one") -> Iterator[Transcript]:
        with Transcript.open(self.folder, session, keys=self.keys) as transcript:
            yield transcript

    def requests(self, session: str = "one") -> list[Request]:
        with self.transcript(session) as transcript:
            return list(transcript.requests())

    def records(self, kind: Kind, session: str = "one") -> list[Any]:
        """Return the bodies of all records of a kind."""
        with Vault.open(self.root, self.keys).read(session) as reader:
            return [reader.value(frame) for frame in reader.frames() if frame.kind is kind]

    def size(self) -> int:
        """Return the bytes of all files under the vault."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def grep(self, text: str) -> list[Path]:
        """Return the files of the vault and of the state folder that hold a text."""
        wanted = text.encode()
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return [path for path in files if wanted in path.read_bytes() or text in path.name]
