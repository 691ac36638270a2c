"""What a loop meets: views turn after turn, resuming, arguments, replies, reading back."""

import copy
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from histories import (
    MARK,
    SMALL,
    History,
    World,
    answers,
    asks,
    call,
    conversation,
    exchange,
    handle_of,
    hidden,
    human,
    marks_in,
    output,
    reloaded,
    result,
    result_blocks,
    says,
    unmarked,
)

from compactor import (
    BadMessage,
    BadPolicy,
    Closed,
    Compactor,
    CompactorError,
    Keys,
    PersistPolicy,
    Policy,
    StorageError,
    UnknownHandle,
)
from compactor.storage import BadName, Kind, SessionBusy

HERE = Path(__file__).parent


def in_another_process(world: World, code: str, *, kill: bool = False) -> str:
    """Run code that has `session` and `history`; return what it prints."""
    start = f"""
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from histories import *
from compactor import Compactor, Keys
keys = Keys(bytes(32), Path({str(world.keys.state)!r}))
session = Compactor.open({str(world.folder)!r}, "one", policy=SMALL, keys=keys)
history = conversation(14)
"""
    world.keys = Keys(bytes(32), world.keys.state)
    ran = subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == (-signal.SIGKILL if kill else 0), ran.stderr
    return ran.stdout


# Resuming


@pytest.mark.parametrize("fresh", [False, True], ids=["same", "reloaded"])
def test_resuming_gives_the_same_bytes(world: World, fresh: bool) -> None:  # noqa: FBT001
    """After `close` the same history has the same view, and no new decision."""
    history = conversation(14)
    with world.open() as session:
        before = session.view(history)
    with world.open() as session:
        after = session.view(reloaded(history) if fresh else history)
        assert after.decisions == ()
        assert json.dumps(after.messages) == json.dumps(before.messages)
        assert after.stats.masked == before.stats.masked
        assert session.handles()


def test_a_killed_process_loses_no_decision(world: World) -> None:
    """SIGKILL right after `view`: the next process sends the same bytes and all reads back."""
    code = """
view = session.view(history)
print(json.dumps(view.messages), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    sent = json.loads(in_another_process(world, code, kill=True))
    history = conversation(14)
    with world.open() as session:
        view = session.view(history)
        assert view.messages == sent
        assert view.decisions == ()
        originals = {block["tool_use_id"]: block["content"] for block in result_blocks(history)}
        for note in hidden(view.messages):
            assert session.read(handle_of(note)).decode() == originals[note["tool_use_id"]]
    requests = world.requests()
    assert [request.whole for request in requests] == [True] * len(requests)
    assert requests[0].messages == requests[-1].messages == sent


def test_a_process_that_just_ends_is_closed(world: World) -> None:
    """Without `close` the session closes with the interpreter, and says so in the transcript."""
    in_another_process(world, "session.view(history)")
    assert len(world.records(Kind.CLOSE)) == 1
    assert [request.whole for request in world.requests()] == [True]


def test_a_process_that_just_ends_keeps_its_last_reply(world: World) -> None:
    """Closing at exit stores the observed reply as `close` does."""
    code = """
session.view(history)
session.observe({"usage": {"input_tokens": 5}, "content": [{"type": "text", "text": "Bye."}]})
"""
    in_another_process(world, code)
    [body] = world.records(Kind.CLOSE)
    assert body["answered"]["reply"] == says("Bye.")


def test_a_session_goes_on_after_resuming(world: World) -> None:
    """Several runs of one session make one transcript, whole in every request."""
    history = conversation(0)
    sent = []
    for run in range(4):
        with world.open() as session:
            for number in range(8):
                history += exchange(run * 8 + number)
                sent.append(copy.deepcopy(session.view(history).messages))
    requests = world.requests()
    assert [request.messages for request in requests] == sent
    assert all(request.whole for request in requests)
    with world.transcript() as transcript:
        assert transcript.messages() == history
        assert len(transcript.sets) >= 2


def test_opening_on_a_running_conversation_plans_one_ordinary_set(world: World) -> None:
    """What the model has read already is never "on arrival"."""
    history = conversation(20, 40_000)
    with world.open(policy=Policy()) as session:
        view = session.view(history)
    assert {decision.stage for decision in view.decisions} == {"persist", "mask"}
    assert [d.message for d in view.decisions if d.stage == "persist"] == [40]


def test_sessions_of_one_workspace_are_apart(world: World) -> None:
    """Names are checked, and None makes a new one each time."""
    with world.open("one") as one, world.open("two") as two, world.open(None) as three:  # type: ignore[arg-type]
        one.view(conversation(14))
        assert two.handles() == []
        assert three.session not in {"one", "two"}
    for name in ("", "A", "a..b", "../x", "con", "-a", "x" * 65):
        if name:
            with pytest.raises(BadName) as caught:
                world.open(name)
            assert caught.value.hint


# One view


def test_viewing_twice_decides_once(world: World) -> None:
    """The same messages, no new decision, one set and one request in the transcript."""
    history = conversation(14)
    with world.open() as session:
        first = session.view(history)
        second = session.view(history)
        third = session.view(reloaded(history))
    assert first.decisions
    assert second.decisions == third.decisions == ()
    assert first.messages == second.messages == third.messages
    assert second.rewrites_from is None
    assert second.stable_prefix == len(history)
    assert len(world.records(Kind.SET)) == 1
    assert len(world.requests()) == 1


def test_a_view_says_what_it_rewrote(world: World) -> None:
    """The first already sent message that changed, and what the cache must take in anew."""
    history = conversation(9)
    with world.open() as session:
        assert session.view(history).stable_prefix == 0
        history += exchange(9, 6_000)
        view = session.view(history)
        assert view.changed
        assert view.rewrites_from == view.stable_prefix == 2
        assert view.stats.rewritten_tokens > 0
        history += exchange(10, 400)
        view = session.view(history)
        assert view.rewrites_from is None
        assert view.stable_prefix == len(history) - 2
        assert view.stats.rewritten_tokens == 0


def test_persisting_on_arrival_rewrites_nothing(world: World) -> None:
    """No cache has held the new result yet."""
    history = conversation(2)
    with world.open(policy=Policy()) as session:
        session.view(history)
        history += exchange(3, 60_000)
        view = session.view(history)
    assert view.changed
    assert view.rewrites_from is None


def test_between_compactions_views_are_prefixes(world: World) -> None:
    """View n is a prefix of view n+1 wherever `rewrites_from` is None, and that is mostly so."""
    history = conversation(0)
    sent: History = []
    rewrites = 0
    with world.open() as session:
        for number in range(32):
            history += exchange(number)
            view = session.view(history)
            stable = len(sent) if view.rewrites_from is None else view.rewrites_from
            assert view.messages[:stable] == sent[:stable]
            rewrites += view.rewrites_from is not None
            sent = copy.deepcopy(view.messages)
    assert 1 <= rewrites <= 4


# Cache marks


def move_marks(history: History, *, in_place: bool) -> History:
    """Put marks on the last two messages of the user, as clients do."""
    if not in_place:
        history = copy.deepcopy(history)
    for message in history:
        for block in message["content"]:
            block.pop("cache_control", None)
    for message in [m for m in history if m["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = MARK
    return history


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "copied"])
def test_marks_never_accumulate(world: World, in_place: bool) -> None:  # noqa: FBT001
    """Each view has exactly the history's marks, and is stable apart from them."""
    history = conversation(0)
    policy = SMALL.but(persist=PersistPolicy(always_chars=1_000, preview_chars=200))
    sent: History = []
    with world.open(policy=policy) as session:
        for number in range(40):
            history += exchange(number, 2_000 if number % 3 else 1_100)
            history = move_marks(history, in_place=in_place)
            view = session.view(history)
            assert marks_in(view.messages) == marks_in(history) == 2
            stable = len(sent) if view.rewrites_from is None else view.rewrites_from
            assert unmarked(view.messages[:stable]) == sent[:stable]
            sent = unmarked(view.messages)
    assert hidden(view.messages)
    requests = world.requests()
    assert all(request.whole for request in requests)
    assert requests[-1].marks == [[len(history) - 3, 0], [len(history) - 1, 0]]
    assert unmarked(requests[-1].messages) == sent


def test_marks_put_on_the_view_do_not_stay(world: World) -> None:
    """A client that marks the last message of what it sends finds no mark of its own later."""
    history = conversation(0)
    policy = SMALL.but(persist=PersistPolicy(always_chars=1_000, preview_chars=200))
    with world.open(policy=policy) as session:
        for number in range(15):
            history += exchange(number, 1_600)
            view = session.view(history)
            assert marks_in(view.messages) == 0
            view.messages[-1]["content"][-1]["cache_control"] = MARK


def test_a_mark_far_back_is_seen_and_recorded(world: World) -> None:
    """A mark that stays on an old message is in every record, and one put there later too."""
    history = conversation(10)
    history[2]["content"][0]["cache_control"] = MARK
    with world.open(policy=Policy()) as session:
        session.view(history)
        history = [history[0], *history[3:]]
        history[1] = {
            **history[1],
            "content": [{**history[1]["content"][0], "cache_control": MARK}],
        }
        session.view(history)
        history = [history[0], human("x"), *history[1:], *exchange(11)]
        session.view(history)
    assert [request.marks for request in world.requests()] == [[[2, 0]], [[1, 0]], [[2, 0]]]


def test_a_mark_moves_onto_a_hidden_result(world: World) -> None:
    """Also far from the end, and also where only its time to live changes."""
    history = conversation(20)
    with world.open() as session:
        session.view(history)
        changed = reloaded(history)
        changed[4]["content"][0]["cache_control"] = MARK
        assert session.view(changed).messages[4]["content"][0]["cache_control"] == MARK
        longer = {**MARK, "ttl": "1h"}
        changed = reloaded(history)
        changed[4]["content"][0]["cache_control"] = longer
        assert session.view(changed).messages[4]["content"][0]["cache_control"] == longer
        assert marks_in(session.view(reloaded(history)).messages) == 0


def test_a_mark_changes_in_place(world: World) -> None:
    """Set, changed and removed in the caller's own dictionary near the end: the view follows."""
    history = conversation(20)
    policy = SMALL.but(persist=PersistPolicy(always_chars=1_000, preview_chars=100))
    with world.open(policy=policy) as session:
        for end in range(1, len(history) + 1, 2):
            session.view(history[:end])
        block = history[36]["content"][0]
        for mark in (dict(MARK), {**MARK, "ttl": "1h"}):
            block["cache_control"] = mark
            sent = session.view(history).messages[36]["content"][0]
            assert sent["content"] != block["content"]
            assert sent["cache_control"] == mark
        del block["cache_control"]
        assert marks_in(session.view(history).messages) == 0


# Arguments and replies


def test_arguments_are_recorded_when_they_change(world: World) -> None:
    """System prompt, tools and options of each request, whatever changed between them."""
    asked: list[dict[str, Any]] = [
        {"system": "A", "tools": [{"name": "x"}], "max_tokens": 5, "model": "m"},
        {"system": "A", "tools": [{"name": "x"}], "max_tokens": 5, "model": "m"},
        {"system": [{"type": "text", "text": "B"}], "max_tokens": 5, "model": "m"},
        {"system": "A", "tools": [{"name": "x"}, {"name": "y"}], "model": "n"},
        {},
        {"system": None, "tools": [], "model": "m", "thinking": {"type": "enabled"}},
    ]
    history = conversation(0)
    for half in (asked[:3], asked[3:]):
        with world.open() as session:
            for arguments in half:
                history += exchange(len(history), 100)
                session.view(history, **arguments)
    requests = world.requests()
    assert len(requests) == len(asked)
    for request, given in zip(requests, asked, strict=True):
        options = {k: v for k, v in given.items() if k not in {"system", "tools"}}
        assert request.system == given.get("system")
        assert request.tools == given.get("tools")
        assert request.options == options


def test_a_changed_argument_is_another_request(world: World) -> None:
    """On the same history too; the value itself is stored once."""
    history = conversation(1)
    with world.open() as session:
        for system in ("A", "B", "A", "A"):
            session.view(history, system=system)
    assert [request.system for request in world.requests()] == ["A", "B", "A"]
    values = [
        value for body in world.records(Kind.REQUEST) for value in body.get("values", {}).values()
    ]
    assert sorted(values) == ["A", "B"]


def test_transport_arguments_are_never_recorded(world: World) -> None:
    """Headers may hold secrets; they say how to reach the provider, not what to ask."""
    secret = {"x-api-key": "secret-5f1b"}
    with world.open() as session:
        session.view(
            conversation(1), extra_headers=secret, extra_query={"q": "secret"}, timeout=3, model="m"
        )
    assert [request.options for request in world.requests()] == [{"model": "m"}]
    assert "secret" not in str(world.records(Kind.REQUEST))


REPLY = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 50, "output_tokens": 7},
}


def test_a_reply_that_stands_in_no_history_is_stored_at_close(world: World) -> None:
    """Once; and the request counts as answered, with its usage."""
    with world.open() as session:
        session.view(conversation(1))
        session.observe(REPLY)
    [body] = world.records(Kind.CLOSE)
    answered = body["answered"]
    assert (answered["usage"], answered["stop_reason"]) == (REPLY["usage"], "end_turn")
    assert answered["reply"] == says("Done.")
    [request] = world.requests()
    assert request.answered == answered


def test_a_reply_in_the_history_is_not_stored_twice(world: World) -> None:
    """It is the next message then."""
    history = conversation(1)
    with world.open() as session:
        session.view(history)
        session.observe(REPLY)
        session.view([*history, says("Done."), human("Thanks.")])
    [body] = world.records(Kind.CLOSE)
    assert "reply" not in body.get("answered", {})
    assert world.records(Kind.REQUEST)[1]["answered"]["usage"] == REPLY["usage"]
    with world.transcript() as transcript:
        assert transcript.messages()[-2:] == [says("Done."), human("Thanks.")]


def test_a_reply_that_the_history_does_not_take_up_is_kept(world: World) -> None:
    """The human interrupts, and the client drops the reply: it was given all the same."""
    history = conversation(1)
    with world.open() as session:
        session.view(history)
        session.observe(REPLY)
        session.view([*history, human("Stop, another way.")])
    records = [world.records(kind) for kind in (Kind.MESSAGES, Kind.REQUEST, Kind.CLOSE)]
    assert "Done." in str(records)


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 2_000},
        {"usage": {"input_tokens": 500, "cache_read_input_tokens": 1_500}},
        {"type": "message", "content": [], "usage": {"input_tokens": 2_000}},
    ],
    ids=["usage", "reply", "whole reply"],
)
def test_usage_anchors_the_estimate(world: World, usage: dict[str, Any]) -> None:
    """A reply's dictionary or the usage in it."""
    history = conversation(1)
    with world.open() as session:
        session.view(history)
        session.observe(usage)
        assert session.view(history).stats.view_tokens == 2_000


@pytest.mark.parametrize(
    "odd",
    [None, "text", 5, [], {}, {"usage": None}, {"usage": {"output_tokens": 1}}, b""],
    ids=repr,
)
def test_what_is_no_reply_is_refused(world: World, odd: object) -> None:
    """With a typed error, after which the session goes on."""
    with world.open() as session:
        session.view(conversation(1))
        with pytest.raises(BadMessage):
            session.observe(odd)
        assert not session.view(conversation(2)).changed


# Reading back


def test_reading_back_by_handle(world: World) -> None:
    """Byte-exact, at once and after resuming; an unknown handle is a typed error."""
    history = [human("Go."), asks(call("a")), answers(result("a", output(1, 50_000)))]
    for _ in range(2):
        with world.open() as session:
            view = session.view(history)
            [name] = session.handles()
            assert name == handle_of(result_blocks(view.messages)[0])
            assert session.read(name) == output(1, 50_000).encode()
            for unknown in ("out-aaaaaaaa", "", "../x", name[:-1]):
                with pytest.raises(UnknownHandle) as caught:
                    session.read(unknown)
                assert isinstance(caught.value, LookupError)


def test_a_mask_of_a_preview_names_the_original(world: World) -> None:
    """One handle, before and after, that gives the whole result."""
    history = [human("Go."), asks(call("a")), answers(result("a", output(1, 50_000)))]
    with world.open(policy=Policy(window=15_000)) as session:
        first = handle_of(result_blocks(session.view(history).messages)[0])
        history += conversation(25)
        view = session.view(history)
        assert handle_of(result_blocks(view.messages)[0]) == first
        assert session.read(first) == output(1, 50_000).encode()


@pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
def test_a_damaged_file_is_made_good_by_the_history(world: World, damage: str) -> None:
    """As long as the caller's history holds the result, it reads back; else the error is typed."""
    history = [human("Go."), asks(call("a")), answers(result("a", output(1, 50_000)))]
    with world.open() as session:
        session.view(history)
        [name] = session.handles()
        [blob] = world.root.rglob("*.blob")
        data = blob.read_bytes()
        if damage == "removed":
            blob.unlink()
        else:
            blob.write_bytes(data[:100] if damage == "cut" else data[:-40] + b"?" + data[-39:])
        assert session.read(name) == output(1, 50_000).encode()
    with world.open() as session, pytest.raises(StorageError):
        session.read(name)


def test_the_history_makes_good_whatever_else_it_holds(world: World) -> None:
    """Other results of odd content do not stop the search for the right one."""
    odd = [
        result("a", ["text"]),
        result("b", None),
        {"type": "tool_result", "tool_use_id": "c"},
        result("d", [{"type": "text", "text": "x", "citations": None}]),
        result("e", output(1, 50_000)),
    ]
    history = [human("Go."), asks(*(call(n) for n in "abcde")), answers(*odd)]
    with world.open() as session:
        session.view(history)
        [blob] = world.root.rglob("*.blob")
        blob.unlink()
        assert session.read(session.handles()[0]) == output(1, 50_000).encode()


# Ends, switches, logs


def test_one_writer_a_session(world: World) -> None:
    """A second one is refused by name, and free after `close`."""
    with world.open():
        with pytest.raises(SessionBusy):
            world.open()
        world.open("two").close()
    world.open().close()


def test_a_closed_session_says_so(world: World) -> None:
    """`view` raises `Closed`; closing again is harmless."""
    session = world.open()
    session.view(conversation(1))
    session.close()
    session.close()
    with pytest.raises(Closed) as caught:
        session.view(conversation(1))
    assert caught.value.hint
    assert isinstance(caught.value, RuntimeError)
    assert len(world.records(Kind.CLOSE)) == 1


def test_an_error_in_the_loop_closes_the_session(world: World) -> None:
    """As a context manager; the error goes up as it is."""

    def loop() -> None:
        with world.open() as session:
            session.view(conversation(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert len(world.records(Kind.CLOSE)) == 1


@pytest.mark.parametrize("word", ["off", "OFF", " Off "])
def test_off_returns_the_history_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, word: str
) -> None:
    """Silently: nothing on the disk, no line, no error even for what else would be refused."""
    monkeypatch.setenv("COMPACTOR", word)
    caplog.set_level(logging.DEBUG)
    history = conversation(14)
    with Compactor.open(world.folder, "one") as session:
        for odd in (history, [{"role": object()}], ("tuple",), None):
            assert session.view(odd, max_tokens=10**9, system=b"bytes").messages is odd  # type: ignore[arg-type]
        session.observe({"usage": {"input_tokens": 5}, "content": []})
        session.flush()
        assert session.handles() == []
        with pytest.raises(UnknownHandle):
            session.read("out-aaaaaaaa")
    assert list(world.folder.iterdir()) == []
    assert caplog.records == []


def test_off_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off under a running session and on again: the decisions hold, requests rebuild."""
    history = conversation(14)
    with world.open() as session:
        before = session.view(history).messages
        with monkeypatch.context() as patch:
            patch.setenv("COMPACTOR", "off")
            history += exchange(14)
            assert session.view(history).messages is history
        history += exchange(15)
        view = session.view(history)
        assert view.messages[: len(before)] == before
    assert all(request.whole for request in world.requests())


def test_one_line_when_something_was_compacted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """And none otherwise."""
    caplog.set_level(logging.DEBUG, "compactor")
    history = conversation(8)
    with world.open() as session:
        session.view(history)
        assert caplog.records == []
        history += conversation(6)
        session.view(history)
        assert [record.levelname for record in caplog.records] == ["INFO"]
        session.view(history)
        session.view([*history, *exchange(30, 50)])
    assert len(caplog.records) == 1


def test_no_content_in_logs_and_errors(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary in texts, ids, tool names, keys and arguments stands in no line and no message."""
    from compactor.storage import files

    caplog.set_level(logging.DEBUG)
    canary = "canary-5f1b"
    history = conversation(14, request=canary)
    history[1]["content"][0]["name"] = canary
    for block in result_blocks(history):
        block["content"] = canary + block["content"]
    texts = []

    def attempt(messages: list[Any], **request: Any) -> None:
        try:
            texts.append(session.view(messages, **request).degraded or "")
        except (CompactorError, StorageError) as error:
            texts.append(f"{error} {error.hint} {error!r}")

    with world.open() as session:
        attempt([{"role": canary, "content": [{"type": canary}]}])
        attempt([human(canary), {"role": "user", "content": {canary: 1}}])
        attempt([human(canary), {"role": "user", "content": [{canary: b"x", "type": canary}]}])
        attempt([human(canary), {"role": "user", "content": [{b"x": canary}]}])
        attempt(history, metadata={canary: {canary}})
        attempt(history, max_tokens=10**6, system=canary)
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", lambda _: os.close(-1))
            attempt(history, system=canary)
        for _ in range(3):
            attempt(history, system=canary)
        with pytest.raises(UnknownHandle) as unknown:
            session.read(canary)
        with pytest.raises(BadMessage) as no_reply:
            session.observe({canary: canary})
    texts += [repr(unknown.value), repr(no_reply.value), caplog.text]
    assert "degraded" not in texts
    assert any("NotStored" in text for text in texts)
    assert canary not in "\n".join(texts)


def test_settings_that_contradict_the_request_are_an_error_before_anything_happens(
    world: World,
) -> None:
    """The history is not taken in, and the next call works."""
    history = conversation(14)
    with world.open() as session:
        with pytest.raises(BadPolicy):
            session.view(history, max_tokens=SMALL.window)
        assert session.view(history).decisions


def test_importing_is_light() -> None:
    """`import compactor` loads no SDK and no terminal library."""
    code = "import sys, compactor; print(sorted({'anthropic', 'mcp', 'rich'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
