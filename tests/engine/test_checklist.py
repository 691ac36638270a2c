"""The statements of the checklist that the skeleton holds, one named test each."""

import copy
import json
import os
import stat

import pytest
from histories import (
    SMALL,
    History,
    World,
    answers,
    asks,
    assert_faithful,
    assert_legal,
    call,
    conversation,
    exchange,
    handle_of,
    hidden,
    human,
    image,
    is_masked,
    is_preview,
    output,
    result,
    result_blocks,
    says,
    skeleton,
    text_of,
)

from compactor import BadPolicy, MaskPolicy, PersistPolicy, Policy
from compactor.storage import NotStored, files


def batch(*sizes: int, tool: str = "Bash") -> History:
    """Return a request, parallel calls, and their answers of these sizes."""
    names = [f"toolu_b{number}" for number in range(len(sizes))]
    return [
        human("Look at everything."),
        asks(*(call(name, tool) for name in names)),
        answers(
            *(
                result(name, output(100 + i, size))
                for i, (name, size) in enumerate(zip(names, sizes, strict=True))
            )
        ),
    ]


def test_001_pure_function_of_its_input(world: World) -> None:
    """The same history and options give the same view, and the input is never mutated."""
    history = conversation(14, 1_500)
    before = copy.deepcopy(history)
    with world.open("one") as one, world.open("two") as two:
        first, second = one.view(history), two.view(copy.deepcopy(history))
    assert first.changed
    assert first.messages == second.messages
    assert first.decisions == second.decisions
    assert history == before


def test_003_a_note_marks_the_cut(world: World) -> None:
    """A shortened result says so, and keeps its id, its error flag and its place."""
    history = batch(40_000)
    history[2]["content"][0]["is_error"] = True
    with world.open() as session:
        view = session.view(history)
    [block] = result_blocks(view.messages)
    assert is_preview(block)
    assert (block["tool_use_id"], block["is_error"]) == ("toolu_b0", True)


def test_008_each_result_has_its_call(world: World) -> None:
    """Every view pairs calls and results as its history does."""
    history = conversation(0)
    with world.open() as session:
        for number in range(30):
            history += exchange(number)
            view = session.view(history)
            assert_faithful(history, view)
    assert hidden(view.messages)


def test_009_only_the_outgoing_copy_is_trimmed(world: World) -> None:
    """The caller's list and every message in it stay whole and are the same objects."""
    history = conversation(14)
    before, objects = copy.deepcopy(history), list(history)
    with world.open() as session:
        view = session.view(history)
    assert view.messages is not history
    assert history == before
    assert all(mine is held for mine, held in zip(history, objects, strict=True))


def test_010_runs_before_every_call(world: World) -> None:
    """A loop calls `view` before each request and appends to its own list; nothing else changes."""
    history = conversation(0)
    with world.open() as session:
        for number in range(25):
            view = session.view(history, max_tokens=500)
            assert not view.over_budget
            assert len(view.messages) == len(history)
            history += exchange(number)
    assert len(world.requests()) == 25


def test_012_nothing_to_do_returns_the_same_list(world: World) -> None:
    """Where nothing is left out the caller's own list object comes back."""
    history = conversation(2)
    with world.open() as session:
        view = session.view(history)
    assert view.messages is history
    assert not view.changed
    assert view.decisions == ()


def test_035_under_budget_is_unchanged(world: World) -> None:
    """Below the trigger nothing is left out, turn after turn."""
    history = conversation(0)
    with world.open() as session:
        for number in range(8):
            history += exchange(number)
            assert session.view(history).messages is history


def test_036_only_tool_results_are_shortened(world: World) -> None:
    """Long texts of user and assistant stay; results give way."""
    history: History = [human("word " * 2_000)]
    for number in range(10):
        history += exchange(number)
        history[-2]["content"].insert(0, {"type": "text", "text": "I think. " * 50})
    with world.open() as session:
        view = session.view(history)
    assert hidden(view.messages)
    assert_faithful(history, view)


def test_037_an_old_result_becomes_a_short_mask(world: World) -> None:
    """The mask is short and names the tool and the original length."""
    with world.open() as session:
        view = session.view(conversation(14))
    oldest = text_of(result_blocks(view.messages)[0])
    assert oldest.startswith("[Earlier tool result saved: out-")
    assert "Bash" in oldest
    assert "1500 characters" in oldest
    assert len(oldest) < 400


def test_038_a_recent_large_result_keeps_head_and_tail(world: World) -> None:
    """The marker states the original length, between the first and the last characters."""
    text = "HEAD " + output(1, 50_000) + " TAIL"
    history = [human("Go."), asks(call("a")), answers(result("a", text))]
    with world.open() as session:
        view = session.view(history)
    note = text_of(result_blocks(view.messages)[0])
    assert f'chars="{len(text)}"' in note
    assert "HEAD " in note
    assert note.rstrip().removesuffix("</persisted-output>").rstrip().endswith(" TAIL")


def test_039_system_user_and_calls_stay(world: World) -> None:
    """System messages, the human's text and call inputs stay byte for byte."""
    history = conversation(14)
    history.insert(1, {"role": "system", "content": "Mind the budget." * 100})
    history[2]["content"][0]["input"] = {"command": "x" * 2_000, "nested": {"b": 1, "a": [1.5]}}
    with world.open() as session:
        view = session.view(history, system="You are a coder. " * 20)
    assert view.changed
    for mine, sent in zip(history, view.messages, strict=True):
        assert skeleton(mine) == skeleton(sent)
        if mine["role"] != "user":
            assert sent is mine


def test_040_request_arguments_are_untouched(world: World) -> None:
    """Histories, system prompts, tool lists and options come out as they went in."""
    history = conversation(14)
    system = [{"type": "text", "text": "You are a coder."}]
    tools = [{"name": "Bash", "input_schema": {"type": "object"}}]
    metadata = {"user_id": "u"}
    held = copy.deepcopy((history, system, tools, metadata))
    with world.open() as session:
        session.view(history, system=system, tools=tools, metadata=metadata, max_tokens=10)
    assert (history, system, tools, metadata) == held


def test_047_nothing_is_deleted_silently(world: World) -> None:
    """Over budget is reported with the largest contributors, and nothing disappears for it.

    There are no summaries yet: this shows it for what exists, the two stages.
    """
    history = [human("word " * 20_000)]
    with world.open() as session:
        view = session.view(history)
    assert view.over_budget
    assert view.messages is history
    largest = view.largest[0]
    assert (largest.message, largest.block, largest.kind) == (0, 0, "text")
    assert largest.tokens > SMALL.window  # type: ignore[operator]


def test_047_what_is_hidden_is_counted_and_readable(world: World) -> None:
    """Each hidden result is a decision, is counted, and reads back."""
    history = conversation(14)
    with world.open() as session:
        view = session.view(history)
        notes = hidden(view.messages)
        assert len(notes) == len(view.decisions) == view.stats.masked
        assert view.stats.view_chars < view.stats.original_chars
        originals = {block["tool_use_id"]: block["content"] for block in result_blocks(history)}
        for note in notes:
            assert session.read(handle_of(note)).decode() == originals[note["tool_use_id"]]


def test_048_ids_and_extra_fields_survive(world: World) -> None:
    """Rewritten results keep id, error flag, cache mark and fields that nobody knows."""
    history = conversation(14)
    extra = {"is_error": True, "x_host": {"k": [1]}, "cache_control": {"type": "ephemeral"}}
    history[2]["content"][0].update(extra)
    with world.open() as session:
        view = session.view(history)
    block = result_blocks(view.messages)[0]
    assert is_masked(block)
    assert block == {**history[2]["content"][0], "content": block["content"]}


def test_054_cheap_to_lossy_in_a_fixed_order(world: World) -> None:
    """A preview comes first; a result is masked only later, once it is consumed and old."""
    policy = Policy(window=20_000, persist=PersistPolicy(always_chars=5_000))
    history = conversation(0)
    with world.open(policy=policy) as session:
        history += exchange(0, 20_000)
        assert is_preview(result_blocks(session.view(history).messages)[0])
        for number in range(1, 40):
            history += exchange(number)
            view = session.view(history)
    assert is_masked(result_blocks(view.messages)[0])
    assert result_blocks(view.messages)[0]["content"].count("out-") == 1
    assert "20000 characters" in text_of(result_blocks(view.messages)[0])


def test_055_a_batch_is_all_results_of_the_last_turn(world: World) -> None:
    """Results split over several user messages are one batch; earlier turns do not count."""
    policy = Policy(persist=PersistPolicy(always_chars=90_000, batch_chars=100_000))
    old = batch(60_000)
    new = batch(60_000, 50_000)
    split: History = [new[1], *(answers(block) for block in new[2]["content"])]
    with world.open("one", policy=policy) as session:
        assert not session.view(old).changed
        assert not session.view([*old, *exchange(1, 60_000)]).changed
    with world.open("two", policy=policy) as session:
        view = session.view([*old, says("Next."), human("Go."), *split])
    assert [is_preview(block) for block in result_blocks(view.messages)] == [False, True, False]


def test_056_the_batch_budget_takes_the_largest_first(world: World) -> None:
    """Above 200,000 characters the largest go, and only those above 30,000."""
    policy = Policy(persist=PersistPolicy(always_chars=1_000_000))
    sizes = (29_000, 80_000, 60_000, 40_000, 29_000)
    with world.open(policy=policy) as session:
        view = session.view(batch(*sizes))
    shown = [is_preview(block) for block in result_blocks(view.messages)]
    assert shown == [False, True, False, False, False]


def test_056_small_items_are_not_replaced(world: World) -> None:
    """A batch of many items up to 30,000 characters stays, however large it is together."""
    with world.open() as session:
        view = session.view(batch(*[30_000] * 8), policy=Policy(window=1_000_000))
    assert not view.changed


@pytest.mark.parametrize(
    "content",
    [
        "Zeile äöü\r\n\u2028\x00\x1b[31m " * 2_000,
        [{"type": "text", "text": "one " * 10_000}, {"type": "text", "text": "two"}],
        [{"type": "text", "text": "see " * 10_000}, image()],
    ],
    ids=["string", "blocks", "media"],
)
def test_057_the_full_original_is_on_disk(world: World, content: object) -> None:
    """After the process has gone, the handle gives the exact bytes."""
    history = [human("Go."), asks(call("a")), answers(result("a", content))]
    with world.open() as session:
        name = handle_of(result_blocks(session.view(history).messages)[0])
    with world.transcript() as transcript:
        data = transcript.read(name)
    if isinstance(content, str):
        assert data == content.encode()
    else:
        assert json.loads(data) == content


def test_058_note_with_location_and_first_2000_characters(world: World) -> None:
    """The note names the handle and the tool, and shows exactly the first 2,000 characters."""
    text = "".join(chr(ord("a") + i % 26) for i in range(40_000))
    history = [human("Go."), asks(call("a", "Fetch")), answers(result("a", text))]
    with world.open() as session:
        note = text_of(result_blocks(session.view(history).messages)[0])
    assert "out-" in note.splitlines()[0]
    assert 'tool="Fetch"' in note.splitlines()[0]
    assert text[:2_000] in note.splitlines()
    assert text[-500:] in note.splitlines()


def test_059_a_new_result_is_never_a_bare_pointer(world: World) -> None:
    """Whatever does not fit, an unread result keeps a preview until the model has seen it."""
    with world.open() as session:
        view = session.view(batch(*[25_000] * 6))
    blocks = result_blocks(view.messages)
    assert any(map(is_preview, blocks))
    assert not any(map(is_masked, blocks))
    for number, block in enumerate(blocks):
        assert f"line of output {100 + number}:" in text_of(block)


def test_059_no_setting_makes_a_new_result_a_bare_pointer(world: World) -> None:
    """A policy without any preview is refused, or something of the result stays all the same."""
    try:
        policy = Policy(persist=PersistPolicy(preview_chars=0, tail_chars=0))
    except BadPolicy:
        return
    with world.open(policy=policy) as session:
        view = session.view(batch(50_000))
    assert "line of output 100" in text_of(result_blocks(view.messages)[0])


def test_063_call_and_result_go_together(world: World) -> None:
    """In every view of a long run each call has its result right behind it, and only one."""
    history = conversation(0)
    with world.open() as session:
        for number in range(0, 60, 3):
            names = [f"toolu_{number + i}" for i in range(3)]
            history.append(asks(*map(call, names)))
            history += [answers(result(name, output(i, 900))) for i, name in enumerate(names)]
            messages = session.view(history).messages
            assert_legal(messages)
            ids = [block["tool_use_id"] for block in result_blocks(messages)]
            assert ids == [f"toolu_{i}" for i in range(number + 3)]


def test_067_consumed_and_unconsumed_are_told_apart(world: World) -> None:
    """The same result is protected while it is the newest, and maskable once answered."""
    policy = SMALL.but(mask=MaskPolicy(keep_recent=0, keep_least=0))
    history = [*conversation(11), *exchange(11, 4_000)]
    with world.open(policy=policy) as session:
        last = result_blocks(session.view(history).messages)[-1]
        assert last["content"] == history[-1]["content"][0]["content"]
        history += [says("Done with it."), human("Next. " + "word " * 4_000)]
        last = result_blocks(session.view(history).messages)[-1]
        assert is_masked(last)


def test_068_saved_first_replaced_after(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be synced is not replaced."""

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    history = conversation(14)
    with world.open() as session:
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", refuse)
            view = session.view(history)
        assert view.messages is history
        assert view.degraded
        assert view.degraded.startswith(NotStored.__name__)


def test_068_the_newest_stay_and_short_ones_too(world: World) -> None:
    """The newest `keep_recent` results and those up to `min_chars` characters stay."""
    policy = SMALL.but(mask=MaskPolicy(keep_recent=3, keep_share=1.0))
    history = conversation(14)
    short = "ok " * 40
    history[2]["content"][0]["content"] = short
    with world.open(policy=policy) as session:
        blocks = result_blocks(session.view(history).messages)
    assert len(short) == 120
    assert text_of(blocks[0]) == short
    assert [is_masked(block) for block in blocks[1:]] == [True] * 10 + [False] * 3


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o022])
def test_092_permissions_of_everything(world: World, umask: int) -> None:
    """Folders are 0700 and files 0600 whatever the umask, blobs and keys too."""
    before = os.umask(umask)
    try:
        with world.open() as session:
            session.view(conversation(14), system="s" * 20_000)
            session.view(batch(50_000))
    finally:
        os.umask(before)
    found: dict[str, set[int]] = {"folder": set(), "file": set()}
    names: list[str] = []
    for root in (world.root, world.keys.state):
        for path in (root, *root.rglob("*")):
            kind = "folder" if path.is_dir() else "file"
            found[kind].add(stat.S_IMODE(path.lstat().st_mode))
            names.append(path.name)
    assert found == {"folder": {0o700}, "file": {0o600}}
    assert any(name.endswith(".blob") for name in names)


def test_093_nothing_is_plaintext(world: World) -> None:
    """No text of messages, results, arguments, notes or tool names stands in any file or name."""
    canary = "canary-5f1b"
    history = conversation(14, request=f"Fix it {canary}.")
    history[1]["content"][0]["name"] = f"Tool{canary}"
    history[2]["content"][0]["content"] = canary + output(1, 40_000)
    with world.open() as session:
        session.view(history, system=f"You {canary}", model=f"m-{canary}")
        session.view([*history, *exchange(77, 60_000)], system=f"You {canary}" * 5_000)
        session.observe(
            {"usage": {"input_tokens": 9}, "content": [{"type": "text", "text": canary}]}
        )
    for text in (
        canary,
        "line of output",
        "Earlier tool result",
        "persisted-output",
        "tool_result",
    ):
        assert world.grep(text) == []


def test_104_newest_batch_below_and_above_the_budget(world: World) -> None:
    """Exactly at the batch budget everything stays; one character more replaces the largest."""
    policy = Policy(persist=PersistPolicy(always_chars=1_000_000))
    with world.open("below", policy=policy) as session:
        assert not session.view(batch(100_000, 60_000, 40_000)).changed
    with world.open("above", policy=policy) as session:
        view = session.view(batch(100_001, 60_000, 40_000))
    assert [is_preview(b) for b in result_blocks(view.messages)] == [True, False, False]


def test_107_no_cut_splits_a_pair(world: World) -> None:
    """Parallel calls, split results and reminders between them stay legal through a compaction."""
    history: History = [human("Go.")]
    for number in range(0, 24, 2):
        one, two = f"toolu_{number}", f"toolu_{number + 1}"
        history.append(asks(call(one), call(two, "Read"), text="Both."))
        if number % 4:
            history.append(answers(result(two, output(number, 900)), result(one, output(1, 500))))
        else:
            history.append(answers(result(one, output(number, 900))))
            reminder = {"type": "text", "text": "<system-reminder>mind</system-reminder>"}
            history.append(answers(result(two, output(number, 800)), reminder))
    with world.open() as session:
        view = session.view(history)
    assert hidden(view.messages)
    assert_faithful(history, view)


def test_108_unread_results_are_protected(world: World) -> None:
    """Results of the last turn stay byte for byte while consumed ones can make room."""
    policy = SMALL.but(mask=MaskPolicy(keep_recent=0, keep_least=0))
    history = conversation(12)
    names = [f"toolu_n{i}" for i in range(4)]
    history.append(asks(*map(call, names)))
    history.append(answers(*(result(name, output(200, 1_500)) for name in names)))
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert len(hidden(view.messages)) == 12
    assert view.messages[-1] is history[-1]
