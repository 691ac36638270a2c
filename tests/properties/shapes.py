"""Histories of every shape that clients send, as strategies and a host that plays them."""

import copy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from compactor import ArchivePolicy, MaskPolicy, PersistPolicy, Policy
from tests.properties import hosts
from tests.properties.hosts import MARK, History, Message

# Ranges here are archives; `course` has its own order.
STAGES = ("persist", "mask", "archive")
POLICIES = [
    Policy(window=4_000, stages=("persist", "archive"), archive=ArchivePolicy(keep_head=1)),
    Policy(window=6_000, stages=STAGES, mask=MaskPolicy(keep_recent=2, keep_least=1)),
    Policy.course(window=30_000).but(
        stages=("persist", "archive", "mask"),
        archive={"max_messages": 14, "keep_head": 3, "keep_tail": 8},
    ),
    Policy(
        window=8_000,
        stages=STAGES,
        target=0.4,
        persist=PersistPolicy(always_chars=3_000, preview_chars=300, tail_chars=100),
        archive=ArchivePolicy(
            max_messages=24, keep_head=2, keep_tail=11, keep_user_chars=400, keep_user_share=1.0
        ),
    ),
    Policy(context_chars=12_000, target=0.3, stages=("archive", "mask")),
    Policy(
        window=30_000, stages=STAGES, max_images=3, max_bytes=40_000, mask=MaskPolicy(keep_recent=1)
    ),
]
IMAGE = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo" * 9}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "page after page " * 60}}
REMINDER = {"type": "text", "text": "<system-reminder>\nMind the time.\n</system-reminder>"}
UNKNOWN = {"type": "of_tomorrow", "payload": {"x": [1, None, "ü"]}}

SAYS = ("text", "text", "nothing", "long", "thinking", "redacted", "server", "mcp", "unknown")
HUMANS = (
    *(None, None, None, None, "text", "text", "string", "image", "document", "reminder"),
    *("three messages", "unknown", "the same"),
)
SYSTEMS = (None, None, None, None, "string", "blocks", "fields")
CONTENTS = ("string", "string", "block", "blocks", "image", "document", "reference", "fields")


@dataclass(frozen=True)
class Call:
    """One call and its result."""

    size: int
    content: str
    repeats_id: bool
    by_code: bool


@dataclass(frozen=True)
class Turn:
    """One reply of the model, in one or several messages, and what the host answers."""

    says: str
    replies: int
    calls: list[Call]
    split: bool
    backwards: bool
    human: str | None
    system: str | None
    compaction: bool


calls = st.builds(
    Call,
    st.sampled_from([40, 400, 1_200, 2_500, 6_000]),
    st.sampled_from(CONTENTS),
    st.sampled_from([False, False, True]),
    st.sampled_from([False] * 6 + [True]),
)
turns = st.builds(
    Turn,
    st.sampled_from(SAYS),
    st.integers(1, 3),
    st.lists(calls, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(HUMANS),
    st.sampled_from(SYSTEMS),
    st.sampled_from([False] * 24 + [True]),
)


class Host:
    """Keeps a history and does to it what hosts do."""

    def __init__(self) -> None:
        self.history: History = [{"role": "user", "content": "Please repair the build."}]
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def extend(self, new: list[Turn]) -> None:
        for turn in new:
            self.append(turn)

    def append(self, turn: Turn) -> None:
        """Add the model's messages and the host's."""
        held = {f"call_{i}" if c.repeats_id else f"toolu_{self.number()}": c
                for i, c in enumerate(turn.calls)}  # fmt: skip
        opening = self._opening(turn)
        self.history += [{"role": "assistant", "content": said} for said in opening]
        made = [self._call(name, one) for name, one in held.items()]
        if made:
            self.history[-1]["content"] += made
        results = [self._result(name, one) for name, one in held.items()]
        if turn.backwards:
            results.reverse()
        batches = [[one] for one in results] if turn.split else [results] * bool(results)
        humans = self._human(turn.human)
        if not batches and not humans:
            humans = [[{"type": "text", "text": f"go on {self.number()}"}]]
        if batches and humans and turn.backwards:
            batches[-1] = [*batches[-1], *humans.pop(0)]
        self.history += [{"role": "user", "content": blocks} for blocks in batches]
        for blocks in humans:
            lone = turn.human == "string"
            content = blocks[0]["text"] if lone else blocks
            self.history.append({"role": "user", "content": content})
        if turn.system:
            self.history.append(self._system(turn.system))

    def _opening(self, turn: Turn) -> list[list[Message]]:
        """Return the contents of a run of assistant messages; calls stand in the last."""
        number = self.number()
        text = {"type": "text", "text": f"step {number}", "citations": None}
        kinds: dict[str, list[Message]] = {
            "text": [text],
            "nothing": [] if turn.calls else [text],
            "long": [{"type": "text", "text": f"I think {number}. " * 120}],
            "thinking": [
                {"type": "thinking", "thinking": "Hm." * (number % 3), "signature": f"s{number}"},
                text,
            ],
            "redacted": [{"type": "redacted_thinking", "data": f"r{number}"}, text],
            "server": [
                {"type": "server_tool_use", "id": f"srv{number}", "name": "web", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": f"srv{number}", "content": []},
                text,
            ],
            "mcp": [
                {"type": "mcp_tool_use", "id": f"m{number}", "name": "x", "server_name": "y"},
                {"type": "mcp_tool_result", "tool_use_id": f"m{number}", "content": [text]},
                text,
            ],
            "unknown": [text, UNKNOWN],
        }
        found = [[dict(text)] for _ in range(turn.replies - 1)]
        found.append(copy.deepcopy(kinds[turn.says]))
        if turn.compaction:
            found[0].insert(0, {"type": "compaction", "content": f"So far {number}."})
        return found

    def _call(self, name: str, one: Call) -> Message:
        tool = ("Bash", "Read", "Write")[one.size % 3]
        block = {"type": "tool_use", "id": name, "name": tool, "input": {"n": 1.0, "of": None}}
        if one.by_code:
            block["caller"] = {"type": "code_execution_20260120", "tool_id": "x"}
        return block

    def _result(self, name: str, one: Call) -> Message:
        line = f"output {self.number()}: all is well ü\n"
        text = (line * (one.size // len(line) + 1))[: one.size]
        part: Message = {"type": "text", "text": text}
        kinds: dict[str, Any] = {
            "block": [part],
            "blocks": [part, {"type": "text", "text": "second"}],
            "image": [part, IMAGE],
            "document": [DOCUMENT],
            "reference": [part, {"type": "tool_reference", "tool_name": "x"}],
        }
        content = copy.deepcopy(kinds.get(one.content, text))
        block: Message = {"type": "tool_result", "tool_use_id": name, "content": content}
        fields = {"x_host": {"k": 1}, "is_error": False} if one.content == "fields" else {}
        return {**block, **fields}

    def _human(self, kind: str | None) -> list[list[Message]]:
        """Return the contents of a run of user messages."""
        number = self.number()
        text: Message = {"type": "text", "text": f"And now {number}: ünïcode \u2028 ok"}
        kinds: dict[str, list[list[Message]]] = {
            "text": [[text]],
            "string": [[text]],
            "image": [[IMAGE, text]],
            "document": [[text, DOCUMENT]],
            "reminder": [[REMINDER]],
            "three messages": [[text], [REMINDER], [{"type": "text", "text": "Please."}]],
            "unknown": [[text, UNKNOWN]],
            "the same": [[{"type": "text", "text": "Continue."}]],
        }
        return copy.deepcopy(kinds.get(kind or "", []))

    def _system(self, kind: str) -> Message:
        number = self.number()
        if kind == "blocks":
            return {"role": "system", "content": [{"type": "text", "text": f"rule {number}"}]}
        made: Message = {"role": "system", "content": f"rule {number}"}
        return {**made, "x_scope": {"turn": number}} if kind == "fields" else made

    def rewind(self, back: int) -> None:
        hosts.rewind(self.history, back)

    def front(self, count: int) -> None:
        """Leave out the oldest exchanges, but for the first message."""
        self.history = hosts.shortened(self.history, count)
        if len(self.history) == 1:
            self.history.append({"role": "user", "content": f"go on {self.number()}"})

    def edit(self, position: int) -> None:
        """Put another text into a message of the user."""
        for at in range(position % len(self.history), -1, -1):
            message = self.history[at]
            if message["role"] == "user" and isinstance(message["content"], str):
                self.history[at] = {"role": "user", "content": f"edited {self.number()}"}
                return
            content = copy.deepcopy(message["content"])
            block = content[-1] if content else {}
            if message["role"] == "user" and block.get("type") in {"text", "tool_result"}:
                key = "text" if block["type"] == "text" else "content"
                block[key] = f"edited {self.number()}"
                self.history[at] = {**message, "content": content}
                return

    def harmless(self, position: int) -> None:
        """Write a message otherwise that says the same."""
        message = copy.deepcopy(self.history[position % len(self.history)])
        content = message["content"]
        if isinstance(content, str):
            message["content"] = [{"type": "text", "text": content}]
        elif content:
            content[0]["x_none"] = None
        self.history[position % len(self.history)] = message

    def mark(self) -> None:
        """Move the cache marks: one far back, two among the newest messages."""
        self.reload()  # what stands far back is looked at only in a new object
        users = [m for m in self.history if m["role"] == "user" and isinstance(m["content"], list)]
        for message in users:
            for block in message["content"]:
                block.pop("cache_control", None)
        for message in [*users[len(users) // 2 :][:1], *users[-2:]]:
            message["content"][-1]["cache_control"] = MARK

    def reload(self) -> None:
        self.history = hosts.reloaded(self.history)
