"""The archive: the middle of a long history gives way to one note, and comes back exactly."""

import errno
import json
import os
import re
from typing import Any

import pytest
from histories import (
    MARK,
    History,
    Message,
    World,
    answers,
    asks,
    assert_legal,
    call,
    conversation,
    exchange,
    human,
    image,
    is_masked,
    marks_in,
    output,
    reloaded,
    result,
    result_blocks,
    says,
)

from compactor import (
    ArchivePolicy,
    Compactor,
    MaskPolicy,
    PersistPolicy,
    Policy,
    RangeDecision,
    View,
)
from compactor.storage import Kind, files

# Only ranges give way, by size: of `conversation(14)` the messages from 3 up to 23.
SIZE = Policy(window=10_000, stages=("archive",))
NOTE = re.compile(r"\[(\d+) messages? archived: (msgs-[a-z2-7]{8,})[^\]]*\]")


def title(message: Message) -> str:
    """Return the first text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return str(content[0].get("text", "")) if content else ""


def notes_in(messages: History) -> list[int]:
    """Return the positions of the notes of ranges."""
    return [i for i, message in enumerate(messages) if NOTE.match(title(message))]


def range_of(view: View) -> RangeDecision:
    """Return the one range that a view decided."""
    [found] = [one for one in view.decisions if isinstance(one, RangeDecision)]
    return found


def bounds(one: RangeDecision) -> tuple[int, int]:
    return one.span.start, one.span.start + one.span.length


def assert_gave_way(history: History, view: View) -> tuple[int, int]:
    """Hold a view that only an archive changed to its history; return the range's bounds."""
    one = range_of(view)
    start, end = bounds(one)
    assert view.messages == [*history[:start], *one.messages, *history[end:]]
    assert_legal(view.messages)
    return start, end


def as_json(messages: History) -> bytes:
    """Write messages as they are read back."""
    text = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def assert_rebuilt(world: World, sent: list[History]) -> None:
    """Hold the transcript to what was sent."""
    requests = world.requests()
    assert all(request.whole for request in requests)
    assert [request.messages for request in requests] == sent


def with_requests(exchanges: int, *at: int) -> History:
    """Return a conversation in which the human says more after these exchanges."""
    history = [human("Request 0: fix the login.")]
    for number in range(exchanges):
        history += exchange(number)
        if number in at:
            history.append(human(f"Request {number}: now äö\u2028 that."))
    return history


# What goes, and what stays


def test_by_size_one_note_stands_for_the_middle(world: World) -> None:
    """The first three messages and the newest three exchanges stay as the caller's objects."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert assert_gave_way(history, view) == (3, 23)
    assert [one is two for one, two in zip(view.messages[:3], history, strict=False)] == [True] * 3
    assert all(one is two for one, two in zip(view.messages[4:], history[23:], strict=True))
    assert NOTE.match(title(view.messages[3]))


def test_by_size_no_more_goes_than_the_target_needs(world: World) -> None:
    """The view ends below the target, and one exchange less would not have done."""
    history = conversation(14)
    policy = SIZE.but(target=0.5)
    with world.open(policy=policy) as session:
        view = session.view(history)
    _, end = assert_gave_way(history, view)
    goal = 0.5 * 9_800
    assert view.stats.view_tokens <= goal
    dropped = world.open("sizes", policy=Policy())
    least = dropped.view(history[end - 2 : end]).stats.view_tokens
    dropped.close()
    assert view.stats.view_tokens + least > goal


def test_by_count_the_first_three_and_the_newest_46_stay(world: World) -> None:
    """Above 50 messages one marker with count and handle stands for all between."""
    history = conversation(40, 100)
    with world.open(policy=Policy.course()) as session:
        view = session.view(history)
    start, end = assert_gave_way(history, view)
    assert start == 3
    assert 45 <= len(history) - end <= 46
    [note] = notes_in(view.messages)
    found = NOTE.match(title(view.messages[note]))
    assert found
    assert (found[1], found[2]) == (str(end - start), range_of(view).handle)


@pytest.mark.parametrize(("count", "changed"), [(50, False), (51, True)])
def test_by_count_fifty_messages_are_not_above_fifty(
    world: World,
    count: int,
    changed: bool,  # noqa: FBT001
) -> None:
    """At the limit nothing goes; one more message, and the middle does."""
    history = conversation(count, 100)[:count]
    if history[-1]["role"] == "assistant":
        history[-1] = human("Go on.")
    with world.open(policy=Policy.course()) as session:
        assert session.view(history).changed is changed


def test_by_count_hidden_messages_do_not_count(world: World) -> None:
    """After an archive the limit is on the view, so that it is long until the next."""
    policy = Policy().but(archive={"max_messages": 50, "keep_head": 3, "keep_tail": 20})
    history, taken = conversation(0), []
    with world.open(policy=policy) as session:
        for number in range(60):
            history += exchange(number, 100)
            view = session.view(history)
            assert len(view.messages) <= 50
            if view.decisions:
                taken.append(len(history))
    assert taken == [51, 79, 107]


def test_one_human_message_and_two_hundred_pairs(world: World) -> None:
    """The human's message and the newest pairs stay, the middle goes."""
    history = conversation(200, 100)
    with world.open(policy=Policy.course()) as session:
        view = session.view(history)
    assert_gave_way(history, view)
    assert view.messages[0] is history[0]
    assert view.messages[-1] is history[-1]


def odd_shapes() -> History:
    """Return runs of one role, split results and system messages, over and over."""
    history = [human("Go.")]
    for number in range(0, 60, 4):
        names = [f"toolu_{number + i}" for i in range(3)]
        history += [says("Let me see."), says("All three."), asks(*map(call, names))]
        history += [answers(result(name, output(number, 400))) for name in names]
        history.append({"role": "system", "content": f"Rule {number}."})
        history.append(human("<system-reminder>mind</system-reminder>"))
    return history


@pytest.mark.parametrize("keep_tail", range(20, 28))
def test_cuts_fall_between_exchanges_only(world: World, keep_tail: int) -> None:
    """Wherever the count would cut: no run of assistant messages and no batch is split."""
    history = odd_shapes()
    policy = Policy().but(archive={"max_messages": 60, "keep_tail": keep_tail})
    with world.open(policy=policy) as session:
        start, end = assert_gave_way(history, session.view(history))
    for position in (start, end):
        assert history[position]["role"] == "assistant"
        assert history[position - 1]["role"] != "assistant"
    assert keep_tail - 8 < len(history) - end <= keep_tail


def test_without_a_safe_start_nothing_is_cut(world: World) -> None:
    """One exchange of 80 messages has no place for a cut."""
    names = [f"toolu_{i}" for i in range(78)]
    history = [human("All of it."), asks(*map(call, names))]
    history += [answers(result(name, "ok")) for name in names]
    with world.open(policy=Policy.course()) as session:
        assert session.view(history).messages is history


def test_the_current_request_inside_a_range(world: World) -> None:
    """It stands byte for byte, exactly once, as blocks of its own behind the note's text."""
    history = conversation(14)
    asked = human("Now \u2028 the “colours”.", image(), {"type": "text", "text": "Tout\tça"})
    history[7:7] = [asked]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert_gave_way(history, view)
    [note] = notes_in(view.messages)
    assert view.messages[note]["content"][1:] == asked["content"]
    for block in asked["content"]:
        text = json.dumps(block, sort_keys=True)
        assert json.dumps(view.messages, sort_keys=True).count(text) == 1


def test_a_request_beside_results_inside_a_range(world: World) -> None:
    """Only the human's blocks of the message come along, without what the host put in."""
    history = conversation(14)
    said = {"type": "text", "text": "Stop, look at the tests first."}
    injected = {"type": "text", "text": "<system-reminder>mind</system-reminder>"}
    history[8]["content"] += [injected, said]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    [note] = notes_in(view.messages)
    assert view.messages[note]["content"][1:] == [said]


def test_older_human_messages_stand_verbatim_in_order(world: World) -> None:
    """Each under its number in the conversation, oldest first; injected text is not the human's."""
    history = with_requests(14, 3, 6, 12)
    history[12:12] = [human("<system-reminder>mind</system-reminder>")]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    [note] = notes_in(view.messages)
    [block] = view.messages[note]["content"]
    assert block["text"].splitlines(keepends=True)[1:] == [
        "[User messages of that range, verbatim]\n",
        "[user message 2]\n",
        "Request 3: now äö\u2028",
        " that.\n",
        "[user message 3]\n",
        "Request 6: now äö\u2028",
        " that.",
    ]


@pytest.mark.parametrize(
    "bound", [{"keep_user_chars": 2_500}, {"keep_user_share": 2_500 / 3 / 9_800}]
)
def test_human_messages_are_bounded_newest_first(world: World, bound: dict[str, Any]) -> None:
    """What does not fit is counted, and reads back with the range."""
    history = conversation(14)
    texts = [f"{number} " + "word " * 199 for number in range(5)]
    for number, text in enumerate(texts):
        history.insert(5 + 3 * number, human(text))
    history.append(says("Done."))
    history += [human("Thanks. Next."), *exchange(50)]
    with world.open(policy=SIZE.but(archive=bound)) as session:
        view = session.view(history)
        [note] = notes_in(view.messages)
        text = title(view.messages[note])
        assert [each in text for each in texts] == [False] * 3 + [True] * 2
        assert "3 older ones" in text
        assert all(each in session.read(range_of(view).handle).decode() for each in texts)


def test_system_messages_of_the_range_stand_behind_the_note(world: World) -> None:
    """The host's rules hold on: all of them, in order, as they were."""
    history = conversation(14)
    rules: History = [
        {"role": "system", "content": "Mind the budget.", "x_scope": {"turn": 1}},
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    ]
    history.insert(5, rules[0])
    history.insert(12, rules[1])
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert_gave_way(history, view)
    [note] = notes_in(view.messages)
    assert view.messages[note + 1 : note + 3] == rules


def test_unread_results_are_never_archived(world: World) -> None:
    """However large the newest batch is and however many messages it has."""
    names = [f"toolu_n{i}" for i in range(60)]
    batch = [asks(*map(call, names)), *(answers(result(n, output(7, 600))) for n in names)]
    history = [*conversation(14), *batch]
    with world.open(policy=SIZE.but(archive={"max_messages": 50})) as session:
        view = session.view(history)
        assert_gave_way(history, view)
        assert all(one is two for one, two in zip(view.messages[-61:], batch, strict=True))


@pytest.mark.parametrize(
    "tail",
    [[asks(call("toolu_z"))], [says("I am")], [asks(call("toolu_z")), human("And?")]],
    ids=["call", "answer", "text"],
)
def test_an_unfinished_history_is_not_archived(world: World, tail: History) -> None:
    """It is passed as it came, and an archive in force stays."""
    history = conversation(14)
    with world.open("new", policy=SIZE) as session:
        longer = [*history, *tail]
        assert session.view(longer).messages is longer
    with world.open("old", policy=SIZE) as session:
        before = session.view(history)
        view = session.view([*history, *tail])
        assert view.messages == [*before.messages, *tail]
        assert view.decisions == ()


@pytest.mark.parametrize("policy", [SIZE, Policy.course()], ids=["size", "count"])
def test_nothing_before_the_providers_own_compaction_is_archived(
    world: World, policy: Policy
) -> None:
    """Planning starts behind the last `compaction` block, which stands once and unchanged."""
    history = conversation(5)
    summary = {"type": "compaction", "content": "All was well.", "encrypted_content": "c2Vj"}
    history += [{"role": "assistant", "content": [summary, *says("So.")["content"]]}, human("Go.")]
    for number in range(20, 50):
        history += exchange(number)
    with world.open(policy=policy) as session:
        view = session.view(history)
    start, _ = assert_gave_way(history, view)
    assert start == 13
    assert all(one is two for one, two in zip(view.messages[:13], history, strict=False))


# Beside the other stages


def test_masks_come_first_and_may_suffice(world: World) -> None:
    """The archive runs only where masking left the view above the middle of the marks."""
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(conversation(14))
    assert view.stats.masked
    assert not view.stats.archived_messages


def test_what_masks_cannot_shrink_is_archived(world: World) -> None:
    """Much dialogue, and one set does both: masks behind the range, nothing inside it."""
    history = conversation(0)
    for number in range(14):
        history += exchange(number)
        history[-2]["content"].insert(0, {"type": "text", "text": "I think so. " * 100})
    with world.open(policy=Policy(window=10_000)) as session:
        view = session.view(history)
        start, end = bounds(range_of(view))
        others = [one for one in view.decisions if not isinstance(one, RangeDecision)]
        assert all(not start <= one.message < end for one in others)
        assert_legal(view.messages)
    assert len(world.records(Kind.SET)) == 1


def test_a_range_given_up_shows_the_masks_inside_it(world: World) -> None:
    """A range hides decisions without deleting them."""
    policy = Policy(
        window=10_000, stages=("mask", "archive"), mask=MaskPolicy(keep_recent=0, keep_least=0)
    )
    history = conversation(12)
    with world.open(policy=policy) as session:
        masked = session.view(history)
        assert [is_masked(block) for block in result_blocks(masked.messages)] == [True] * 11 + [
            False
        ]
        longer = list(history)
        for number in range(60, 66):
            longer += [says("I think so. " * 400), human(f"Go on {number}.")]
        archived = session.view(longer)
        assert archived.stats.archived_messages
        assert session.view(history).messages == masked.messages
        assert session.view(longer).messages == archived.messages


def test_a_new_giant_is_persisted_in_the_set_that_archives(world: World) -> None:
    """One set, one record, one change of the prefix."""
    policy = SIZE.but(stages=("persist", "archive"), persist=PersistPolicy(always_chars=5_000))
    history = [*conversation(14), *exchange(50, 20_000)]
    with world.open(policy=policy) as session:
        view = session.view(history)
    assert {one.stage for one in view.decisions} == {"persist", "archive"}
    assert (view.stats.persisted, view.stats.archived_messages > 0) == (1, True)
    assert len(world.records(Kind.SET)) == 1


def test_the_stage_can_be_off(world: World) -> None:
    """Without it no range is ever hidden, by size or by count."""
    policy = Policy.course(window=10_000, stages=("persist", "mask"))
    with world.open(policy=policy) as session:
        view = session.view(conversation(60))
    assert notes_in(view.messages) == []


# Cache marks


def test_the_note_takes_over_the_newest_mark_of_its_range(world: World) -> None:
    """Its last block carries it, as it was written; older marks of the range go."""
    history = conversation(14)
    for position, ttl in ((4, "5m"), (16, "1h"), (24, "5m"), (28, "5m")):
        history[position]["content"][-1]["cache_control"] = {**MARK, "ttl": ttl}
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    [note] = notes_in(view.messages)
    assert view.messages[note]["content"][-1]["cache_control"] == {**MARK, "ttl": "1h"}
    assert marks_in(view.messages) == 3
    assert world.requests()[-1].marks == [[3, 0], [5, 0], [9, 0]]


def test_marks_that_move_away_leave_the_note(world: World) -> None:
    """As the client's newest marks do, turn by turn: never more than its own."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        sent = []
        for number in range(20, 24):
            history = reloaded(history)
            for message in history:
                for block in message["content"]:
                    block.pop("cache_control", None)
            marked = [history[8], history[-1]] if number < 22 else [history[-3], history[-1]]
            for message in marked:
                message["content"][-1]["cache_control"] = MARK
            view = session.view(history)
            assert marks_in(view.messages) == 2
            [note] = notes_in(view.messages)
            assert (marks_in([view.messages[note]]) == 1) is (number < 22)
            sent.append(reloaded(view.messages))
            history += exchange(number, 100)
    assert [request.marks for request in world.requests()] == [
        [[i, j] for i, m in enumerate(each) for j, b in enumerate(m["content"]) if marks_in(b)]
        for each in sent
    ]


def test_the_mark_of_a_range_stands_on_its_note(world: World) -> None:
    """Also where system messages follow it."""
    history = conversation(14)
    history.insert(5, {"role": "system", "content": "Mind the budget."})
    history[7]["content"][-1]["cache_control"] = MARK
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    [note] = notes_in(view.messages)
    assert marks_in([view.messages[note]]) == 1
    assert view.messages[note + 1] == {"role": "system", "content": "Mind the budget."}


def test_marks_of_system_messages_do_not_stay(world: World) -> None:
    """A mark that the client has moved on is not sent any more."""
    history = conversation(14)
    for position in (5, 8):
        rule = {"type": "text", "text": f"Rule {position}.", "cache_control": MARK}
        history.insert(position, {"role": "system", "content": [rule]})
    with world.open(policy=SIZE) as session:
        session.view(history)
        history = reloaded(history)
        for position in (5, 8):
            del history[position]["content"][0]["cache_control"]
        history[-1]["content"][0]["cache_control"] = MARK
        assert marks_in(session.view(history).messages) == 1


def test_an_empty_system_message_and_a_mark(world: World) -> None:
    """Clients send `role: system` with an empty list; a mark in the range goes to the note then."""
    history = conversation(14)
    history.insert(5, {"role": "system", "content": []})
    history[7]["content"][-1]["cache_control"] = MARK
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert marks_in(view.messages) == 1
    assert_legal(view.messages)


# The way back


def test_the_handle_reads_the_exact_messages(world: World) -> None:
    """JSON of all that was hidden, from the session and from the transcript after it."""
    history = conversation(14)
    history[4]["content"][0]["x_host"] = {"k": [1, 2.5, None, True], "ä": "\u2028\x00"}
    history[9]["content"][0]["input"] = {"pi": 3.0, "n": 10**25}
    history.insert(11, {"role": "system", "content": "Mind the budget."})
    with world.open(policy=SIZE) as session:
        view = session.view(history)
        start, end = bounds(range_of(view))
        name = range_of(view).handle
        assert session.handles() == [name]
        assert session.read(name) == as_json(history[start:end])
    with world.transcript() as transcript:
        assert transcript.handles() == [name]
        assert transcript.read(name) == as_json(history[start:end])


def test_a_restart_gives_the_same_bytes(world: World) -> None:
    """Whatever the policy then, and from a history that was read anew."""
    history = with_requests(14, 3, 6)
    with world.open(policy=SIZE) as session:
        before = json.dumps(session.view(history).messages)
    for policy in (SIZE, Policy(), Policy(stages=()), SIZE.but(archive={"keep_user_chars": 0})):
        with world.open(policy=policy) as session:
            view = session.view(reloaded(history))
            assert view.decisions == ()
            assert json.dumps(view.messages) == before


def test_every_request_is_rebuilt(world: World) -> None:
    """Over many turns with archives, from the transcript alone."""
    history, sent = conversation(0), []
    with world.open(policy=SIZE) as session:
        for number in range(40):
            history += exchange(number)
            if number % 9 == 4:
                history.append(human(f"Now {number}."))
            sent.append(reloaded(session.view(history).messages))
    assert_rebuilt(world, sent)


def test_requests_are_rebuilt_whatever_counts_as_human(world: World) -> None:
    """The session's `not_human` decides where the request is; the rebuilt view is the same."""
    history = conversation(14)
    history[7:7] = [human("[host] The disk is nearly full.")]
    with world.open(policy=SIZE.but(not_human=r"\[host\].*")) as session:
        sent = session.view(history).messages
        assert notes_in(sent)
    assert_rebuilt(world, [sent])


def test_the_set_names_the_range_and_does_not_copy_it(world: World) -> None:
    """Messages are recorded once, when they are first seen."""
    history = conversation(60, 1_500)
    with world.open(policy=SIZE) as session:
        session.view(history)
    [body] = world.records(Kind.SET)
    assert len(json.dumps(body)) < 2_000
    assert sum(len(record["messages"]) for record in world.records(Kind.MESSAGES)) == len(history)


# Later


def test_a_later_archive_extends_the_range(world: World) -> None:
    """One note at the same place, which stands for all, and names no other note."""
    history = with_requests(14, 3)
    names = []
    with world.open(policy=SIZE) as session:
        for number in range(20, 50):
            view = session.view(history)
            assert len(notes_in(view.messages)) == 1
            if view.decisions:
                start, end = bounds(range_of(view))
                names.append(range_of(view).handle)
                assert view.messages[start] == range_of(view).messages[0]
                assert session.read(names[-1]) == as_json(history[start:end])
                assert start == 3
            assert view.stats.archived_messages == end - start
            assert json.dumps(view.messages).count("msgs-") == 1
            history += exchange(number)
    assert len(names) > 2
    assert len(set(names)) == len(names)
    with world.transcript() as transcript:
        assert transcript.handles() == names


def test_a_request_inside_the_range_becomes_an_older_one(world: World) -> None:
    """With a new request and a later archive it stands among the human's messages, once."""
    history = with_requests(14, 3)
    with world.open(policy=SIZE) as session:
        first = session.view(history)
        assert first.messages[3]["content"][1:] == history[9]["content"]
        history += [says("Done."), human("Something else.")]
        second = session.view(history)
        assert second.messages[:4] == first.messages[:4]
        for number in range(20, 40):
            history += exchange(number)
            view = session.view(history)
            text = json.dumps(view.messages, ensure_ascii=False)
            assert text.count("Request 3: now") == 1
        assert "[user message 2]\nRequest 3: now" in title(view.messages[3])


def test_nothing_is_archived_twice_on_one_history(world: World) -> None:
    """Nor where the view is over budget all the same."""
    for name, size in (("fits", 1_500), ("over", 16_000)):
        history = conversation(14, size)
        with world.open(name, policy=SIZE) as session:
            first = session.view(history)
            assert first.over_budget is (name == "over")
            for _ in range(3):
                again = session.view(reloaded(history))
                assert again.decisions == ()
                assert again.messages == first.messages
                assert again.rewrites_from is None
    assert len(world.records(Kind.SET, "fits")) == 1


def test_between_archives_the_prefix_stands(world: World) -> None:
    """View n is a prefix of view n+1 wherever nothing was decided, and few turns decide."""
    history, sent, sets = conversation(0), list[Message](), 0
    with world.open(policy=SIZE) as session:
        for number in range(60):
            history += exchange(number)
            view = session.view(history)
            sets += bool(view.decisions)
            if view.decisions:
                assert view.rewrites_from == view.stable_prefix == 3
            else:
                assert view.messages[: len(sent)] == sent
                assert view.rewrites_from is None
                assert view.stable_prefix == len(sent)
            sent = reloaded(view.messages)
    assert 5 < sets < 15


def test_the_numbers_are_right(world: World) -> None:
    """Counted from the messages: archived, characters before and after, rewritten tokens."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        session.view(history[:-2], policy=Policy())
        view = session.view(history)
    stats = view.stats
    assert stats.archived_messages == 20
    assert stats.masked == stats.persisted == 0
    gone = sum(len(block["content"]) for block in result_blocks(history[3:23]))
    gone += sum(len(json.dumps(m["content"][0]["input"])) - 1 for m in history[3:23:2])
    assert stats.original_chars - stats.view_chars == gone - len(title(view.messages[3]))
    assert (view.rewrites_from, view.stable_prefix) == (3, 3)
    assert 0 < stats.rewritten_tokens < stats.view_tokens < stats.original_tokens
    assert len(view.messages) == len(history) - 19


def test_positions_in_reports_are_those_of_the_view(world: World) -> None:
    """`largest` and `rewrites_from` behind a range name messages that stand there."""
    history = [*conversation(14), *exchange(50, 60_000)]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
        assert view.over_budget
        assert view.largest[0].message == len(view.messages) - 1
        history[-1] = answers(result("toolu_50", output(51, 60_000)))
        view = session.view(history)
        assert view.rewrites_from == view.stable_prefix == len(view.messages) - 1


# Histories that change


def back_and_forth(world: World, history: History, edited: History) -> tuple[View, View]:
    """View a history, another, and the first again; hold all to be legal and rebuilt."""
    with world.open(policy=SIZE) as session:
        first = session.view(history)
        sent = [reloaded(first.messages)]
        view = session.view(edited, policy=Policy())
        if view.messages != first.messages:  # the same request is recorded once
            sent.append(reloaded(view.messages))
        back = session.view(history)
        assert back.messages == first.messages
        assert back.decisions == ()
        if len(sent) > 1:
            sent.append(reloaded(back.messages))
    assert_legal(view.messages)
    assert_rebuilt(world, sent)
    return first, view


def test_a_rewind_into_the_range(world: World) -> None:
    """The range is given up: what is left of it stands as it was, until the history is back."""
    history = conversation(14)
    edited = history[:13]
    _, view = back_and_forth(world, history, edited)
    assert view.messages is edited


def test_a_rewind_to_the_end_of_the_range(world: World) -> None:
    """What it hid last is unread again, so that all of it shows."""
    history = conversation(14)
    edited = history[:23]
    _, view = back_and_forth(world, history, edited)
    assert view.messages is edited


def test_a_rewind_behind_the_range(world: World) -> None:
    """It holds: the view is a prefix of the one before."""
    history = conversation(14)
    first, view = back_and_forth(world, history, history[:25])
    assert view.messages == first.messages[:6]


@pytest.mark.parametrize("position", [3, 10, 22])
def test_an_edit_inside_the_range(world: World, position: int) -> None:
    """One changed message, and the range says no longer what was there."""
    history = conversation(14)
    edited = reloaded(history)
    block = edited[position]["content"][0]
    block |= {"content": "Other."} if "content" in block else {"input": {"command": "other"}}
    _, view = back_and_forth(world, history, edited)
    assert view.messages is edited


@pytest.mark.parametrize("inside", [True, False])
def test_an_edit_outside_the_range(world: World, inside: bool) -> None:  # noqa: FBT001
    """A message put before it or replaced there moves it; it stays hidden in the same bytes."""
    history = conversation(14)
    edited = [human("Monday."), *history[inside:]]
    first, view = back_and_forth(world, history, edited)
    assert view.messages == [edited[0], *first.messages[inside:]]


def test_harmless_changes_inside_the_range(world: World) -> None:
    """Marks that move, strings for blocks and nulls leave it as it is."""
    history = conversation(14)
    edited = reloaded(history)
    edited[4]["content"][0]["content"] = [
        {"type": "text", "text": edited[4]["content"][0]["content"]}
    ]
    edited[6]["content"][0]["is_error"] = None
    first, view = back_and_forth(world, history, edited)
    assert view.messages == first.messages


def test_a_history_shortened_in_front_of_the_range(world: World) -> None:
    """The range still stands there, and hides what it hid."""
    history = conversation(14)
    edited = [human("Summary: all is well."), *reloaded(history[3:])]
    first, view = back_and_forth(world, history, edited)
    assert view.messages == [edited[0], *first.messages[3:]]


def test_a_history_shortened_into_the_range(world: World) -> None:
    """The range is given up."""
    history = conversation(14)
    edited = [history[0], *reloaded(history[9:])]
    _, view = back_and_forth(world, history, edited)
    assert view.messages is edited


def test_a_rewind_that_makes_an_older_message_current(world: World) -> None:
    """The range that holds it among the older ones gives way, and it stands in its own message."""
    history = [*with_requests(12, 3), *exchange(12), *exchange(13)]
    history += [human("Something else."), *exchange(14)]
    edited = history[:-3]
    with world.open(policy=SIZE) as session:
        first = session.view(history)
        assert "Request 3" in title(first.messages[3])
        view = session.view(edited, policy=Policy())
        assert view.messages is edited
        again = session.view(edited)
        assert again.messages[3]["content"][1:] == history[9]["content"]
        assert session.view(history).messages[-3:] == history[-3:]
    assert all(request.whole for request in world.requests())


def test_the_same_rewind_in_a_new_process(world: World) -> None:
    """A process that meets the shorter history first makes the same of it."""
    history = [*with_requests(14, 3), human("Something else."), *exchange(14)]
    with world.open(policy=SIZE) as session:
        session.view(history)
    edited = reloaded(history[:-3])
    with world.open(policy=Policy()) as session:
        assert session.view(edited).messages is edited
    assert all(request.whole for request in world.requests())


def test_a_request_that_is_said_again(world: World) -> None:
    """Equal texts: the newest is the request, in its own message, and a range keeps the other."""
    history = conversation(14)
    history[7:7] = [human("Continue.")]
    history += [says("Done."), human("Continue."), *exchange(50)]
    with world.open(policy=SIZE) as session:
        view = session.view(history)
    assert human("Continue.") in view.messages
    assert "[user message 2]\nContinue." in title(view.messages[3])


def test_the_host_names_the_request(world: World) -> None:
    """A message that `human` names is not archived away from view."""
    history = with_requests(14, 3)
    history += [says("Done."), human("<note>Host speaks.</note>"), *exchange(50)]
    with world.open(policy=SIZE) as session:
        view = session.view(history, human=9)
    assert any(history[9]["content"][0] in message["content"] for message in view.messages)


def test_the_host_names_a_request_far_back(world: World) -> None:
    """The archive goes around it or takes it along: the view fits all the same."""
    history = [*with_requests(30, 3), says("Done."), human("<note>Host speaks.</note>")]
    history += exchange(50)
    with world.open(policy=SIZE) as session:
        view = session.view(history, human=9)
    assert any(history[9]["content"][0] in message["content"] for message in view.messages)
    assert not view.over_budget


# The disk


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def until_changed(session: Compactor, history: History) -> View:
    """Ask again until the disk was tried anew."""
    for _ in range(34):
        view = session.view(history)
        if view.changed and view.degraded is None:
            return view
    pytest.fail("nothing was archived after the disk had recovered")


@pytest.mark.parametrize("name", ["write_all", "sync_data"])
def test_a_refused_disk_hides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The middle stays while it is not stored; afterwards it goes, and reads back."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        with monkeypatch.context() as patch:
            patch.setattr(files, name, no_space)
            for _ in range(3):
                view = session.view(history)
                assert view.messages is history
                assert view.decisions == ()
                assert view.degraded
                assert view.stats.archived_messages == 0
        view = until_changed(session, history)
        assert_gave_way(history, view)
    with world.transcript() as transcript:
        assert transcript.messages() == history
        assert transcript.read(range_of(view).handle) == as_json(history[3:23])
    assert all(request.whole for request in world.requests())


def test_what_would_not_fit_is_hidden_while_the_history_holds_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads back from there, and is stored as soon as the disk allows."""
    history = conversation(20)
    with world.open(policy=SIZE) as session:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", no_space)
            view = session.view(history)
            assert view.degraded
            assert not view.over_budget
            start, end = assert_gave_way(history, view)
            name = range_of(view).handle
            assert session.read(name) == as_json(history[start:end])
        again = until_changed(session, history)
        assert again.messages == view.messages
    with world.transcript() as transcript:
        assert transcript.read(name) == as_json(history[start:end])
    assert world.requests()[-1].whole


def test_a_vault_that_vanished_is_written_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range's messages are stored again before the next set counts."""
    del monkeypatch
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        session.view(history)
        for path in world.session_folder.glob("*.lane"):
            path.unlink()
        for number in range(20, 40):
            history += exchange(number)
            view = session.view(history)
        assert view.degraded is None
        start, end = 3, 3 + view.stats.archived_messages
        assert session.read(session.handles()[-1]) == as_json(history[start:end])
    with world.transcript() as transcript:
        assert transcript.messages() == history
        assert transcript.read(transcript.handles()[-1]) == as_json(history[start:end])


def test_the_history_makes_good_what_the_vault_lost(world: World) -> None:
    """A damaged lane: the session still reads the range, from the history at hand."""
    history = conversation(14)
    with world.open(policy=SIZE) as session:
        name = range_of(session.view(history)).handle
        session.flush()
        for path in world.session_folder.glob("*.lane"):
            data = bytearray(path.read_bytes())
            data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
            path.write_bytes(data)
        assert session.read(name) == as_json(history[3:23])


# Size and count together

CROWDED = Policy(
    window=10_000, target=0.5, archive=ArchivePolicy(max_messages=24, keep_head=3, keep_tail=11)
)


def test_size_and_count_make_one_set(world: World) -> None:
    """Too large and too long at once: decided at once, and not again on the same history."""
    history = conversation(14)
    with world.open(policy=CROWDED) as session:
        view = session.view(history)
        assert session.view(history).decisions == ()
    assert len(view.messages) <= 24


def test_the_count_holds_where_compaction_by_size_does_not_pay(world: World) -> None:
    """Above the trigger, with nothing to win: the number of messages is bounded all the same."""
    history = [human("word " * 4_000)]
    for number in range(15):
        history += exchange(number, 60)
    with world.open(policy=CROWDED.but(trigger=0.6, min_gain=0.2)) as session:
        assert len(session.view(history).messages) <= 24
