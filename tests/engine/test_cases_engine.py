"""More cases that users hit elsewhere: sequences, loops, images, resuming, cache, with ranges.

The numbers are those of the case list.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from histories import (
    MARK,
    RESULTS,
    SMALL,
    History,
    Message,
    World,
    answers,
    asks,
    assert_faithful,
    assert_legal,
    call,
    conversation,
    exchange,
    hidden,
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
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor import ArchivePolicy, BadPolicy, Keys, MaskPolicy, Policy, RangeDecision, View
from compactor.decisions import DecisionSet
from compactor.plan import Situation, plan
from compactor.policy import INJECTED
from compactor.render import Renderer
from compactor.storage import Kind
from compactor.tokens import budget
from compactor.wire import wire_format

SIZE = Policy(window=10_000, stages=("archive",))
COUNT = Policy(archive=ArchivePolicy(max_messages=30, keep_head=3, keep_tail=14))
POLICIES = pytest.mark.parametrize("policy", [SMALL, SIZE, COUNT], ids=["mask", "size", "count"])


def range_of(view: View) -> tuple[int, int]:
    """Return the bounds of the one range that a view decided."""
    [one] = [each for each in view.decisions if isinstance(each, RangeDecision)]
    return one.span.start, one.span.start + one.span.length


def rendered(history: History, policy: Policy) -> History:
    """Return the view of a history without a vault, for many histories at once."""
    wire = wire_format("anthropic")
    renderer = Renderer(wire, INJECTED)
    renderer.update(history)
    room = budget(policy.window, 0, 0)
    one = plan(wire, renderer.index, renderer.ledger, room, policy, Situation())
    if one is not None:
        assert isinstance(one, DecisionSet)
        renderer.adopt(one)
    return renderer.messages(history)


def ids(messages: History, kind: str, key: str) -> list[str]:
    return [b[key] for m in messages for b in m["content"] if b["type"] == kind]


def texts(view: View) -> str:
    return json.dumps(view.messages, ensure_ascii=False)


def rules(messages: History) -> list[str]:
    """Return the texts of system messages; a range's stand in one message."""
    found = [message["content"] for message in messages if message["role"] == "system"]
    texts = [[{"text": each}] if isinstance(each, str) else each for each in found]
    return [block["text"] for blocks in texts for block in blocks]


# Request and constraints


def test_c03_the_hosts_rules_stand_in_every_view(world: World) -> None:
    """System messages of the history, before and after archives, in their order."""
    history = conversation(0)
    with world.open(policy=SIZE) as session:
        for number in range(50):
            history += exchange(number)
            if number % 8 == 3:
                history.append({"role": "system", "content": f"Rule {number}."})
            view = session.view(history)
            assert rules(view.messages) == rules(history)
        assert view.stats.archived_messages


def test_c05_only_the_newest_request_is_current(world: World) -> None:
    """An older one inside the range stands as text under its number, not as the current one."""
    history = conversation(0)
    history += [*exchange(40), *exchange(41), human("Do A."), *exchange(42), says("Done with A.")]
    history += [human("Do B."), *conversation(14)[1:]]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    note = view.messages[3]["content"]
    assert note[1:] == human("Do B.")["content"]
    assert "[user message 2]\nDo A." in note[0]["text"]
    assert note[0]["text"].count("current request") == 1


def test_c07_compacting_twice_without_a_new_turn_of_the_user(world: World) -> None:
    """The current request is still the original text, once, and no note is inside a note."""
    history = [*conversation(1), human("Ask “once”, äö\u2028."), *conversation(13)[1:]]
    sets = 0
    with world.open(policy=SIZE) as session:
        for number in range(50, 90):
            view = session.view(history)
            sets += bool(view.decisions)
            assert texts(view).count("Ask “once”") == 1
            assert texts(view).count("messages archived: msgs-") == 1
            history += exchange(number)
    assert sets > 2


def test_c13_c14_the_note_is_clearly_tagged(world: World) -> None:
    """No invented text of the user: a fixed marker opens it, in a neutral voice."""
    with world.open(policy=SIZE) as session:
        view = session.view([*conversation(2), human("Do B."), *conversation(14)[1:]])
    [*_, request] = view.messages[3]["content"]
    text = view.messages[3]["content"][0]["text"]
    assert text.startswith("[")
    assert all(line.startswith("[") for line in text.splitlines())
    assert request == human("Do B.")["content"][0]


# Loops and thrash


@POLICIES
def test_c24_two_small_messages(world: World, policy: Policy) -> None:
    """Never compacted."""
    history = [human("Hello."), says("Hello."), human("Bye.")]
    with world.open(policy=policy) as session:
        assert session.view(history).messages is history


def test_c25_overhead_is_not_of_the_messages_budget(world: World) -> None:
    """In a small window a large system prompt does not make each request compact."""
    history, sets = conversation(0), 0
    with world.open(policy=Policy(window=12_000)) as session:
        for number in range(60):
            history += exchange(number, 1_000)
            sets += bool(session.view(history, system="word " * 3_000).decisions)
    assert 1 < sets < 20


def test_c26_f38_nothing_to_win(world: World) -> None:
    """No set is taken, none is tried again into the transcript, and the view says it is over."""
    history = [human("word " * 9_000)]
    with world.open(policy=Policy(window=10_000)) as session:
        for number in range(6):
            history += exchange(number, 100)
            view = session.view(history)
            assert view.messages is history
            assert view.over_budget
    assert world.records(Kind.SET) == []


def test_c27_a_history_of_more_than_the_window(world: World) -> None:
    """Opened on it, the engine gives a legal view below the budget without any model."""
    history = conversation(0)
    for number in range(22):
        history += exchange(number, 1_000)
        history[-2]["content"].insert(0, {"type": "text", "text": "So it is. " * 60})
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
    assert view.stats.original_tokens > 12_000
    assert not view.over_budget
    assert_legal(view.messages)


@pytest.mark.parametrize("tool", ["Bash", "Read", "mcp__a__b", "x" * 200, "ü\n<b>"])
def test_c28_c29_a_giant_result_of_any_tool(world: World, tool: str) -> None:
    """The first stage alone brings it under the limit, whatever the tool is called."""
    history = [human("Go."), *exchange(1, 1_100_000, tool)]
    with world.open(policy=Policy()) as session:
        view = session.view(history)
        assert [one.stage for one in view.decisions] == ["persist"]
        assert not view.over_budget
        history += exchange(2)
        assert session.view(history).messages[:3] == view.messages


def test_c18_compactions_that_refill_at_once(world: World) -> None:
    """After three in a row the next waits until the prompt would not fit."""
    policy = SMALL.but(window=20_000, trigger=0.5, target=0.1, min_gain=0.0)
    history, sizes = conversation(0), []
    with world.open(policy=policy) as session:
        for number in range(24):
            history += exchange(number, 11_000)
            view = session.view(history)
            assert not view.over_budget
            sizes += [world.records(Kind.SET)[-1]["tokens"][0]] if view.decisions else []
    assert all(size < 19_600 for size in sizes[:3])
    assert sizes[3] > sizes[2]


def test_c86_a_compaction_that_saves_little_waits(world: World) -> None:
    """Above the trigger, too: breaking the cached prefix must pay, or make the prompt fit."""
    history = [human("word " * 7_200), *conversation(4, 400)[1:], *exchange(9, 60)]
    bare = Policy(window=20_000, mask=MaskPolicy(keep_recent=0, keep_least=0), trigger=0.6)
    with world.open("waits", policy=bare) as session:
        assert session.view(history).messages is history
    with world.open("goes", policy=bare.but(min_gain=0.0)) as session:
        assert session.view(history).changed


# Legal message sequences


@pytest.mark.parametrize("tail", range(8, 24))
def test_c42_f01_f02_pairs_go_or_stay_together(world: World, tail: int) -> None:
    """An aborted call, its error and the human's text: on one side of every cut."""
    history = conversation(13, 100)
    aborted = result("toolu_x", "Interrupted", is_error=True)
    history[15:15] = [asks(call("toolu_x")), answers(aborted, human("Stop!")["content"][0])]
    policy = COUNT.but(archive={"max_messages": 26, "keep_tail": min(tail, 22)})
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert_legal(view.messages)
    assert view.stats.archived_messages
    shown = ids(view.messages, "tool_use", "id")
    assert shown == ids(view.messages, "tool_result", "tool_use_id")
    assert len(shown) < 14


@POLICIES
def test_c48_a_message_that_thinks_and_calls(world: World, policy: Policy) -> None:
    """All of its blocks stay byte for byte, or the whole message leaves."""
    history = conversation(18)
    for position in range(1, len(history), 2):
        thought = {"type": "thinking", "thinking": f"Hm {position}.", "signature": f"s{position}"}
        history[position]["content"].insert(0, thought)
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert view.changed
    said = [message for message in view.messages if message["role"] == "assistant"]
    assert all(any(message is mine for mine in history) for message in said)


def test_c50_f06_the_kept_tail_of_one_is_the_input_of_the_next(world: World) -> None:
    """The second cut falls into what the first kept: one range, legal, all of it reads."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        _, first = range_of(session.view(history))
        for number in range(20, 40):
            history += exchange(number)
            view = session.view(history)
            assert_legal(view.messages)
            if view.decisions:
                break
        start, second = range_of(view)
        assert start < first < second < len(history)
        handle = view.decisions[0].handle
        assert json.loads(session.read(handle)) == history[start:second]


SHAPES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3_000), max_size=3), st.booleans(), st.booleans(), st.integers(1, 3)
    ),
    min_size=10,
    max_size=20,
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(SHAPES, st.sampled_from(["", "call", "answer"]), st.sampled_from([SMALL, SIZE, COUNT]))
def test_f03_calls_and_results_match(
    turns: list[tuple[list[int], bool, bool, int]], ending: str, policy: Policy
) -> None:
    """In every view the ids of calls are those of results, but for calls pending at the end."""
    history: History = [human("Go.")]
    for number, (sizes, split, spoken, replies) in enumerate(turns):
        names = [f"t{number}_{i}" for i in range(len(sizes))]
        history += [says(f"So {number}.") for _ in range(replies - bool(names))]
        history += [asks(*map(call, names))] * bool(names)
        blocks = [result(name, output(number, n)) for name, n in zip(names, sizes, strict=True)]
        history += (
            [answers(block) for block in blocks] if split or not blocks else [answers(*blocks)]
        )
        if spoken or not names:
            history.append(human(f"And {number}."))
    history += {"": [], "call": [asks(call("open"))], "answer": [says("So")]}[ending]
    view = rendered(history, policy)
    assert_legal(view)
    pending = ["open"] if ending == "call" else []
    assert ids(view, "tool_use", "id") == ids(view, "tool_result", "tool_use_id") + pending


def test_f08_one_user_message_and_two_hundred_pairs(world: World) -> None:
    """The middle is archived by size; the first message and the newest pairs stay."""
    history = conversation(200, 800)
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    start, end = range_of(view)
    assert view.messages == [*history[:start], view.messages[start], *history[end:]]
    assert not view.over_budget


@POLICIES
def test_f09_c44_an_overflow_with_a_dangling_call(world: World, policy: Policy) -> None:
    """It is passed as it came, and the view says that it is unfinished and too large."""
    history = [*conversation(30), asks(call("toolu_z"))]
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert view.messages is history
    assert view.unfinished


@POLICIES
def test_f20_the_latest_assistant_message_never_changes(world: World, policy: Policy) -> None:
    """In every view it is the caller's own object, at its place."""
    history = conversation(0)
    with world.open(policy=policy) as session:
        for number in range(40):
            history += exchange(number, 1_200)
            assert session.view(history).messages[-2] is history[-2]


@POLICIES
def test_f30_roles_are_the_providers(world: World, policy: Policy) -> None:
    """Every message of a view has a role that the wire format knows, and content."""
    history = conversation(30)
    history.insert(5, {"role": "system", "content": "Mind the budget."})
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert view.changed
    assert {message["role"] for message in view.messages} <= {"user", "assistant", "system"}
    assert all(message["content"] for message in view.messages)


def test_f39_an_answer_as_large_as_the_window(world: World) -> None:
    """A typed error before anything happens, and the session goes on."""
    with world.open(policy=SIZE) as session:
        with pytest.raises(BadPolicy):
            session.view(conversation(14), max_tokens=10_000)
        assert session.view(conversation(14), max_tokens=100).changed


def test_f45_what_the_provider_measured_is_not_added_up(world: World) -> None:
    """Three calls of 50, 55 and 60 thousand tokens: the size is that of the last."""
    history = conversation(1)
    with world.open(policy=Policy(window=100_000)) as session:
        for number, used in enumerate((50_000, 55_000, 60_000)):
            session.view(history)
            session.observe({"usage": {"input_tokens": 10, "cache_read_input_tokens": used}})
            history += exchange(20 + number, 100)
        view = session.view(history)
    assert 60_000 <= view.stats.view_tokens < 61_000
    assert not view.changed


# Images and bytes


def screens(count: int, size: int) -> History:
    """Return screenshots, one an exchange."""
    history = [human("Watch the page.")]
    for number in range(count):
        name = f"toolu_s{number}"
        history += [asks(call(name, "Screen")), answers(result(name, [image(size + number)]))]
    return history


def test_c51_more_images_than_a_request_may_have(world: World) -> None:
    """The oldest give way to placeholders with handles, the newest stay."""
    history = screens(14, 400)
    with world.open(policy=Policy(max_images=10, target=0.6)) as session:
        view = session.view(history)
        assert not view.over_budget
        blocks = result_blocks(view.messages)
        assert [is_masked(block) for block in blocks] == [True] * 4 + [False] * 10
        assert json.loads(session.read(view.decisions[0].handle)) == [image(400)]


def test_c52_more_bytes_than_a_request_may_have(world: World) -> None:
    """Screenshots of 800,000 bytes each: the view is below the limit of 32 MB."""
    history = screens(42, 800_000)
    with world.open(policy=Policy(max_bytes=32_000_000)) as session:
        view = session.view(history)
        assert len(json.dumps(view.messages)) < 32_000_000 < len(json.dumps(history))
        assert not view.over_budget
        assert not is_masked(result_blocks(view.messages)[-1])


def test_c54_ten_compactions_with_five_images(world: World) -> None:
    """Each image is stored once: the vault grows with the history, not with the sets."""
    history = [human("Look.", image(1_000))]
    for number in range(4):
        data = os.urandom(60_000).hex()
        shot = {"type": "image", "source": {"type": "base64", "data": data}}
        history += [asks(call(f"i{number}", "Screen")), answers(result(f"i{number}", [shot]))]
    sets = 0
    with world.open(policy=SIZE) as session:
        session.view(history)
        session.flush()
        before = world.size()
        for number in range(100, 180):
            history += exchange(number)
            sets += bool(session.view(history).decisions)
    assert sets >= 10
    assert world.size() - before < 400_000 < 4 * 120_000


# Resume


@pytest.mark.parametrize("policy", ["SIZE", "COUNT"])
def test_c55_c56_c61_kill_and_reload(world: World, policy: str) -> None:
    """After SIGKILL right behind an archive: the same note and tail, all messages, same sizes."""
    world.keys = Keys(bytes(32), world.keys.state)
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from histories import *
from compactor import ArchivePolicy
SIZE = Policy(window=10_000, stages=("archive",))
COUNT = Policy(archive=ArchivePolicy(max_messages=30, keep_head=3, keep_tail=14))
session = Compactor.open({str(world.folder)!r}, "one", policy={policy},
    keys=Keys(bytes(32), Path({str(world.keys.state)!r})))
history = conversation(16)
session.view(history)
for number in range(20, 23):
    history += exchange(number, 100)
    view = session.view(history)
print(json.dumps([view.messages, view.stats.view_chars, view.stats.archived_messages]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)  # noqa: PLW1510
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    history = conversation(16)
    for number in range(20, 23):
        history += exchange(number, 100)
    with world.transcript() as transcript:
        assert transcript.messages() == history
    with world.open(policy={"SIZE": SIZE, "COUNT": COUNT}[policy]) as session:
        view = session.view(history)
        messages, chars, archived = json.loads(ran.stdout)
        assert view.messages == messages
        assert (view.stats.view_chars, view.stats.archived_messages) == (chars, archived)
    assert archived
    assert all(request.whole for request in world.requests())


@pytest.mark.parametrize("policy", [SIZE, COUNT], ids=["size", "count"])
def test_c57_f28_reloaded_each_time_or_never(world: World, policy: Policy) -> None:
    """Saved and loaded between all turns, or never: the same views and the same sizes."""
    history = conversation(0)
    with world.open("never", policy=policy) as never:
        for number in range(18):
            history += exchange(number)
            with world.open("always", policy=policy) as always:
                one, two = always.view(reloaded(history)), never.view(history)
            assert one.messages == two.messages
            assert one.stats.view_tokens == two.stats.view_tokens
            assert (one.rewrites_from, one.stable_prefix) == (two.rewrites_from, two.stable_prefix)


def test_c59_c79_many_compactions_cost_what_is_new(world: World) -> None:
    """Sets hold references: what they take does not grow with what they hide."""
    history = conversation(0)
    with world.open(policy=SIZE) as session:
        for number in range(120):
            history += exchange(number)
            session.view(history)
    sets = [len(json.dumps(body)) for body in world.records(Kind.SET)]
    assert len(sets) > 10
    assert max(sets) < 1_000
    recorded = [m for body in world.records(Kind.MESSAGES) for m in body["messages"]]
    assert recorded == history


def test_c62_one_session_is_one_folder(world: World) -> None:
    """However often it was compacted and opened."""
    history = conversation(14)
    for number in range(4):
        with world.open(policy=SIZE) as session:
            session.view(history)
            history += exchange(20 + number, 3_000)
    assert [path.name for path in (world.root / "s").iterdir()] == ["one"]


def test_c63_the_estimate_is_made_anew_on_load(world: World) -> None:
    """From the history that is there then, not from what was stored."""
    history = conversation(10)
    with world.open(policy=Policy()) as session:
        session.view(history)
        session.observe({"usage": {"input_tokens": 90_000}})
    shorter = history[:5]
    with world.open(policy=Policy()) as session:
        assert session.view(shorter).stats.view_tokens < 2_000


def test_f26_nothing_is_archived_that_was_not_recorded(world: World) -> None:
    """Whatever a view leaves out, the transcript has it, message by message."""
    history = conversation(0)
    with world.open(policy=COUNT) as session:
        for number in range(40):
            history += exchange(number, 200)
            view = session.view(history)
            if view.decisions:
                start, end = range_of(view)
                with world.transcript() as transcript:
                    assert (
                        json.loads(transcript.read(view.decisions[0].handle)) == history[start:end]
                    )


# Cache


@POLICIES
def test_c87_c88_between_compactions_the_prefix_stands(world: World, policy: Policy) -> None:
    """Two views without a new set share all that the first one had."""
    history, sent = conversation(0), list[Message]()
    with world.open(policy=policy) as session:
        for number in range(50):
            history += exchange(number)
            view = session.view(history)
            if not view.decisions:
                assert view.messages[: len(sent)] == sent
                assert view.rewrites_from is None
            sent = copy.deepcopy(view.messages)


@POLICIES
def test_marks_of_the_client_are_never_multiplied(world: World, policy: Policy) -> None:
    """Four that move along: in no view are there more."""
    history = conversation(0)
    with world.open(policy=policy) as session:
        for number in range(40):
            history += exchange(number)
            history = reloaded(history)
            for message in history:
                for block in message["content"]:
                    block.pop("cache_control", None)
            for message in (history[0], history[len(history) // 2], *history[-2:]):
                message["content"][-1]["cache_control"] = MARK
            assert 1 <= marks_in(session.view(history).messages) <= 4


def test_c21_f41_an_anchor_is_void_after_an_archive(world: World) -> None:
    """What was measured before the view changed says nothing of it afterwards."""
    history = conversation(8)
    with world.open(policy=SIZE.but(window=20_000, trigger=0.8)) as session:
        session.view(history)
        session.observe({"usage": {"input_tokens": 17_000}})
        history += exchange(20, 900)
        view = session.view(history)
        assert view.stats.archived_messages
        history += exchange(21, 100)
        after = session.view(history)
        assert after.decisions == ()
        assert after.stats.view_tokens < 5_000


def test_f31_the_note_stands_between_user_and_assistant(world: World) -> None:
    """A message of the user's side before the tail, which an alternating format may merge."""
    with world.open(policy=SIZE) as session:
        view = session.view(conversation(14))
    roles = [message["role"] for message in view.messages]
    assert roles[2:5] == ["user", "user", "assistant"]


# Shapes that real clients send


def test_s05_the_clients_own_request_for_a_summary(world: World) -> None:
    """The same prefix with another last text: what is hidden stays so, the view does not grow."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        before = session.view(history)
        aside = [
            *history[:-1],
            answers(*history[-1]["content"], {"type": "text", "text": "Sum up."}),
        ]
        view = session.view(aside)
        assert view.decisions == ()
        assert view.messages[:-1] == before.messages[:-1]
        assert session.view(history).messages == before.messages


def test_s08_a_side_request_with_a_history_of_its_own(world: World) -> None:
    """It is answered as it came; afterwards the conversation's view is what it was."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        before = session.view(history)
        title = [human("Name this conversation.")]
        assert session.view(title).messages is title
        assert session.view(history).messages == before.messages
    assert all(request.whole for request in world.requests())


def test_264_user_messages_and_five_of_the_assistant(world: World) -> None:
    """Long runs of one role, with one result each, stay whole."""
    names = [f"toolu_r{i}" for i in range(264)]
    run = [*[says("So.")] * 4, asks(*map(call, names))]
    run += [answers(result(name, output(1, 30))) for name in names]
    history = [*conversation(3, 100), *run, *conversation(12, 100)[1:]]
    with world.open(policy=Policy.course()) as session:
        view = session.view(history)
        assert_legal(view.messages)
        assert ids(view.messages, "tool_use", "id") == ids(
            view.messages, "tool_result", "tool_use_id"
        )
    with world.open("masks", policy=Policy(window=14_000, stages=RESULTS)) as session:
        assert_faithful(history, session.view(history))


@POLICIES
def test_a_giant_on_arrival_beside_all_that(world: World, policy: Policy) -> None:
    """It is shortened before any cache holds it, and reads back later from where it went."""
    history = [*conversation(10, 500), *exchange(50, 90_000)]
    settings_ = policy.but(stages=("persist", *(s for s in policy.stages if s != "persist")))
    with world.open(policy=settings_) as session:
        view = session.view(history)
        assert view.rewrites_from is None
        [block] = hidden(view.messages)[-1:]
        assert is_preview(block)
        name = view.decisions[-1].handle
        for number in range(60, 90):
            history += exchange(number)
            session.view(history)
        assert session.read(name) == output(50, 90_000).encode()
