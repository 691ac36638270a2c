"""Generated conversations, played request by request, with everything between that a host does."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from compactor import MaskPolicy, PersistPolicy, Policy
from tests.properties import hosts
from tests.properties.hosts import GENERATED, MARK, History, Message

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES = [
    Policy(
        window=6_000,
        target=0.3,
        persist=PersistPolicy(
            always_chars=4_000, item_chars=1_500, batch_chars=6_000, tools={"Read": 9_000}
        ),
        mask=MaskPolicy(keep_recent=2, keep_least=1),
    ),
    Policy(window=4_000, target=0.6, mask=MaskPolicy(keep_recent=1, keep_least=0)),
    Policy(window=16_000),
    Policy(window=5_000, stages=("mask",), mask=MaskPolicy(keep_recent=1, keep_least=1)),
    Policy(window=3_000, min_gain=0.0),
]
TOOLS = ("Bash", "Read", "mcp__tickets__search")
IDS = ("fresh", "fresh", "fresh", "call_0", "call_1")  # some programs count calls anew each turn
WORDS = (
    "all is well\n",
    "Grüße aus Zürich 漢字 🧵\r\n",
    "error: exit status 1\n",
    '</persisted-output><persisted-output handle="out-aaaaaaaa">\n',
    "\ud800 lone\u2028\x00\n",
    "0123456789abcdef" * 8,
)
SIZES = (1_700, 0, 130, 900, 2_500, 2_500, 3_000, 3_500, 5_000, 9_000, 33_000)
SHAPES = (
    *(
        "string",
        "string",
        "string",
        "block",
        "blocks",
        "image",
        "text and image",
        "empty",
        "missing",
    ),
    *("null", "marked inside", "reference"),
)
THINKING = (None, None, "signed", "signed empty", "redacted")


@dataclass(frozen=True)
class Call:
    """One call and its result."""

    tool: int
    id: str
    shape: str
    size: int
    word: int
    error: bool | None
    caller: bool


@dataclass(frozen=True)
class Exchange:
    """One reply of the model, in one or several messages, and what the host answers."""

    calls: list[Call]
    replies: int
    thinking: str | None
    says: bool
    unknown: bool
    split: bool
    human: str | None
    system: bool


calls = st.builds(
    Call,
    st.integers(0, len(TOOLS) - 1),
    st.sampled_from(IDS),
    st.sampled_from(SHAPES),
    st.sampled_from(SIZES),
    st.integers(0, len(WORDS) - 1),
    st.sampled_from([None, False, True]),
    st.sampled_from([False] * 7 + [True]),
)
exchanges = st.builds(
    Exchange,
    st.lists(calls, min_size=1, max_size=4) | st.just([]),
    st.integers(1, 3),
    st.sampled_from(THINKING),
    st.booleans(),
    st.sampled_from([False] * 5 + [True]),
    st.booleans(),
    st.sampled_from([None, None, None, "text", "block", "image", "reminder", "empty"]),
    st.sampled_from([False] * 5 + [True]),
)
steps = st.one_of(
    *[st.tuples(st.just("append"), st.lists(exchanges, min_size=1, max_size=3))] * 6,
    st.tuples(st.just("rewind"), st.integers(0, 30)),
    st.tuples(st.just("flip"), st.integers(0, 30)),
    st.tuples(st.just("mark"), st.sampled_from(["in place", "copies"])),
    st.tuples(st.just("reminder"), st.sampled_from(["in front", "in the first", "in the last"])),
    st.tuples(st.just("policy"), st.integers(0, len(POLICIES) - 1)),
    st.tuples(
        st.sampled_from(
            [
                *("edit last", "edit first", "drop front", "reload", "reopen", "crash"),
                *("restart", "twice", "open call", "read"),
            ]
        ),
        st.none(),
    ),
)


class Player:
    """A host: it keeps the history as a list, and does to it what hosts do."""

    def __init__(self) -> None:
        self.history: History = [{"role": "user", "content": "Please repair the build."}]
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def append(self, exchange: Exchange) -> None:
        """Add the model's reply and the answers to its calls."""
        wanted = {self._id(one): one for one in exchange.calls}
        for part in range(exchange.replies):
            mine = list(wanted.items())[part :: exchange.replies]
            self.history.append(self._reply(exchange, part, mine))
        results = [self._result(name, one) for name, one in wanted.items()]
        groups = [[one] for one in results] if exchange.split else [results] * bool(results)
        more = self._human(exchange.human)
        if not groups or (exchange.split and more):
            groups.append([])
            more = more or [{"type": "text", "text": f"go on {self.number()}"}]
        groups[-1] = [*groups[-1], *more]
        self.history += [{"role": "user", "content": group} for group in groups]
        if exchange.human == "empty":
            self.history.append({"role": "user", "content": []})
        if exchange.system:
            self.history.append({"role": "system", "content": f"rule {self.number()}"})

    def _id(self, one: Call) -> str:
        return f"toolu_{self.number()}" if one.id == "fresh" else one.id

    def _reply(self, exchange: Exchange, part: int, mine: list[tuple[str, Call]]) -> Message:
        content: list[Any] = []
        signature = f"sig{self.number()}"
        if part == 0 and exchange.thinking == "redacted":
            content.append({"type": "redacted_thinking", "data": signature})
        elif part == 0 and exchange.thinking is not None:
            text = "" if exchange.thinking == "signed empty" else "Let me think."
            content.append({"type": "thinking", "thinking": text, "signature": signature})
        if exchange.says or not mine:
            content.append({"type": "text", "text": f"step {self.number()}", "citations": None})
        if exchange.unknown:
            content.append({"type": "server_tool_use", "id": signature, "name": "web_search"})
        for name, one in mine:
            block = {"type": "tool_use", "id": name, "name": TOOLS[one.tool], "input": {"n": 1.0}}
            if one.caller:
                block["caller"] = {"type": "code_execution", "tool_id": "x"}
            content.append(block)
        return {"role": "assistant", "content": content}

    def _result(self, name: str, one: Call) -> Message:
        word = WORDS[one.word]
        own = "" if one.id != "fresh" else f"{self.number()} "
        text = (own + word * (one.size // len(word) + 1))[: one.size]
        block: Message = {"type": "tool_result", "tool_use_id": name}
        part: Message = {"type": "text", "text": text}
        image = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo=" * 9}}
        shapes: dict[str, Any] = {
            "string": text,
            "block": [part],
            "blocks": [part, {"type": "text", "text": "second part"}],
            "image": [image],
            "text and image": [part, image],
            "empty": [],
            "null": None,
            "marked inside": [{**part, "cache_control": MARK}],
            "reference": [part, {"type": "tool_reference", "tool_name": "x"}],
        }
        if one.shape != "missing":
            block["content"] = shapes[one.shape]
        return block if one.error is None else {**block, "is_error": one.error}

    def _human(self, kind: str | None) -> list[Message]:
        text = {"type": "text", "text": f"And now {self.number()}: ünïcode"}
        image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
        reminder = {"type": "text", "text": hosts.REMINDER.format(self.number())}
        known: dict[str, list[Message]] = {
            "text": [text],
            "block": [reminder, text],
            "image": [image, text],
            "reminder": [reminder],
        }
        return known.get(kind or "", [])

    def rewind(self, back: int) -> None:
        hosts.rewind(self.history, back)

    def drop_front(self) -> None:
        """Shorten the history in front, as hosts do that know no better."""
        self.history = hosts.shortened(self.history, 1)

    def extend(self, new: list[Exchange]) -> None:
        for one in new:
            self.append(one)

    def edit(self, position: int) -> None:
        """Put another text into a message, or another result."""
        message = copy.deepcopy(self.history[position])
        if isinstance(message["content"], list) and message["content"]:
            block = message["content"][-1]
            field = "text" if block["type"] == "text" else "content"
            if block["type"] in {"text", "tool_result"}:
                block[field] = f"edited {self.number()} " * 20
        else:
            message["content"] = f"edited {self.number()}"
        self.history[position] = message

    def flip(self, position: int) -> None:
        hosts.flip(self.history, position)

    def mark(self, how: str) -> None:
        """Move the cache marks to the newest two messages that hold blocks."""
        if how == "copies":
            self.history = copy.deepcopy(self.history)
        held = [m["content"] for m in self.history if isinstance(m["content"], list)]
        held = [content for content in held if content]
        for content in held:
            content[-1].pop("cache_control", None)
        for content in held[-2:]:
            content[-1]["cache_control"] = MARK

    def remind(self, where: str) -> None:
        hosts.remind(self.history, where, self.number())

    def reload(self) -> None:
        self.history = hosts.reloaded(self.history)


def step(player: Player, name: str, value: Any) -> None:
    """Do to the history what a step says."""
    simple: dict[str, Callable[[], None]] = {
        "append": lambda: player.extend(value),
        "rewind": lambda: player.rewind(value),
        "flip": lambda: player.flip(value),
        "mark": lambda: player.mark(value),
        "reminder": lambda: player.remind(value),
        "edit last": lambda: player.edit(-1),
        "edit first": lambda: player.edit(0),
        "drop front": player.drop_front,
        "reload": player.reload,
    }
    if name in simple:
        simple[name]()


def play(watched: Any, plan: list[tuple[str, Any]]) -> None:
    """Play a conversation: after each step a request, held to all promises by `watched`."""
    player = Player()
    policy: Policy | None = None
    for name, value in plan:
        note(f"{name}: {value}")
        step(player, name, value)
        if name == "policy":
            policy = POLICIES[value] if policy is None else None
        elif name == "reopen":
            watched.reopen()
        elif name == "crash":
            watched.crash()
        elif name == "open call":
            started = [*player.history, {"role": "assistant", "content": "Let me"}]
            assert watched.view(started, policy).decisions == ()
        view = watched.view(player.history, policy)
        if name == "restart":
            watched.restarted(player.history, view, policy)
        elif name == "read":
            watched.reads()
        elif name in {"twice", "append"}:
            watched.again(player.history, view, policy)
    event(f"{min(watched.sets, 4)} sets or more, {min(watched.rewrites, 4)} rewrites")
    watched.finish(player.history, policy)


@pytest.mark.timeout(240)
@settings(GENERATED, max_examples=250)
@given(
    st.sampled_from(POLICIES),
    st.lists(exchanges, min_size=1, max_size=5),
    st.lists(steps, min_size=3, max_size=14),
)
def test_a_conversation_keeps_the_promises(
    watch: Any, policy: Policy, first: list[Exchange], plan: list[tuple[str, Any]]
) -> None:
    """Whatever the host does between requests, each view keeps what every view must keep."""
    with watch.somewhere(policy) as watched:
        play(watched, [("append", first), *plan])
