"""Images, documents, arguments of calls and giant texts that give way, and come back exactly."""

import json
from typing import Any

import pytest
from histories import (
    HANDLE,
    MARK,
    SMALL,
    History,
    Message,
    World,
    answers,
    asks,
    assert_legal,
    call,
    conversation,
    exchange,
    handle_of,
    human,
    image,
    is_masked,
    is_preview,
    marks_in,
    output,
    reloaded,
    result,
    result_blocks,
    says,
    skeleton,
    text_of,
)

from compactor import Compactor, MaskPolicy, Policy

DOCUMENTS: dict[str, Message] = {
    "image": image(),
    "image by address": {"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}},
    "document": {
        "type": "document",
        "title": "Plan \u2028 ü",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0" * 900},
    },
    "text": {
        "type": "document",
        "context": None,
        "citations": {"enabled": True},
        "source": {"type": "text", "media_type": "text/plain", "data": output(1, 9_000)},
    },
}
PAIRS = frozenset({("Write", "content")})


def as_json(value: object) -> bytes:
    """Write what a handle reads for all that is not one text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def without_nulls(block: Message) -> Message:
    return {k: v for k, v in block.items() if v is not None and k != "cache_control"}


def note_in(block: Message) -> str:
    """Return the handle in a placeholder."""
    assert block["type"] == "text"
    found = HANDLE.search(block["text"])
    assert found, block["text"]
    assert block["text"].startswith("[Earlier ")
    return found[0]


def shows(*blocks: Message) -> History:
    """Return a conversation whose first message shows media, and whose request is another."""
    history = [human("Look at this.", *blocks), says("I see."), human("Now fix the login.")]
    for number in range(14):
        history += exchange(number)
    return history


def writes(number: int, tool: str = "Write", **given: Any) -> History:
    """Return a call with these arguments and the answer to it."""
    name = f"toolu_w{number}"
    return [asks(call(name, tool, input=given)), answers(result(name, "Written."))]


def many_writes(count: int = 14, tool: str = "Write", size: int = 1_500) -> History:
    history = [human("Write the files.")]
    for number in range(count):
        history += writes(number, tool, path=f"src/{number}.py", content=output(number, size))
    return history


def inputs(messages: History) -> list[Any]:
    return [
        block["input"]
        for message in messages
        for block in message["content"]
        if block["type"] == "tool_use"
    ]


def is_note(value: object) -> bool:
    return str(value).startswith("[Earlier argument saved: out-")


# Images and documents


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_old_media_become_placeholders(world: World, kind: str) -> None:
    """One line with a handle in its place; text beside it stays; the block reads back exactly."""
    block = DOCUMENTS[kind]
    history = shows(block)
    with world.open() as session:
        view = session.view(history)
        first, second = view.messages[0]["content"]
        assert first is history[0]["content"][0]
        assert block["type"] in second["text"]
        assert "\n" not in second["text"]
        name = note_in(second)
        assert session.read(name) == as_json(without_nulls(block))
        assert_legal(view.messages)
    with world.transcript() as transcript:
        assert json.loads(transcript.read(name)) == without_nulls(block)


def test_every_medium_of_a_message_has_its_own_handle(world: World) -> None:
    """In their order, equal ones under one handle."""
    history = shows(image(400), image(500), image(400))
    with world.open() as session:
        view = session.view(history)
        names = [note_in(block) for block in view.messages[0]["content"][1:]]
        assert names[0] == names[2] != names[1]
        assert session.read(names[1]) == as_json(image(500))


def test_media_of_the_current_request_stay(world: World) -> None:
    """However old it is, and however much else gives way."""
    history = conversation(14)
    history[0]["content"] += [image(), DOCUMENTS["document"]]
    with world.open() as session:
        view = session.view(history)
    assert view.stats.masked
    assert view.messages[0] is history[0]


def test_media_of_a_request_that_was_current_then(world: World) -> None:
    """They stay while it is the current one, and give way in a later compaction."""
    history = conversation(14)
    history[0]["content"].append(image())
    with world.open() as session:
        assert session.view(history).messages[0] is history[0]
        history += [says("Done."), human("Next.")]
        for number in range(20, 40):
            history += exchange(number)
        view = session.view(history)
        assert view.decisions
        assert note_in(view.messages[0]["content"][1])


def test_media_stay_where_the_policy_says_so(world: World) -> None:
    """`mask.media` off: images and documents of the user are left alone."""
    history = shows(image(), DOCUMENTS["document"])
    with world.open(policy=SMALL.but(mask__media=False)) as session:
        view = session.view(history)
    assert view.stats.masked
    assert view.messages[0] is history[0]


def test_media_that_nobody_has_looked_at_stay(world: World) -> None:
    """An image of the newest message is unread."""
    history = [*conversation(14), says("Done."), human("And this?", image())]
    with world.open() as session:
        view = session.view(history)
    assert view.stats.masked
    assert view.messages[-1] is history[-1]


def test_media_in_results_go_with_them(world: World) -> None:
    """A masked result reads back as JSON of its blocks."""
    shot = [{"type": "text", "text": "a screenshot"}, image()]
    history = [human("Go."), asks(call("a", "Screen")), answers(result("a", shot))]
    history += conversation(14)[1:]
    with world.open() as session:
        block = result_blocks(session.view(history).messages)[0]
        assert is_masked(block)
        assert session.read(handle_of(block)) == as_json(shot)


def test_a_cache_mark_moves_onto_the_placeholder(world: World) -> None:
    """And the original reads back without it."""
    history = shows({**image(), "cache_control": MARK})
    with world.open() as session:
        view = session.view(history)
        placeholder = view.messages[0]["content"][1]
        assert placeholder["cache_control"] == MARK
        assert marks_in(view.messages) == 1
        assert session.read(note_in(placeholder)) == as_json(image())


def test_the_oldest_images_go_where_too_many_are_sent(world: World) -> None:
    """Down to the provider's limit, though the view is far from full."""
    history = [human("Watch.")]
    for number in range(6):
        name = f"toolu_{number}"
        history += [asks(call(name, "Screen")), answers(result(name, [image(400 + number)]))]
    with world.open(policy=Policy(max_images=4, target=0.6)) as session:
        view = session.view(history)
    assert [is_masked(block) for block in result_blocks(view.messages)] == [True] * 2 + [False] * 4


def test_images_before_the_providers_own_compaction_stay(world: World) -> None:
    """Planning starts behind it, for the provider's limits too."""
    history = shows(image(400), image(500))[:3]
    summary = {"type": "compaction", "content": "So far."}
    history += [{"role": "assistant", "content": [summary]}, human("Go on.")]
    for number in range(4):
        name = f"toolu_{number}"
        history += [asks(call(name, "Screen")), answers(result(name, [image(600 + number)]))]
    with world.open(policy=Policy(max_images=4, target=0.6)) as session:
        view = session.view(history)
    assert view.messages[:4] == history[:4]
    assert [is_masked(block) for block in result_blocks(view.messages)] == [True] * 2 + [False] * 2


def test_older_results_still_give_way_after_images_have(world: World) -> None:
    """Images that went for their number do not shield the results before them."""
    history = conversation(6)
    for number in range(4):
        name = f"toolu_i{number}"
        history += [asks(call(name, "Screen")), answers(result(name, [image(400 + number)]))]
    policy = Policy(window=20_000, max_images=2, target=0.6, stages=("mask",))
    with world.open(policy=policy) as session:
        assert session.view([*history, *exchange(50)]).stats.masked == 2
        for number in range(50, 70):
            history += exchange(number)
        blocks = result_blocks(session.view(history).messages)
    assert is_masked(blocks[0])


def test_the_same_bytes_after_a_restart(world: World) -> None:
    """Placeholders and masked arguments are decisions like all others."""
    history = [*shows(image(), DOCUMENTS["text"]), *many_writes(3)[1:], *exchange(50)]
    policy = SMALL.but(mask__inputs=PAIRS)
    with world.open(policy=policy) as session:
        before = json.dumps(session.view(history).messages)
    assert "Earlier argument saved" in before
    assert "Earlier image saved" in before
    with world.open(policy=Policy()) as session:
        view = session.view(reloaded(history))
        assert json.dumps(view.messages) == before
        for name in session.handles():
            session.read(name)
    assert all(request.whole for request in world.requests())


def test_placeholders_go_where_the_message_changes(world: World) -> None:
    """Another image there is another block; the first one's handle still reads it."""
    history = shows(image(400))
    with world.open() as session:
        name = note_in(session.view(history).messages[0]["content"][1])
        edited = [human("Look at this.", image(500)), *history[1:]]
        assert session.view(edited, policy=Policy()).messages[0] is edited[0]
        assert session.read(name) == as_json(image(400))


def test_images_give_way_again_after_a_rewind(world: World) -> None:
    """Unread or current again they show; read again they are hidden in the same bytes."""
    history = shows(image())
    with world.open() as session:
        before = session.view(history)
        assert session.view(history[:1]).messages[0] is history[0]
        assert session.view(history).messages == before.messages


def test_images_of_a_message_that_is_current_again(world: World) -> None:
    """After a fork behind it, read or not, the request shows all that it has."""
    history = shows(image())
    forked = [history[0], *exchange(50, 100), *exchange(51, 100)]
    with world.open() as session:
        before = session.view(history)
        assert note_in(before.messages[0]["content"][1])
        assert session.view(forked).messages[0] is history[0]
        assert session.view(history).messages == before.messages


# Arguments of calls


def test_arguments_stay_unless_they_are_named(world: World) -> None:
    """By default no input of a call is touched, however long."""
    history = many_writes()
    with world.open(policy=SMALL) as session:
        view = session.view(history)
    assert inputs(view.messages) == inputs(history)


def test_named_arguments_become_notes(world: World) -> None:
    """The named key of the named tool; id, name, other keys and unknown fields stay."""
    history = many_writes()
    history[1]["content"][0]["x_host"] = {"k": [1]}
    with world.open(policy=SMALL.but(mask__inputs=PAIRS)) as session:
        view = session.view(history)
        assert view.stats.masked
        assert_legal(view.messages)
        for was, now in zip(history, view.messages, strict=True):
            if was is now:
                continue
            [block], [shown] = was["content"], now["content"]
            assert shown == {
                **block,
                "input": {**block["input"], "content": shown["input"]["content"]},
            }
            found = HANDLE.search(shown["input"]["content"])
            assert is_note(shown["input"]["content"])
            assert found
            assert session.read(found[0]) == as_json(block["input"])
            assert "1500 characters" in shown["input"]["content"]


def test_the_newest_call_keeps_its_arguments(world: World) -> None:
    """Only consumed calls give way: the last one was not answered before."""
    history = many_writes()
    with world.open(policy=SMALL.but(mask__inputs=PAIRS)) as session:
        view = session.view(history)
    assert is_note(inputs(view.messages)[0]["content"])
    assert view.messages[-2] is history[-2]


@pytest.mark.parametrize(
    "pair", [("Edit", "content"), ("Write", "path"), ("write", "content"), ("Write", "Content")]
)
def test_other_pairs_name_nothing_here(world: World, pair: tuple[str, str]) -> None:
    """Tool and key must both be those of the call, letter by letter."""
    history = many_writes()
    with world.open(policy=SMALL.but(mask__inputs=frozenset({pair}))) as session:
        assert inputs(session.view(history).messages) == inputs(history)


def test_short_and_structured_arguments_stay(world: World) -> None:
    """Strings up to `min_chars` characters, and everything that is no string."""
    history = [human("Write.")]
    for number, content in enumerate(["x" * 120, ["y" * 3_000], {"z": "y" * 3_000}, None, 7]):
        history += writes(number, content=content, note="long " * 300)
    history += conversation(14)[1:]
    with world.open(policy=SMALL.but(mask__inputs=PAIRS)) as session:
        view = session.view(history)
    assert inputs(view.messages) == inputs(history)


def test_several_arguments_of_one_call_share_a_handle(world: World) -> None:
    """It reads the whole input."""
    history = [human("Edit."), *writes(0, "Edit", old="a " * 900, new="b " * 900, path="p")]
    history += conversation(14)[1:]
    pairs = frozenset({("Edit", "old"), ("Edit", "new")})
    with world.open(policy=SMALL.but(mask__inputs=pairs)) as session:
        shown = inputs(session.view(history).messages)[0]
        assert shown["old"] == shown["new"]
        assert is_note(shown["old"])
        assert shown["path"] == "p"
        found = HANDLE.search(shown["old"])
        assert found
        assert json.loads(session.read(found[0])) == inputs(history)[0]


def test_calls_that_code_has_made_keep_their_arguments(world: World) -> None:
    """A call with another caller than the model passes unchanged, and so does its result."""
    history = many_writes()
    history[1]["content"][0]["caller"] = {"type": "code_execution_20260120", "tool_id": "x"}
    history[3]["content"][0]["caller"] = {"type": "direct"}
    with world.open(policy=SMALL.but(mask__inputs=PAIRS)) as session:
        view = session.view(history)
    assert view.messages[1] is history[1]
    assert is_note(view.messages[3]["content"][0]["input"]["content"])


# Lists of tools


def masked_tools(world: World, mask: MaskPolicy) -> set[str]:
    """Return the tools of which results are masked in a history of three tools."""
    history = [human("Go.")]
    for number in range(15):
        history += exchange(number, tool=("Bash", "Read", "Search")[number % 3])
    with world.open(policy=SMALL.but(mask=mask)) as session:
        blocks = result_blocks(session.view(history).messages)
    numbers = [number for number, block in enumerate(blocks) if is_masked(block)]
    return {("Bash", "Read", "Search")[number % 3] for number in numbers}


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, {"Bash", "Read", "Search"}),
        ({"only": {"Bash", "Read"}}, {"Bash", "Read"}),
        ({"never": {"Read"}}, {"Bash", "Search"}),
        ({"only": {"Bash", "Read"}, "never": {"Read"}}, {"Bash"}),
        ({"only": set()}, set()),
    ],
)
def test_which_tools_may_be_masked(world: World, lists: dict[str, Any], expected: set[str]) -> None:
    """`only` allows, `never` forbids and has the last word."""
    assert masked_tools(world, MaskPolicy(keep_recent=0, keep_least=0, **lists)) == expected


def test_a_list_for_results_says_nothing_of_arguments(world: World) -> None:
    """Named arguments of a tool whose results stay give way all the same."""
    mask = MaskPolicy(never=frozenset({"Write"}), inputs=PAIRS)
    history = many_writes()
    with world.open(policy=SMALL.but(mask=mask)) as session:
        view = session.view(history)
    assert is_note(inputs(view.messages)[0]["content"])
    assert result_blocks(view.messages) == result_blocks(history)


# Giant texts of the user

GIANT = Policy(
    window=15_000,
    request_block_chars=20_000,
    mask=MaskPolicy(keep_recent=0, keep_least=0),
    stages=("persist", "mask"),
)
TEXT = "HEAD " + "word ü " * 5_000 + " TAIL"


def asked(session: Compactor, exchanges: int = 4) -> tuple[History, History]:
    """Ask with a giant text, then work until it does not fit; return the history and the view."""
    history = [human(TEXT, {"type": "text", "text": "Sum it up."})]
    assert session.view(history).messages is history
    for number in range(exchanges):
        history += exchange(number, 4_000)
        session.view(history)
    return history, session.view([*history, *exchange(60, 12_000)]).messages


def test_a_giant_consumed_request_is_shortened(world: World) -> None:
    """Head and tail stay around a note with a handle, which reads the exact text."""
    with world.open(policy=GIANT) as session:
        history, messages = asked(session)
        block, other = messages[0]["content"]
        assert other is history[0]["content"][1]
        assert text_of({"content": [block]}).startswith("<persisted-output ")
        assert "HEAD word" in block["text"]
        assert "word ü  TAIL" in block["text"]
        assert len(block["text"]) < 4_000
        found = HANDLE.search(block["text"])
        assert found
        assert session.read(found[0]) == TEXT.encode()
    assert all(request.whole for request in world.requests())


def test_a_giant_request_stays_while_everything_fits(world: World) -> None:
    """Masks come first."""
    history = [human(TEXT)]
    for number in range(14):
        history += exchange(number)
    with world.open(policy=GIANT.but(window=19_000)) as session:
        view = session.view(history)
        assert view.stats.masked
        assert view.messages[0] is history[0]


def test_a_giant_request_stays_while_it_is_unread(world: World) -> None:
    """Too large or not: the model has not seen it."""
    history = [*conversation(6), says("Done."), human(TEXT * 2)]
    with world.open(policy=GIANT) as session:
        view = session.view(history)
        assert view.over_budget
        assert view.messages[-1] is history[-1]


def test_a_request_up_to_the_limit_stays(world: World) -> None:
    """By default that is 100,000 characters."""
    with world.open(policy=GIANT.but(request_block_chars=100_000)) as session:
        history, messages = asked(session)
        assert messages[0] is history[0]


def test_a_giant_request_that_is_unread_again(world: World) -> None:
    """After a rewind to before the first answer it stands whole."""
    with world.open(policy=GIANT) as session:
        history, messages = asked(session)
        assert messages[0] is not history[0]
        assert session.view(history[:1]).messages[0] is history[0]


def test_a_giant_text_of_an_older_message_is_shortened_too(world: World) -> None:
    """It is consumed like the current request, and the newer request stays."""
    history = [human(TEXT), says("So."), human("Now the rest."), *exchange(1, 8_000)]
    with world.open(policy=GIANT.but(window=13_500)) as session:
        view = session.view([*history, *exchange(2, 12_000)])
        assert view.messages[0]["content"][0]["text"].startswith("<persisted-output ")
        assert view.messages[2] is history[2]


def test_masks_and_previews_leave_the_rest_of_messages(world: World) -> None:
    """Roles, order, ids and all other blocks are those of the history."""
    history = [*shows(image()), *exchange(50, 50_000)]
    with world.open() as session:
        view = session.view(history)
    assert is_preview(result_blocks(view.messages)[-1])
    for was, now in zip(history[1:], view.messages[1:], strict=True):
        assert skeleton(was) == skeleton(now)
