"""What a message is to the engine: its digest, and the doorway that only JSON passes."""

import copy
import datetime as dt
import math
from collections import OrderedDict
from typing import Any

import pytest
from histories import (
    MARK,
    SMALL,
    History,
    Message,
    World,
    answers,
    asks,
    call,
    conversation,
    exchange,
    hidden,
    human,
    output,
    result,
)
from hypothesis import given
from hypothesis import strategies as st

from compactor import BadMessage, CompactorError
from compactor.messages import canonical, plain
from compactor.wire import wire_format

WIRE = wire_format("anthropic")


def digest(message: Message) -> str:
    return WIRE.inspect(message, lambda _: False).digest.hex()


VECTORS: list[tuple[Message, str]] = [
    (
        {"role": "user", "content": "Hello"},
        "ca3190cf7a0805c8b541730e357bdf9192497f1ab122af4f4d79e6f002c6efae",
    ),
    (
        human("Zeile \u2028 ä 😀 \n\x01"),
        "69dfed1bf6f97e3b86caa9a79b10fce2d3af24819fd5e7e6d2dfb3c0f59a3bea",
    ),
    (human("\ud800"), "dfdd13c985ff022d2f0b2f8881a692708e5c52f32b239af05180192fdfbc4652"),
    (
        asks(call("toolu_1", input={"z": None, "c": -0.0, "b": 1e16, "a": 1.5})),
        "a40c1900870e544386d1f90d2295294fceec21ccaf8a0c63eea92c7508ca60a3",
    ),
    (
        asks(call("toolu_1", input={"n": 123456789012345678901234567890})),
        "0be9abc07c3bfe4a1fe899c86d2f68b58f9cda0a6927f001a74645f605684dd8",
    ),
    (
        answers(result("toolu_1", "ok", is_error=True)),
        "798473f2e8349b2ee9325eccb8d44effcef906cdf0549c46a79658fd0ad56f72",
    ),
    (
        {"role": "user", "content": []},
        "fb296c5e1d944682ffae5842637030ce9c66c55e58cd2f9a06cd6e4cb17ba01b",
    ),
]


@pytest.mark.parametrize(("message", "expected"), VECTORS, ids=range(len(VECTORS)))
def test_digest_vectors(message: Message, expected: str) -> None:
    """Vaults hold these digests: they never change."""
    assert digest(message) == expected


BLOCK = {"type": "text", "text": "Hello"}
SAME: list[tuple[Message, Message]] = [
    ({"role": "user", "content": "Hello"}, {"role": "user", "content": [BLOCK]}),
    (human("Hello"), {"content": [{"text": "Hello", "type": "text"}], "role": "user"}),
    (human("Hello"), {"role": "user", "content": [{**BLOCK, "cache_control": MARK}]}),
    (human("Hello"), {"role": "user", "content": [{**BLOCK, "citations": None}]}),
    (human("Hello"), {**human("Hello"), "id": None, "cache_control": MARK}),
    (answers(result("a", "ok")), answers(result("a", [{"type": "text", "text": "ok"}]))),
    (
        answers(result("a", [{"type": "text", "text": "ok", "cache_control": MARK}])),
        answers(result("a", "ok", is_error=None)),
    ),
    ({"role": "user"}, {"role": "user", "content": []}),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=range(len(SAME)))
def test_the_same_message(one: Message, other: Message) -> None:
    """Marks, nulls, key order and the spelling of a lone text mean nothing."""
    assert digest(one) == digest(other)


DIFFERENT: list[tuple[Message, Message]] = [
    (human("Hello"), human("Hello ")),
    (human("Hello"), says := {"role": "assistant", "content": [BLOCK]}),
    (says, {**says, "id": "msg_1"}),
    (human("Hello"), human("Hello", BLOCK)),
    (asks(call("a", input={"n": 1})), asks(call("a", input={"n": 1.0}))),
    (asks(call("a", input={"n": 1})), asks(call("a", input={"n": True}))),
    (asks(call("a", input={"n": None})), asks(call("a", input={}))),
    (asks(call("a", input={"cache_control": 1})), asks(call("a", input={}))),
    (asks(call("a", input={"l": [1, 2]})), asks(call("a", input={"l": [2, 1]}))),
    (answers(result("a", "ok")), answers(result("b", "ok"))),
    (answers(result("a", "ok")), answers(result("a", "ok", is_error=False))),
    (human("e\u0301"), human("\u00e9")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_another_message(one: Message, other: Message) -> None:
    """Whatever the model may read differently is another message."""
    assert digest(one) != digest(other)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    return value


@given(JSON)
def test_key_order_never_matters(value: Any) -> None:
    """At any depth, whatever the values; and plain JSON passes as the object that it is."""
    assert canonical(value) == canonical(shuffled(value))
    assert plain(value) is value


class Odd:
    """An object that no JSON holds."""


def cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def nested(depth: int) -> Any:
    made: Any = "deep"
    for _ in range(depth):
        made = [made]
    return made


REFUSED = {
    "nan": math.nan,
    "infinity": -math.inf,
    "bytes": b"bytes",
    "set": {1, 2},
    "object": Odd(),
    "class": Odd,
    "date": dt.datetime.now(dt.UTC),
    "key": {1: "one"},
    "cycle": cycle(),
    "deep": nested(151),
    "generator": (n for n in range(3)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_json_is_refused_and_the_session_goes_on(world: World, kind: str) -> None:
    """`BadMessage` names the place, and the next view works as if nothing had been."""
    history = conversation(14)
    bad = asks(call("toolu_x", input={"value": REFUSED[kind]}))
    with world.open() as session:
        session.view(history[:3])
        with pytest.raises(BadMessage, match=r"messages\[29\]") as caught:
            session.view([*history, bad])
        assert caught.value.hint
        assert isinstance(caught.value, ValueError)
        view = session.view(history)
        assert view.changed
    assert [request.whole for request in world.requests()] == [True, True]


@pytest.mark.parametrize("slot", ["system", "tools", "metadata"])
def test_arguments_that_are_not_json_are_refused(world: World, slot: str) -> None:
    """The error names the argument."""
    bad: dict[str, Any] = {slot: [b"bytes"]}
    with world.open() as session:
        with pytest.raises(BadMessage, match=slot):
            session.view(conversation(1), **bad)
        assert not session.view(conversation(1)).changed


@pytest.mark.parametrize(
    "message",
    ["hi", None, 5, ["x"], {}, {"role": 1, "content": "x"}, {"role": "user", "content": {"a": 1}}],
    ids=repr,
)
def test_what_is_no_message_is_refused(world: World, message: Any) -> None:
    """Anything but a dictionary with a role and content is a `BadMessage`."""
    with world.open() as session, pytest.raises(BadMessage):
        session.view([message])


ODD_BLOCKS: dict[str, Message] = {
    "number as result": answers(result("a", 5)),
    "string in result": answers(result("a", ["x", {"type": "text", "text": "y" * 50_000}])),
    "dict as result": answers(result("a", {"type": "text", "text": "y"})),
    "caller is text": asks(call("a", caller="direct")),
    "source is text": human("x", {"type": "document", "source": "file"}),
    "source in result": answers(result("a", [{"type": "document", "source": "file"}])),
    "text is a number": {"role": "user", "content": [{"type": "text", "text": 5}]},
    "type is a list": {"role": "user", "content": [{"type": ["text"]}]},
    "no type": {"role": "user", "content": [{"text": "x"}]},
    "no ids": answers({"type": "tool_result", "content": "x"}),
    "thinking is a number": {"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]},
}


@pytest.mark.parametrize("shape", ODD_BLOCKS)
def test_odd_blocks_pass_or_are_refused_by_name(world: World, shape: str) -> None:
    """The provider judges odd content; the engine passes it on, or raises its own error."""
    history = [human("Go."), ODD_BLOCKS[shape]]
    with world.open() as session:
        try:
            view = session.view(history)
        except CompactorError:
            return
        assert len(view.messages) == 2


@pytest.mark.parametrize("messages", [(), ({"role": "user", "content": "x"},), "text", None, {}])
def test_a_history_is_a_list(world: World, messages: Any) -> None:
    """Anything else is a `BadMessage`, since the same list must come back."""
    with world.open() as session, pytest.raises(BadMessage, match="list"):
        session.view(messages)


def test_tuples_and_mappings_are_taken(world: World) -> None:
    """A tuple is a list, any mapping a dictionary; what is recorded reads back equal."""
    odd: Message = {
        "role": "user",
        "content": (OrderedDict(type="text", text="Hi"), {"type": "text", "text": "there"}),
    }
    with world.open() as session:
        assert session.view([odd]).messages == [odd]
    [request] = world.requests()
    assert request.whole
    assert request.messages == [human("Hi", {"type": "text", "text": "there"})]


def test_strange_values_read_back_exactly(world: World) -> None:
    """Big integers, floats, lone surrogates and U+2028 in inputs and results."""
    value = {"big": 10**40, "f": [0.1, -0.0, 1e300], "s": "\ud800 \u2028 \x00", "d": nested(60)}
    history = [human("Go."), asks(call("a", input=value)), answers(result("a", "\udfff" * 40_000))]
    before = copy.deepcopy(history)
    with world.open() as session:
        view = session.view(history)
        [name] = session.handles()
        assert session.read(name) == ("\udfff" * 40_000).encode("utf-8", "surrogatepass")
    [request] = world.requests()
    assert request.whole
    assert request.messages == view.messages
    with world.transcript() as transcript:
        assert transcript.messages() == before


def test_sdk_objects_are_accepted(world: World) -> None:
    """Replies, their blocks and the SDK's omit signs, as `anthropic` makes them."""
    from anthropic import NOT_GIVEN, omit
    from anthropic.types import Message as Reply
    from anthropic.types import TextBlock, ToolUseBlock

    reply = Reply.model_validate({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_0", "name": "Bash", "input": {"a": 1.5}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 12, "output_tokens": 3},
    })  # fmt: skip
    assert isinstance(reply.content[0], TextBlock)
    assert isinstance(reply.content[1], ToolUseBlock)
    history: History = [human("Go.")]
    with world.open() as session:
        session.view(history, system=omit, tools=NOT_GIVEN, max_tokens=100)
        session.observe(reply)
        history.append({"role": "assistant", "content": reply.content})
        history.append(answers(result("toolu_0", output(1, 40_000))))
        view = session.view(history, system=omit, temperature=NOT_GIVEN, max_tokens=100)
        assert len(hidden(view.messages[2:])) == 1
        session.observe(reply.usage)
    first, second = world.requests()
    assert first.options == second.options == {"max_tokens": 100}
    assert (first.system, first.tools) == (None, None)
    assert second.whole
    assert second.messages[1] == asks(call("toolu_0", input={"a": 1.5}), text="I look.")


def test_a_whole_reply_may_stand_in_the_history(world: World) -> None:
    """`messages.append(reply)` works: the object passes through, and resuming knows it again."""
    from anthropic.types import Message as Reply

    reply = Reply.model_validate({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "tool_use", "id": "toolu_0", "name": "Bash", "input": {}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 12, "output_tokens": 3},
    })  # fmt: skip
    history: list[Any] = [human("Go."), reply, answers(result("toolu_0", output(1, 40_000)))]
    with world.open() as session:
        view = session.view(history)
        assert view.messages[1] is reply
    with world.open() as session:
        again = session.view([history[0], Reply.model_validate(reply.to_dict()), history[2]])
    assert again.messages[2] == view.messages[2]
    assert again.decisions == ()


def test_a_policy_is_no_part_of_the_history() -> None:
    """Digests depend on the message alone."""
    assert SMALL.window == 10_000
    assert digest(exchange(1)[1]) == digest(copy.deepcopy(exchange(1)[1]))
