"""The statements of the checklist that the engine holds beyond the skeleton, one named test each.

What other files hold in full has no second test here: off (13), settings for one call (14), logs
(15, 16, 17), budgets by tool (23), stages off (30), reports over budget (46), counters (82, 83,
85) and refusing disks (110).
"""

import copy
import dataclasses
import json
import logging
import re
from typing import Any

import pytest
from histories import (
    RESULTS,
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
    is_masked,
    is_preview,
    output,
    reloaded,
    result,
    result_blocks,
    says,
    text_of,
)

from compactor import (
    ArchivePolicy,
    MaskPolicy,
    PersistPolicy,
    Policy,
    RangeDecision,
    View,
)
from compactor.storage import Kind

BARE = SMALL.but(mask=MaskPolicy(keep_recent=0, keep_least=0))
SIZE = Policy(window=10_000, stages=("archive",))


def range_of(view: View) -> tuple[int, int]:
    """Return the bounds of the one range that a view decided."""
    [one] = [each for each in view.decisions if isinstance(each, RangeDecision)]
    return one.span.start, one.span.start + one.span.length


def by_count(most: int, head: int, tail: int) -> Policy:
    return Policy(archive=ArchivePolicy(max_messages=most, keep_head=head, keep_tail=tail))


def parallel(*sizes: int, tool: str = "Bash") -> History:
    """Return calls in one message, and their answers of these sizes in another."""
    names = [f"toolu_p{number}" for number in range(len(sizes))]
    made = [result(n, output(i, s)) for i, (n, s) in enumerate(zip(names, sizes, strict=True))]
    return [asks(*(call(name, tool) for name in names)), answers(*made)]


def talks(exchanges: int) -> History:
    """Return a history of which dialogue, not results, takes the room."""
    history = [human("Fix the login.")]
    for number in range(exchanges):
        history += exchange(number, 100)
        history[-2]["content"].insert(0, {"type": "text", "text": "I think so. " * 150})
    return history


@pytest.mark.parametrize("cap", [1_000, 5_000, 40_000])
def test_002_every_oversized_result_is_cut_to_a_cap(world: World, cap: int) -> None:
    """A configurable one: every larger result of the batch gives way, no other does."""
    policy = Policy(persist=PersistPolicy(always_chars=cap, preview_chars=300, tail_chars=100))
    sizes = [cap - 1, cap, cap + 1, 3 * cap, 45_000]
    with world.open(policy=policy) as session:
        view = session.view([human("Go."), *parallel(*sizes)])
    shown = [is_preview(block) for block in result_blocks(view.messages)]
    assert shown == [size > cap for size in sizes]
    assert all(len(text_of(block)) <= max(cap, 1_000) for block in result_blocks(view.messages))


def test_004_past_a_count_the_oldest_go(world: World) -> None:
    """Whole recent turns stay, as the caller's own objects."""
    history = conversation(30, 100)
    with world.open(policy=by_count(40, 3, 20)) as session:
        view = session.view(history)
    start, end = range_of(view)
    assert (start, end) == (3, 41)
    assert all(mine is sent for mine, sent in zip(history[end:], view.messages[-20:], strict=True))


def test_005_a_trim_starts_at_an_exchange_with_the_request_kept(world: World) -> None:
    """The tail starts with an assistant message, and what the human asks for stands there."""
    history = conversation(30, 100)
    history[21:21] = [human("Rather the logout.")]
    with world.open(policy=by_count(40, 3, 20)) as session:
        view = session.view(history)
    _, end = range_of(view)
    assert history[end]["role"] == "assistant"
    assert view.messages[3]["content"][1:] == history[21]["content"]


@pytest.mark.parametrize("tail", range(13, 20))
def test_006_the_nearest_safe_start_after_the_cut(world: World, tail: int) -> None:
    """Where the cut by count falls into an exchange, the next one starts the tail."""
    history = [human("Go.")]
    for number in range(12):
        names = [f"toolu_{number}_{i}" for i in range(3)]
        history.append(asks(*map(call, names)))
        history += [answers(result(name, "ok")) for name in names]
    with world.open(policy=by_count(40, 1, tail)) as session:
        _, end = range_of(session.view(history))
    safe = [i for i, message in enumerate(history) if message["role"] == "assistant"]
    assert end == min(i for i in safe if i >= len(history) - tail)


def test_007_no_safe_start_no_cut(world: World) -> None:
    """One exchange of many messages is not cut, whatever the count says."""
    names = [f"toolu_{i}" for i in range(30)]
    history = [human("Go."), asks(*map(call, names))]
    history += [answers(result(name, "ok")) for name in names]
    with world.open(policy=by_count(20, 3, 10)) as session:
        assert session.view(history).messages is history


def test_011_the_system_prompt_is_never_trimmed(world: World) -> None:
    """It is counted and recorded as it is, and stays the caller's; so do the tools."""
    system = [{"type": "text", "text": "You are a careful coder. " * 400}]
    tools = [{"name": "Bash", "description": "runs " * 500, "input_schema": {"type": "object"}}]
    before = copy.deepcopy((system, tools))
    with world.open(policy=Policy(window=12_000)) as session:
        view = session.view(conversation(14), system=system, tools=tools)
    assert view.changed
    assert (system, tools) == before
    [request] = world.requests()
    assert (request.system, request.tools) == before


def test_014_every_stage_can_be_set_for_one_call(world: World) -> None:
    """The setting holds for that call only."""
    history = conversation(30, 100)
    with world.open(policy=Policy()) as session:
        assert session.view(history).messages is history
        view = session.view(history, policy=by_count(40, 3, 20))
        assert view.stats.archived_messages
        longer = [*history, *conversation(30, 100)[1:]]
        assert session.view(longer).decisions == ()


def test_015_a_line_counts_what_was_archived(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Before and after in tokens, and how many messages one note stands for."""
    with world.open(policy=SIZE) as session, caplog.at_level(logging.INFO, "compactor"):
        view = session.view(conversation(14))
    [record] = caplog.records
    line = record.getMessage()
    assert f"{view.stats.original_tokens} to {view.stats.view_tokens} tokens" in line
    assert "20 messages archived" in line


def test_018_old_results_go_before_dialogue(world: World) -> None:
    """Where masks suffice no word of human and assistant leaves the view."""
    history = conversation(14)
    for number in range(1, len(history), 2):
        history[number]["content"].insert(0, {"type": "text", "text": f"Thought {number}."})
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
    assert hidden(view.messages)
    assert_faithful(history, view)


@pytest.mark.parametrize("policy", [Policy(), Policy.frugal(), Policy.roomy(), Policy.course()])
def test_019_deterministic_stages_come_first(policy: Policy) -> None:
    """No stage that asks a model stands before one that does not: a summary is the last, if any."""
    asks_nobody = [stage in {"persist", "mask", "archive"} for stage in policy.stages]
    assert policy.stages[0] == "persist"
    assert asks_nobody == sorted(asks_nobody, reverse=True)


def test_019_the_first_stages_are_deterministic(world: World) -> None:
    """Two sessions decide the same of the same history, with nobody to ask."""
    history = [*talks(14), *exchange(50, 50_000)]
    policy = Policy(window=10_000, stages=("persist", "mask", "archive"))
    with world.open("one", policy=policy) as one, world.open("two", policy=policy) as two:
        decided = one.view(history).decisions
        assert decided == two.view(reloaded(history)).decisions
    assert {decision.stage for decision in decided} >= {"persist", "archive"}


def test_020_results_first_then_more(world: World) -> None:
    """Clearing old results is one stage, a summary of what remains too large the next."""
    with world.open("results", policy=Policy(window=10_000)) as session:
        stages = {one.stage for one in session.view(conversation(14)).decisions}
        assert stages == {"mask"}
    with world.open("dialogue", policy=Policy(window=10_000)) as session:
        assert "summarize" in {one.stage for one in session.view(talks(14)).decisions}


@pytest.mark.parametrize("policy", [SMALL, SIZE], ids=["masks", "archive"])
def test_024_a_view_may_be_written_back(world: World, policy: Policy) -> None:
    """The loop goes on with the view as its list: legal, and all handles still read."""
    history = conversation(14)
    originals = [text_of(block) for block in result_blocks(history)]
    with world.open(policy=policy) as session:
        history[:] = session.view(history).messages
        written = reloaded(history)
        for number in range(20, 32):
            history += exchange(number)
            view = session.view(history)
            assert_legal(view.messages)
        assert view.messages[:3] == written[:3]
        read = b"".join(map(session.read, session.handles())).decode()
        kept = json.dumps(view.messages, ensure_ascii=False)
        for text in originals:
            assert text in read or json.dumps(text)[1:-1] in read + kept
    assert all(request.whole for request in world.requests())


def test_025_what_can_be_fetched_again_is_known(world: World) -> None:
    """All that a view leaves out has a handle, in its note and in the list, that reads it back."""
    history = [*conversation(14), *talks(14)[1:], *exchange(50, 50_000)]
    policy = Policy(window=16_000, stages=("persist", "mask", "archive"))
    with world.open(policy=policy) as session:
        view = session.view(history)
        shown = json.dumps(view.messages)
        for decision in view.decisions:
            assert decision.handle in shown
            assert decision.handle in session.handles()
            if isinstance(decision, RangeDecision):
                end = decision.span.start + decision.span.length
                assert json.loads(session.read(decision.handle)) == history[decision.message : end]
            else:
                block = history[decision.message]["content"][decision.target.block]
                assert session.read(decision.handle).decode() == text_of(block)
    assert {decision.stage for decision in view.decisions} >= {"persist", "archive"}


def test_026_below_the_threshold_only_giants_are_cut(world: World) -> None:
    """No turn is dropped; a single giant result is shortened all the same."""
    history = [*conversation(4), *exchange(4, 60_000)]
    with world.open(policy=Policy()) as session:
        view = session.view(history)
    assert [is_preview(block) for block in result_blocks(view.messages)] == [False] * 4 + [True]
    assert_faithful(history, view)


@pytest.mark.parametrize("keep", [1, 4, 7])
def test_027_the_newest_n_results_stay(world: World, keep: int) -> None:
    """And each note names tool and handle."""
    policy = SMALL.but(mask=MaskPolicy(keep_recent=keep, keep_share=1.0))
    with world.open(policy=policy) as session:
        blocks = result_blocks(session.view(conversation(14)).messages)
        assert [is_masked(block) for block in blocks] == [True] * (14 - keep) + [False] * keep
        for block in filter(is_masked, blocks):
            assert "Bash" in text_of(block).splitlines()[0]
            assert handle_of(block) in session.handles()


def test_028_allow_and_deny_lists_of_tools(world: World) -> None:
    """By default none is exempt; a list names those that are, or those that are not."""
    history = conversation(0)
    for number in range(14):
        history += exchange(number, tool=("Bash", "Read")[number % 2])
    for name, lists, expected in (
        ("allow", {"only": frozenset({"Read"})}, {1}),
        ("deny", {"never": frozenset({"Read"})}, {0}),
    ):
        mask = MaskPolicy(keep_recent=0, keep_least=0, **lists)  # type: ignore[arg-type]
        with world.open(name, policy=SMALL.but(mask=mask)) as session:
            blocks = result_blocks(session.view(history).messages)
        assert {i % 2 for i, block in enumerate(blocks) if is_masked(block)} == expected


def test_029_each_stage_measures_anew(world: World) -> None:
    """Masks stop where previews on arrival have made the room."""
    policy = Policy(window=10_000, target=0.6, persist=PersistPolicy(always_chars=8_000))
    short, long = conversation(8), conversation(8)
    long += exchange(50, 20_000)
    with world.open(policy=policy) as session:
        assert session.view(short).messages is short
        view = session.view(long)
    assert view.stats.persisted == 1
    assert view.stats.masked == 0


def test_031_the_share_of_the_window_is_visible(world: World) -> None:
    """An estimate until the provider has measured; from then on its measure and what came since."""
    history = conversation(3)
    with world.open(policy=Policy(window=20_000)) as session:
        guessed = session.view(history).stats
        assert 0 < guessed.view_tokens < guessed.window == 20_000
        used = guessed.view_tokens + 1_234
        usage = {"input_tokens": used - 300, "cache_read_input_tokens": 200}
        session.observe({"usage": {**usage, "cache_creation_input_tokens": 100}})
        assert session.view(history).stats.view_tokens == used
        history += exchange(3)
        grown = session.view(history).stats
        assert used < grown.view_tokens < 2 * used


ARCHIVE: dict[str, Any] = {
    "max_messages": None,
    "keep_head": 9,
    "keep_tail": 10,
    "keep_user_chars": 0,
    "keep_user_share": 0.0,
}


def test_042_every_setting_of_the_archive_is_listed_here() -> None:
    """A new setting needs a test of its effect."""
    assert {field.name for field in dataclasses.fields(ArchivePolicy)} == {*ARCHIVE}


@pytest.mark.parametrize("name", ARCHIVE)
def test_042_every_setting_of_the_archive_has_an_effect(world: World, name: str) -> None:
    """Each, changed alone, changes what is sent of one and the same history."""
    history = conversation(30, 100)
    history[11:11] = [human("Rather this."), *exchange(40, 100)]
    history[41:41] = [human("Or that."), *exchange(41, 100)]
    policy = by_count(40, 3, 20)
    with world.open("one", policy=policy) as one:
        before = one.view(history).messages
    with world.open("two", policy=policy.but(archive={name: ARCHIVE[name]})) as two:
        assert two.view(history).messages != before


def test_041_the_result_is_frozen_and_has_the_numbers(world: World) -> None:
    """Original and final sizes, counts, changed, still over budget; positions to go by."""
    with world.open(policy=SIZE) as session:
        view = session.view(talks(14))
    for part, field in ((view, "messages"), (view.stats, "masked"), (view.decisions[0], "handle")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field, None)
    assert view.changed
    assert view.stats.original_tokens > view.stats.view_tokens
    assert view.stats.original_chars > view.stats.view_chars
    assert view.stats.archived_messages > 0
    assert view.over_budget is False


def test_043_a_warning_if_still_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, not with each request of a history that stays too large."""
    history = [human("word " * 8_000), *exchange(1, 100)]
    with world.open() as session, caplog.at_level(logging.WARNING, "compactor"):
        for number in range(2, 5):
            assert session.view(history).over_budget
            history += exchange(number, 100)
    assert len(caplog.records) == 1
    assert "word" not in caplog.text


def test_044_the_provider_gets_the_view_the_loop_keeps_the_original(world: World) -> None:
    """Also where a range is hidden: the list stays whole, and is what the transcript holds."""
    history = conversation(14)
    before = copy.deepcopy(history)
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert history == before
    assert len(view.messages) < len(history)
    with world.transcript() as transcript:
        assert transcript.messages() == history
    assert world.requests()[0].messages == view.messages


def test_046_what_cannot_shrink_is_reported(world: World) -> None:
    """Nothing is deleted to make it fit; the view says what takes the room."""
    history = [human("word " * 10_000), *exchange(1, 100), *exchange(2, 100)]
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
    assert view.over_budget
    assert view.messages is history
    assert (view.largest[0].message, view.largest[0].kind) == (0, "text")


def test_049_an_edit_of_the_history_is_seen(world: World) -> None:
    """Nothing stale is sent: what changed under a range shows as it is now."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        assert session.view(history).stats.archived_messages
        edited = reloaded(history)
        edited[5]["content"].insert(0, {"type": "text", "text": "Changed."})
        view = session.view(edited, policy=Policy())
        assert view.messages is edited


def test_051_each_edit_says_what_why_and_how_much(world: World) -> None:
    """Place, stage, handle and size of each decision; of the set why, before and after."""
    history = [*conversation(14), *exchange(50, 50_000)]
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
    with world.transcript() as transcript:
        [one] = transcript.sets
    assert one.decisions == view.decisions
    assert one.reason == "trigger"
    assert one.before > one.after == view.stats.view_tokens
    for decision in view.decisions:
        assert decision.stage in {"persist", "mask", "archive"}
        assert 0 <= decision.message < len(history)
        assert decision.tokens > 0
        assert decision.handle


@pytest.mark.parametrize(
    ("policy", "history"),
    [
        (SMALL.but(trigger=0.3), conversation(6)),
        (SMALL.but(window=5_000), conversation(6)),
        (SMALL.but(context_chars=6_000), conversation(6)),
        (by_count(12, 3, 6), conversation(6)),
    ],
    ids=["trigger", "window", "characters", "count"],
)
def test_060_thresholds_are_settings(world: World, policy: Policy, history: History) -> None:
    """What the defaults leave alone is compacted where a setting says so."""
    with world.open("defaults", policy=Policy()) as session:
        assert session.view(history).messages is history
    with world.open(policy=policy) as session:
        assert session.view(history).changed


@pytest.mark.parametrize("exchanges", [25, 40, 100])
def test_061_above_fifty_three_and_forty_six(world: World, exchanges: int) -> None:
    """The teaching pipeline's numbers: one marker with count and location between."""
    history = conversation(exchanges, 100)
    with world.open(policy=Policy.course()) as session:
        view = session.view(history)
        start, end = range_of(view)
        [name] = session.handles()
    assert start == 3
    assert len(view.messages) in {49, 50}
    assert len(history) - end in {45, 46}
    marker = view.messages[3]["content"][0]["text"]
    assert re.fullmatch(rf"\[{end - start} messages archived: {name}\]", marker)


def test_066_the_third_stage_runs_only_if_still_over(world: World) -> None:
    """One and the same history: where masks may not run, the archive does."""
    history = conversation(14)
    for name, stages, archived in (
        ("both", ("persist", "mask", "archive"), False),
        ("alone", ("persist", "archive"), True),
    ):
        with world.open(name, policy=Policy(window=10_000, stages=stages)) as session:
            assert bool(session.view(history).stats.archived_messages) is archived


@pytest.mark.parametrize("target", [0.3, 0.45, 0.6])
def test_069_stops_at_the_target(world: World, target: float) -> None:
    """The last mask takes the view below it, and without it the view was above."""
    history = conversation(14)
    with world.open(policy=BARE.but(target=target)) as session:
        view = session.view(history)
    last = view.decisions[-1]
    goal = target * 9_800
    assert view.stats.view_tokens <= goal
    assert view.stats.view_tokens + 530 - last.tokens > goal


def test_070_rank_by_age_rather_than_by_tool(world: World) -> None:
    """Whatever the tools are called, the oldest consumed results go first."""
    names = ["Bash", "Read", "mcp__x__y", "Edit", "Task", "WebFetch", "read_transcript"]
    history = conversation(0)
    for number in range(14):
        history += exchange(number, tool=names[number * 5 % 7])
    with world.open(policy=SMALL.but(target=0.45)) as session:
        blocks = result_blocks(session.view(history).messages)
    shown = [is_masked(block) for block in blocks]
    assert 0 < sum(shown) < 14
    assert shown == sorted(shown, reverse=True)


def test_071_unread_results_alone_too_large(world: World) -> None:
    """Largest first, with a short preview, and no more of them than it takes."""
    sizes = [9_000, 20_000, 12_000, 6_000]
    with world.open(policy=SMALL) as session:
        view = session.view([human("Go."), *parallel(*sizes)])
    blocks = result_blocks(view.messages)
    assert [is_preview(block) for block in blocks] == [False, True, False, False]
    assert not view.over_budget
    assert "Preview (first 500 of 20000 characters)" in text_of(blocks[1])


def test_081_characters_are_not_called_tokens(world: World) -> None:
    """Both are given; characters are counted exactly, also where the budget is in tokens."""
    history = conversation(14)
    text = sum(len(block["content"]) for block in result_blocks(history)) + len("Fix the login.")
    calls = sum(len(json.dumps(m["content"][0]["input"])) - 1 for m in history[1::2])
    with world.open() as session:
        stats = session.view(history).stats
    assert stats.original_chars == text + calls
    assert stats.original_tokens < stats.original_chars / 2


def test_084_the_budget_follows_the_models_limit(world: World) -> None:
    """The same history: too large for one model, not for another; a setting has the last word."""
    history = conversation(420)
    with world.open(policy=Policy(stages=RESULTS)) as session:
        large = session.view(history, model="claude-sonnet-4-5", betas=["context-1m-2025-08-07"])
        assert large.messages is history
        small = session.view(history, model="claude-sonnet-4-5")
        assert small.changed
        assert small.stats.window < large.stats.window
        assert session.view(history, model="x", policy=SMALL).stats.window == 10_000


def test_103_in_place_and_new_list_are_two_things(world: World) -> None:
    """A view is a new list; only the caller writes into the history, if at all."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        view = session.view(history)
        assert view.messages is not history
        assert len(history) == 29
        again = session.view(history)
        assert again.messages == view.messages
        history[:] = view.messages
        after = session.view(history, policy=Policy(stages=()))
        assert after.messages == view.messages


def test_105_a_large_result_goes_to_disk_under_a_clean_name(world: World) -> None:
    """Preview in view, the bytes on disk, and no name of the caller in any path."""
    name = "../../etc/pass wd\x00\n" * 20
    history = [human("Go."), asks(call(name, "Bash")), answers(result(name, output(1, 90_000)))]
    with world.open() as session:
        [block] = result_blocks(session.view(history).messages)
        assert is_preview(block)
        assert session.read(handle_of(block)) == output(1, 90_000).encode()
    paths = [path.relative_to(world.root).as_posix() for path in world.root.rglob("*")]
    assert all(re.fullmatch(r"[A-Za-z0-9._/-]+", path) for path in paths)
    assert not any("etc" in path for path in paths)


@pytest.mark.parametrize(("head", "tail"), [(1, 10), (3, 20), (4, 13)])
def test_106_the_middle_goes_head_and_tail_stay(world: World, head: int, tail: int) -> None:
    """The counts are those of the settings, up to the next exchange."""
    history = conversation(30, 100)
    with world.open(policy=by_count(40, head, tail)) as session:
        view = session.view(history)
    start, end = range_of(view)
    assert head <= start <= head + 1
    assert tail - 1 <= len(history) - end <= tail
    assert view.messages[:start] == history[:start]
    assert view.messages[start + 1 :] == history[end:]


def test_109_old_results_are_shortened_step_by_step(world: World) -> None:
    """Preview, then mask, then gone with the middle: each time as far as the target asks."""
    policy = Policy(window=10_000, persist=PersistPolicy(always_chars=5_000))
    history, stages = conversation(0), list[str]()
    history += exchange(0, 8_000)
    with world.open(policy=policy.but(archive={"keep_head": 1})) as session:
        for number in range(1, 60):
            view = session.view(history)
            shown = [b for b in result_blocks(view.messages) if b["tool_use_id"] == "toolu_0"]
            kind = "gone"
            if shown:
                kind = (
                    "mask"
                    if is_masked(shown[0])
                    else "preview"
                    if is_preview(shown[0])
                    else "whole"
                )
            stages += [kind] if kind not in stages[-1:] else []
            history += exchange(number)
            history[-2]["content"].insert(0, {"type": "text", "text": "I think so. " * 40})
        assert session.read(session.handles()[0]) == output(0, 8_000).encode()
    assert stages == ["preview", "mask", "gone"]
    assert len(world.records(Kind.SET)) < 20


def test_109_what_has_been_said_stays_longer_than_results(world: World) -> None:
    """A reply of the assistant is in view while its call's result is a line already."""
    history = conversation(14)
    history[1]["content"].insert(0, says("I look at the log.")["content"][0])
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
    assert is_masked(result_blocks(view.messages)[0])
    assert view.messages[1] is history[1]
