"""Cases that users hit elsewhere, one named test each; the numbers are those of the case list."""

import copy
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
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
    assert_faithful,
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
    reloaded,
    result,
    result_blocks,
    says,
    text_of,
    unmarked,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor import (
    Keys,
    MaskPolicy,
    PersistPolicy,
    Policy,
    StorageError,
    Transcript,
    UnknownHandle,
)
from compactor.decisions import DecisionSet
from compactor.plan import Situation, plan
from compactor.policy import INJECTED
from compactor.render import Renderer
from compactor.storage import Kind, SessionBusy, files
from compactor.tokens import budget
from compactor.wire import wire_format

BARE = SMALL.but(mask=MaskPolicy(keep_recent=0, keep_least=0))


def rendered(history: History, policy: Policy = SMALL) -> list[Any]:
    """Return the view of a history without a vault, for many histories at once."""
    wire = wire_format("anthropic")
    renderer = Renderer(wire, INJECTED)
    renderer.update(history)
    room = budget(policy.window, 0, 0)
    one = plan(wire, renderer.index, renderer.ledger, room, policy, Situation(readable=True))
    if one is not None:
        assert isinstance(one, DecisionSet)
        renderer.adopt(one)
    return renderer.messages(history)


def test_c02_the_last_request_after_20_turns(world: World) -> None:
    """The current request is there byte for byte, as its own message."""
    history: History = []
    for number in range(20):
        history += [human(f"Request {number}: do it äö\u2028."), *exchange(number), says("Done.")]
        history += exchange(100 + number)
    with world.open() as session:
        view = session.view(history)
    assert view.changed
    assert view.messages[19 * 6] is history[19 * 6]
    assert sum("Request 19" in json.dumps(message) for message in view.messages) == 1


def test_c42_an_aborted_call_stays_with_its_result(world: World) -> None:
    """A call that was answered with an error and a text of the human stays as it was sent."""
    history = conversation(13)
    aborted = result("toolu_x", "Interrupted", is_error=True)
    history[5:5] = [asks(call("toolu_x")), answers(aborted, human("Stop!")["content"][0])]
    with world.open() as session:
        view = session.view(history)
    assert view.changed
    assert_faithful(history, view)


@pytest.mark.parametrize(
    "tail",
    [
        [asks(call("toolu_z"))],
        [asks(call("toolu_y"), call("toolu_z")), answers(result("toolu_z", output(5, 60_000)))],
        [asks(call("toolu_z")), human("And?")],
    ],
    ids=["pending", "half", "text"],
)
def test_c44_a_call_without_its_result(world: World, tail: History) -> None:
    """The history is passed as it came, and no set is planned until the result is there."""
    history = [*conversation(14), *tail]
    with world.open() as session:
        view = session.view(history)
        assert view.messages is history
        assert view.decisions == ()
        view = session.view(conversation(14))
        assert view.decisions


def test_c49_signed_empty_thinking_is_preserved(world: World) -> None:
    """An empty thinking block with its signature is no empty block."""
    thought = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
    history = conversation(14)
    for position in range(1, len(history), 2):
        history[position]["content"].insert(0, thought)
    with world.open() as session:
        view = session.view(history)
    assert view.changed
    assert_faithful(history, view)
    assert world.requests()[0].messages == view.messages


def test_c55_c56_c57_kill_append_reload(world: World) -> None:
    """After SIGKILL right behind `view`: the same view, all messages, and what came after it."""
    world.keys = Keys(bytes(32), world.keys.state)
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from histories import *
session = Compactor.open({str(world.folder)!r}, "one", policy=SMALL,
    keys=Keys(bytes(32), Path({str(world.keys.state)!r})))
history = conversation(14)
session.view(history)
for number in range(20, 24):
    history += exchange(number, 100)
    view = session.view(history)
print(json.dumps(view.messages), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)  # noqa: PLW1510
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    history = conversation(14)
    for number in range(20, 24):
        history += exchange(number, 100)
    with world.transcript() as transcript:
        assert transcript.messages() == history
    with world.open() as session:
        view = session.view(history)
        assert view.messages == json.loads(ran.stdout)
    assert len(hidden(view.messages)) > 5


def test_c57_reloading_gives_the_view_before_exit(world: World) -> None:
    """Also when the history comes from JSON, with other marks and strings for blocks."""
    history = conversation(14)
    with world.open() as session:
        before = copy.deepcopy(session.view(history).messages)
    again = reloaded(history)
    again[0]["content"] = again[0]["content"][0]["text"]
    again[-1]["content"][0]["cache_control"] = MARK
    with world.open() as session:
        view = session.view(again)
    assert view.decisions == ()
    assert unmarked(view.messages) == unmarked(before)


def test_c71_a_second_writer(world: World) -> None:
    """A typed error that names the session, which is a `TimeoutError` too; and one may wait."""
    with world.open():
        for wait in (0, 0.05):
            with pytest.raises(SessionBusy, match="one") as caught:
                world.open(wait=wait)
            assert isinstance(caught.value, TimeoutError)


def test_c72_two_sessions_of_one_project(world: World) -> None:
    """Distinct files, distinct content, at the same time."""
    with world.open("one") as one, world.open("two") as two:
        one.view(conversation(14, request="One."))
        two.view(conversation(3, request="Two."))
    assert [len(world.requests(name)[0].messages) for name in ("one", "two")] == [29, 7]
    folders = sorted(path.name for path in (world.root / "s").iterdir())
    assert folders == ["one", "two"]


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all folders and of all files."""
    paths = [folder, *folder.rglob("*")]
    folders = {stat.S_IMODE(path.lstat().st_mode) for path in paths if path.is_dir()}
    return folders, {stat.S_IMODE(path.lstat().st_mode) for path in paths if path.is_file()}


@pytest.mark.parametrize("umask", [0o022, 0o000], ids=["c74", "f67"])
def test_c74_f67_modes_whatever_the_umask(world: World, umask: int) -> None:
    """Files are 0600 and folders 0700, while the session runs and afterwards."""
    before = os.umask(umask)
    try:
        with world.open() as session:
            session.view([*conversation(14), *exchange(99, 50_000)])
            assert modes(world.root) == modes(world.keys.state) == ({0o700}, {0o600})
        assert modes(world.root) == ({0o700}, {0o600})
    finally:
        os.umask(before)


def test_c77_a_store_inside_the_work_tree(world: World) -> None:
    """A `.gitignore` keeps all of it out of version control, and keys are elsewhere."""
    with world.open() as session:
        session.view(conversation(14))
    assert (world.root / ".gitignore").read_text() == "*\n"
    names = [path.name for path in world.root.rglob("*")]
    assert not [name for name in names if "key" in name or name.endswith(".slot")]
    subprocess.run(["git", "init", "-q", "."], cwd=world.folder, check=True, capture_output=True)
    ran = subprocess.run(
        ["git", "status", "--porcelain", "-uall"],
        cwd=world.folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ".transcripts" not in ran.stdout


def test_c87_over_by_one_clears_to_the_low_mark(world: World) -> None:
    """A compaction goes on to the target, and the next turns keep the prefix."""
    history = conversation(0)
    with world.open() as session:
        while not (view := session.view(history)).changed:
            history += exchange(len(history), 1_000)
        assert view.stats.view_tokens < 0.5 * 10_000
        sent = copy.deepcopy(view.messages)
        for number in range(5):
            history += exchange(500 + number, 400)
            view = session.view(history)
            assert view.rewrites_from is None
            assert view.messages[: len(sent)] == sent
            sent = copy.deepcopy(view.messages)


def test_c88_f50_twenty_turns_without_a_step(world: World) -> None:
    """View n is a prefix of view n+1, cache marks apart."""
    history = conversation(14)
    with world.open() as session:
        sent = unmarked(session.view(history).messages)
        for number in range(20):
            history = reloaded(history) + exchange(50 + number, 60)
            for message in history:
                message["content"][-1].pop("cache_control", None)
            history[-1]["content"][-1]["cache_control"] = MARK
            view = session.view(history)
            assert view.decisions == ()
            assert unmarked(view.messages)[: len(sent)] == sent
            sent = unmarked(view.messages)


def test_c94_the_pointer_stands_before_the_preview(world: World) -> None:
    """Outside the payload, and the name round-trips even where the payload has names of its own."""
    text = '<persisted-output handle="out-aaaaaaaa">\n[Earlier tool result saved: out-bbbbbbbb]\n'
    history = [human("Go."), asks(call("a")), answers(result("a", text + output(1, 50_000)))]
    with world.open() as session:
        note = text_of(result_blocks(session.view(history).messages)[0])
        [name] = session.handles()
        assert handle_of(answers_block(note)) == name
        assert note.index(name) < note.index("Preview")
        assert session.read(name).decode() == text + output(1, 50_000)
        with pytest.raises(UnknownHandle):
            session.read("out-aaaaaaaa")


def answers_block(note: str) -> Message:
    return result("a", note)


@pytest.mark.parametrize("ending", ["answer", "prefill", "call"])
def test_c100_an_unfinished_assistant_message(world: World, ending: str) -> None:
    """Never compacted while one is being written; the sets in force stay."""
    tails: dict[str, History] = {
        "answer": [says("I am")],
        "prefill": [human("List them."), says("1.")],
        "call": [asks(call("toolu_open"), text="Let me")],
    }
    history = conversation(14)
    with world.open("new") as session:
        longer = [*history, *tails[ending]]
        assert session.view(longer).messages is longer
    with world.open("old") as session:
        before = session.view(history)
        view = session.view([*history, *conversation(14)[1:], *tails[ending]])
        assert view.decisions == ()
        assert view.messages[:29] == before.messages


TURNS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 4_000), min_size=1, max_size=3), st.booleans(), st.booleans()
    ),
    min_size=8,
    max_size=16,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TURNS, st.sampled_from(["", "call", "answer"]))
def test_f03_calls_and_results_match_in_every_view(
    turns: list[tuple[list[int], bool, bool]], ending: str
) -> None:
    """The ids of calls and of results are those of the history, in its order."""
    history: History = [human("Go.")]
    for number, (sizes, split, spoken) in enumerate(turns):
        ids = [f"t{number}_{i}" for i in range(len(sizes))]
        history.append(asks(*map(call, ids)))
        blocks = [result(name, output(number, n)) for name, n in zip(ids, sizes, strict=True)]
        history += [answers(block) for block in blocks] if split else [answers(*blocks)]
        if spoken:
            history.append(human(f"And {number}."))
    history += {"": [], "call": [asks(call("open"))], "answer": [says("So")]}[ending]
    view = rendered(history)

    def ids_of(messages: History, kind: str, key: str) -> list[str]:
        return [b[key] for m in messages for b in m["content"] if b["type"] == kind]

    for kind, key in (("tool_use", "id"), ("tool_result", "tool_use_id")):
        assert ids_of(view, kind, key) == ids_of(history, kind, key)


def test_f18_unknown_keys_of_the_call_stay(world: World) -> None:
    """Masking a result leaves its call byte for byte."""
    history = conversation(14)
    history[1]["content"][0].update({"x_meta": {"b": 1, "a": [None]}, "cache_control": None})
    before = json.dumps(history[1])
    with world.open() as session:
        view = session.view(history)
    assert is_masked(result_blocks(view.messages)[0])
    assert json.dumps(view.messages[1]) == before


def test_f20_the_latest_assistant_message_never_changes(world: World) -> None:
    """In every view it is the caller's own object."""
    history = conversation(0)
    with world.open(policy=BARE) as session:
        for number in range(30):
            history += exchange(number, 2_000)
            assert session.view(history).messages[-2] is history[-2]


def test_f28_a_reloaded_session_decides_as_the_unsaved_one(world: World) -> None:
    """Saved and loaded between all turns, or never: the same views."""
    history = conversation(0)
    with world.open("never") as never:
        for number in range(20):
            history += exchange(number)
            with world.open("always") as always:
                assert always.view(history).messages == never.view(history).messages


def test_f42_one_user_message_and_a_megabyte(world: World) -> None:
    """It fits by persisting alone."""
    history = [human("Read it."), asks(call("a")), answers(result("a", output(1, 1_000_000)))]
    with world.open() as session:
        view = session.view(history)
        assert not view.over_budget
        assert [decision.stage for decision in view.decisions] == ["persist"]
        assert session.read(session.handles()[0]) == output(1, 1_000_000).encode()


def test_f48_a_large_image_in_the_newest_turn(world: World) -> None:
    """Its cost is that of an image, and it stays."""
    shot = result("a", [image(4_000_000)])
    history = [*conversation(3), asks(call("a", "Screen")), answers(shot)]
    with world.open() as session:
        view = session.view(history)
    assert not view.over_budget
    assert view.messages is history


def test_f51_identical_bytes_after_a_restart(world: World) -> None:
    """A decision once taken says the same in every later process, whatever the policy then."""
    history = conversation(14)
    with world.open() as session:
        before = json.dumps(session.view(history).messages)
    later = Policy(window=1_000_000, mask=MaskPolicy(scent_chars=0, keep_recent=50))
    for policy in (SMALL, later, Policy(stages=())):
        with world.open(policy=policy) as session:
            assert json.dumps(session.view(history, tools=[{"name": "x"}]).messages) == before


def test_f54_an_id_of_2000_characters(world: World) -> None:
    """It names no file, and comes back whole."""
    name = "toolu_" + "x/../" * 400
    history = [human("Go."), asks(call(name)), answers(result(name, output(1, 50_000)))]
    with world.open() as session:
        view = session.view(history)
        assert is_preview(result_blocks(view.messages)[0])
        assert result_blocks(view.messages)[0]["tool_use_id"] == name
    assert max(len(path.name) for path in world.root.rglob("*")) < 60


def test_f56_a_store_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pointer, the original stays, and `degraded` says so by type."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    history = [human("Go."), asks(call("a")), answers(result("a", output(1, 50_000)))]
    with world.open(policy=SMALL.but(window=100_000)) as session:
        monkeypatch.setattr(files, "write_all", full)
        view = session.view(history)
        assert view.messages is history
        assert view.degraded
        assert "NotStored" in view.degraded
        assert session.handles() == []
        monkeypatch.undo()


def test_f57_f71_unknown_blocks_stay_in_place(world: World) -> None:
    """Of any role, among results and calls; their results are not touched either."""
    odd = {"type": "of_tomorrow", "payload": "x" * 6_000}
    history = conversation(14)
    history[1]["content"].append(odd)
    history[2]["content"].append(odd)
    history[4]["content"][0]["content"] = [odd]
    with world.open() as session:
        view = session.view(history)
    assert hidden(view.messages)
    assert_faithful(history, view)
    assert view.messages[2]["content"][1] is odd
    assert view.messages[4] is history[4]


def test_f58_limits_by_tool(world: World) -> None:
    """`None` means never on arrival; another number is its own limit."""
    tools = {"Keep": None, "Large": 80_000}
    names = ("Keep", "Large", "Bash")
    history = [
        human("Go."),
        asks(*(call(name, name) for name in names)),
        answers(*(result(name, output(i, 60_000)) for i, name in enumerate(names))),
    ]
    with world.open(policy=Policy(persist=PersistPolicy(tools=tools))) as session:
        view = session.view(history)
    assert [is_preview(block) for block in result_blocks(view.messages)] == [False, False, True]


def test_f59_opting_out_for_one_call(world: World) -> None:
    """Nothing new is decided then; what is in force stays, and the next call goes on."""
    history = conversation(14)
    off = Policy(stages=())
    with world.open() as session:
        assert session.view(history, policy=off).messages is history
        before = session.view(history)
        assert before.decisions
        history += conversation(14)[1:]
        view = session.view(history, policy=off)
        assert view.decisions == ()
        assert view.messages[:29] == before.messages
        assert session.view(history).decisions


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 6_000), min_size=14, max_size=30),
    st.sampled_from(["a", "ä", "语", "😀"]),
)
def test_f63_tokens_strictly_fall(sizes: list[int], letter: str) -> None:
    """Each note is smaller than what it stands for, in estimated tokens, in any script."""
    history: History = [human("Go.")]
    for number, size in enumerate(sizes):
        history += exchange(number)
        history[-1]["content"][0]["content"] = letter * size
    wire = wire_format("anthropic")

    def tokens(message: Message) -> int:
        return wire.inspect(message, lambda _: False).tokens

    for mine, sent in zip(history, rendered(history, BARE), strict=True):
        assert sent is mine or tokens(sent) < tokens(mine)


# Shapes that real clients send


@pytest.mark.parametrize(
    "content",
    ["x" * 9_000, [], [{"type": "text", "text": "x" * 9_000}]],
    ids=["text", "empty", "block"],
)
def test_s01_a_system_message_in_the_history(world: World, content: Any) -> None:
    """With fields of its own and any content it is passed as it is."""
    history = conversation(14)
    history.insert(1, {"role": "system", "content": content, "x_scope": {"turn": 1}})
    with world.open() as session:
        view = session.view(history)
        assert view.changed
        assert view.messages[1] is history[1]
        assert session.view(reloaded(history)).messages == view.messages
    assert world.requests()[0].messages[1] == history[1]


def test_s02_content_that_flips_between_string_and_block(world: World) -> None:
    """The same message: nothing is voided, nothing recorded as changed."""
    history = conversation(14)
    for block in result_blocks(history):
        block["content"] = [{"type": "text", "text": block["content"]}]
    with world.open() as session:
        first = session.view(history)
        flipped = reloaded(history)
        flipped[0]["content"] = flipped[0]["content"][0]["text"]
        for block in result_blocks(flipped):
            block["content"] = text_of(block)
        second = session.view(flipped)
        assert second.decisions == ()
        assert second.rewrites_from is None
        assert unmarked(second.messages) == unmarked(first.messages)
    assert world.records(Kind.REVERT) == []


def test_s03_parallel_results_in_the_order_of_completion(world: World) -> None:
    """Another order on a second run: both legal, pairs kept, each handle its own content."""
    names = [f"p{i}" for i in range(4)]
    blocks = [result(name, output(i, 40_000)) for i, name in enumerate(names)]
    with world.open() as session:
        for order in ([2, 0, 3, 1], [1, 3, 0, 2]):
            history = [human("Go."), asks(*map(call, names)), answers(*(blocks[i] for i in order))]
            view = session.view(history)
            assert_faithful(history, view)
            for i, block in zip(order, result_blocks(view.messages), strict=True):
                assert session.read(handle_of(block)) == output(i, 40_000).encode()
    assert all(request.whole for request in world.requests())


def test_s04_a_reminder_glued_to_a_result(world: World) -> None:
    """The newest result keeps it, also as a preview; an old one is masked with it."""
    reminder = "\n<system-reminder>Mind the todo list.</system-reminder>"
    history = conversation(14)
    for block in result_blocks(history):
        block["content"] += reminder
    history += exchange(50, 50_000)
    result_blocks(history)[-1]["content"] += reminder
    with world.open(policy=SMALL) as session:
        blocks = result_blocks(session.view(history).messages)
    assert is_preview(blocks[-1])
    assert reminder in text_of(blocks[-1])
    assert is_masked(blocks[0])


def test_s06_a_shorter_history_of_the_client(world: World) -> None:
    """After its own compaction decisions on kept messages still hold, nothing is decided anew."""
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        shorter = [human("Summary of what was: all is well."), *reloaded(history[7:])]
        view = session.view(shorter)
        assert view.decisions == ()
        assert view.messages[1:] == first.messages[7:]
        assert_faithful(shorter, view)


def test_s07_tools_inserted_into_the_list(world: World) -> None:
    """Nothing is voided."""
    history = conversation(14)
    tools = [{"name": name} for name in ("a", "b", "c")]
    with world.open() as session:
        first = session.view(history, tools=tools)
        view = session.view(history, tools=[tools[0], {"name": "new"}, *tools[1:]])
        assert view.messages == first.messages
        assert view.decisions == ()
    assert [[t["name"] for t in r.tools or []] for r in world.requests()] == [
        ["a", "b", "c"],
        ["a", "new", "b", "c"],
    ]


def test_s09_a_reply_that_comes_back_otherwise(world: World) -> None:
    """Another encoding of a call's input is a new message, not an error; decisions hold."""
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        session.observe({"usage": {"input_tokens": 3_000}, "content": [call("toolu_n")]})
        came_back = call("toolu_n", input={"command": "toolu_n", "timeout": None})
        longer = [*history, asks(came_back), answers(result("toolu_n", "ok"))]
        view = session.view(longer)
        assert view.messages[:29] == first.messages
        again = [*history, asks(call("toolu_n")), answers(result("toolu_n", "ok"))]
        assert session.view(again).messages[:29] == first.messages
    assert all(request.whole for request in world.requests())


def test_s10_the_last_message_is_rewritten_three_times(world: World) -> None:
    """Only its own decision is voided, and each version reads back."""
    history = conversation(14)
    with world.open() as session:
        first = session.view([*history, *exchange(50, 40_000)])
        for number in range(3):
            last = answers(result("toolu_50", output(60 + number, 40_000)))
            view = session.view([*history, exchange(50)[0], last])
            assert view.messages[:29] == first.messages[:29]
            [decision] = view.decisions
            assert session.read(decision.handle) == output(60 + number, 40_000).encode()
        texts = [session.read(name).decode() for name in session.handles()]
        assert output(50, 40_000) in texts
    assert all(request.whole for request in world.requests())


def test_s11_the_same_request_again(world: World) -> None:
    """After a cut stream, with another `stream` flag and reloaded: decided once."""
    history = [*conversation(14), *exchange(50, 40_000)]
    with world.open() as session:
        first = session.view(history, stream=True)
        second = session.view(reloaded(history), stream=False)
        assert second.messages == first.messages
        assert second.decisions == ()
    assert len(world.records(Kind.SET)) == 1


def test_c95_a_limit_by_tool_or_none(world: World) -> None:
    """A small limit for one tool, off for another, in one policy."""
    policy = Policy(persist=PersistPolicy(tools={"Log": 4_000, "Keep": None}))
    with world.open(policy=policy) as session:
        for tool, changed in (("Log", True), ("Keep", False), ("Shell", False)):
            history = [human("Go."), *exchange(len(tool), 5_000, tool)]
            assert session.view(history).changed is changed


def test_errors_of_the_vault_are_typed(world: World) -> None:
    """The wrong key and, to a reader, a missing one are storage errors; the files stay."""
    with world.open() as session:
        session.view(conversation(14))
    before = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    with pytest.raises(StorageError) as wrong:
        world.open(keys=Keys(os.urandom(32), world.keys.state))
    elsewhere = Keys(os.urandom(32), world.folder / "elsewhere")
    with pytest.raises(StorageError) as missing:
        Transcript.open(world.folder, "one", keys=elsewhere)
    assert wrong.value.hint
    assert missing.value.hint
    after = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if k.suffix == ".lane"} == {
        k: v for k, v in before.items() if k.suffix == ".lane"
    }
