"""The Messages API: facts about messages, and what replacing a result changes."""

import copy

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
    hidden,
    human,
    image,
    is_masked,
    is_preview,
    marks_in,
    output,
    result,
    result_blocks,
    says,
    text_of,
)

from compactor import BadPolicy, MaskPolicy, Policy
from compactor.messages import Kind, Note
from compactor.wire import wire_format

WIRE = wire_format("anthropic")


def kinds(message: Message) -> list[Kind]:
    return [block.kind for block in WIRE.inspect(message, lambda _: False).blocks]


def test_another_format_is_refused_by_name(world: World) -> None:
    """With the names of those that there are."""
    with pytest.raises(BadPolicy, match="telegram") as caught:
        wire_format("telegram")
    assert "anthropic" in str(caught.value.hint)
    with pytest.raises(ValueError, match="telegram"):
        world.open(wire="telegram")


def test_kinds_of_blocks() -> None:
    """What the engine knows by name, and everything else as opaque."""
    names = {
        "text": Kind.TEXT,
        "image": Kind.MEDIA,
        "document": Kind.MEDIA,
        "tool_use": Kind.CALL,
        "tool_result": Kind.RESULT,
        "thinking": Kind.THINKING,
        "redacted_thinking": Kind.THINKING,
        "server_tool_use": Kind.OPAQUE,
        "web_search_tool_result": Kind.OPAQUE,
        "compaction": Kind.BOUNDARY,
        "mcp_tool_use": Kind.OPAQUE,
        "of_tomorrow": Kind.OPAQUE,
    }
    found = kinds({"role": "assistant", "content": [{"type": name} for name in names]})
    assert found == list(names.values())


def test_characters_are_those_of_text() -> None:
    """Of a text, of all texts of a result, of a call's input; not of base64."""
    message = answers(
        result("a", [{"type": "text", "text": "ab"}, image(), {"type": "text", "text": "c"}])
    )
    [block] = WIRE.inspect(message, lambda _: False).blocks
    assert block.chars == 3
    assert block.media == 1_600
    assert WIRE.block_text(message, 0) == "ab\nc"


def test_the_exact_content_of_a_result() -> None:
    """A lone text is its UTF-8; anything else is JSON of its blocks."""
    for content, data in [
        ("äb", "äb".encode()),
        ([{"type": "text", "text": "äb"}], "äb".encode()),
        ([{"type": "text", "text": "a", "cache_control": MARK}], b"a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
         b'[{"text":"a","type":"text"},{"text":"b","type":"text"}]'),
        ([{"type": "text", "text": "a", "citations": [1]}],
         b'[{"citations":[1],"text":"a","type":"text"}]'),
        ("", b""),
    ]:  # fmt: skip
        assert WIRE.block_bytes(answers(result("a", content)), 0) == data
    assert WIRE.block_bytes(answers({"type": "tool_result", "tool_use_id": "a"}), 0) == b"[]"


def test_replacing_keeps_everything_else() -> None:
    """Id, error flag, unknown fields, neighbours, fields of the message; and the original."""
    message = answers(
        result("a", "old", is_error=True, x_mine=[1], cache_control=MARK),
        result("b", "other"),
        {"type": "text", "text": "And?"},
    )
    message["x_host"] = {"k": "v"}
    before = copy.deepcopy(message)
    made = WIRE.replace(message, {0: Note("note")})
    assert message == before
    assert made["content"][0] == {**before["content"][0], "content": "note"}
    assert made["content"][1] is message["content"][1]
    assert made["content"][2] is message["content"][2]
    assert made["x_host"] == {"k": "v"}


def test_replacing_with_and_without_media() -> None:
    """A preview keeps images and documents behind its text; a mask does not."""
    message = answers(result("a", [image(), {"type": "text", "text": "old"}]))
    made = WIRE.replace(message, {0: Note("note", keep_media=True)})
    assert made["content"][0]["content"] == [{"type": "text", "text": "note"}, image()]
    assert WIRE.replace(message, {0: Note("note")})["content"][0]["content"] == "note"


def test_a_mark_inside_a_result_stays_in_it() -> None:
    """One mark, the newest, whatever parts carried marks before."""
    parts = [{"type": "text", "text": t, "cache_control": {**MARK, "ttl": t}} for t in ("5m", "1h")]
    made = WIRE.replace(answers(result("a", parts)), {0: Note("note")})
    [part] = made["content"][0]["content"]
    assert part == {"type": "text", "text": "note", "cache_control": {**MARK, "ttl": "1h"}}
    marked = {**image(), "cache_control": MARK}
    notes = {0: Note("note", keep_media=True)}
    made = WIRE.replace(answers(result("a", [parts[0], marked])), notes)
    assert marks_in(made) == 1


def test_marks_are_found_on_blocks_and_inside_them() -> None:
    """By block position."""
    message = answers(
        result("a", "x"),
        result("b", [{"type": "text", "text": "y", "cache_control": MARK}]),
        {"type": "text", "text": "z", "cache_control": MARK},
        {"type": "text", "text": "z", "cache_control": None},
    )
    assert list(WIRE.marks(message)) == [1, 2]
    assert not WIRE.marks({"role": "user", "content": "x"})


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 60},
        {"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30},
        {"input_tokens": 10, "cache_read_input_tokens": 50, "cache_creation_input_tokens": None},
        {"input_tokens": 90, "iterations": [{"input_tokens": 30}, {"input_tokens": 60}]},
        {"input_tokens": 60, "iterations": []},
        {"input_tokens": 60, "iterations": None},
    ],
    ids=range(6),
)
def test_used_tokens(usage: Message) -> None:
    """Input, cache reads and cache writes of the last iteration."""
    assert WIRE.used_tokens(usage) == 60
    assert WIRE.used_tokens({"output_tokens": 5}) is None


OPAQUE: dict[str, tuple[Message, Message]] = {
    "tool_reference": (
        call("a"),
        result(
            "a", [{"type": "tool_reference", "name": "x"}, {"type": "text", "text": "t" * 50_000}]
        ),
    ),
    "search_result": (
        call("a"),
        result(
            "a", [{"type": "search_result", "content": [{"type": "text", "text": "t" * 50_000}]}]
        ),
    ),
    "caller": (
        call("a", caller={"type": "code_execution_20250825", "tool_id": "srv"}),
        result("a", "t" * 50_000),
    ),
}


@pytest.mark.parametrize("shape", OPAQUE)
def test_opaque_results_are_never_touched(world: World, shape: str) -> None:
    """Results that feed code, or hold what the engine does not know, new or old."""
    asked, answered = OPAQUE[shape]
    policy = SMALL.but(mask=MaskPolicy(keep_recent=0, keep_least=0))
    history: History = [human("Go."), asks(asked), answers(answered)]
    with world.open(policy=policy) as session:
        assert session.view(history).messages is history
        history += conversation(14)
        view = session.view(history)
    assert view.changed
    assert view.messages[2] is history[2]


def test_a_direct_caller_is_ordinary(world: World) -> None:
    """`caller: direct` is what the API writes on every call of the model itself."""
    asked = call("a", caller={"type": "direct"})
    with world.open() as session:
        view = session.view([human("Go."), asks(asked), answers(result("a", output(1, 50_000)))])
    assert len(hidden(view.messages)) == 1


def test_thinking_and_server_blocks_pass_through(world: World) -> None:
    """Signed thinking (even empty), redacted thinking, server tools and unknown types."""
    odd = [
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv", "content": [{"x": None}]},
        {"type": "of_tomorrow", "stuff": {"a": [None]}},
    ]
    history = conversation(14)
    history[1]["content"] = [*odd, *history[1]["content"]]
    with world.open() as session:
        view = session.view(history)
    assert view.changed
    assert view.messages[1] is history[1]
    [request] = world.requests()
    assert request.messages[1] == history[1]


def test_images_stay_in_a_preview_and_leave_with_a_mask(world: World) -> None:
    """New and too large, only the text gives way; old, all of it is one line."""
    content = [{"type": "text", "text": output(1, 40_000)}, image()]
    history: History = [human("Go."), asks(call("a")), answers(result("a", content))]
    with world.open(policy=Policy(window=15_000)) as session:
        block = result_blocks(session.view(history).messages)[0]
        assert is_preview(block)
        assert block["content"][1] == image()
        history += conversation(20)
        view = session.view(history)
        block = result_blocks(view.messages)[0]
        assert is_masked(block)
        assert isinstance(block["content"], str)
        assert "40000 characters" in text_of(block)
    assert view.messages[-1] == history[-1]


def test_a_result_of_images_alone_is_masked(world: World) -> None:
    """An old screenshot becomes one line and reads back as its blocks."""
    history: History = [human("Go.")]
    for number in range(8):
        name = f"toolu_{number}"
        history += [asks(call(name, "Screen")), answers(result(name, [image(number)]))]
    history += [says("Done."), human("Next.")]
    with world.open() as session:
        view = session.view(history)
        masked = [block for block in result_blocks(view.messages) if is_masked(block)]
        assert len(masked) >= 3
        assert b'"type":"image"' in session.read(session.handles()[0])
