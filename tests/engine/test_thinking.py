"""Thinking blocks of models that bind them to everything that was sent before."""

import copy
import hashlib
import json
from typing import Any

import pytest
from histories import History, World, answers, asks, assert_legal, call, human, output, result

from compactor import Compactor, Policy

BOUND, FREE = "claude-opus-5-5", "claude-opus-4-5"
POLICIES = {
    "masks": Policy(window=10_000, stages=("mask",)),
    "summaries": Policy(window=10_000, stages=("summarize",)),
    "all": Policy(window=10_000),
}


def bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key != "cache_control"}
    return [bare(item) for item in value] if isinstance(value, list) else value


def signature(before: History) -> str:
    """What a provider signs beside the thought: all that it was sent."""
    return hashlib.sha256(json.dumps(bare(before), sort_keys=True).encode()).hexdigest()


def thought(number: int, before: History) -> dict[str, Any]:
    return {
        "type": "thinking",
        "thinking": f"Thought {number}. " * 9,
        "signature": signature(before),
    }


def void(messages: History) -> list[int]:
    """Return where thinking stands that was made behind something else."""
    return [
        at
        for at, message in enumerate(messages)
        for block in (message["content"] if isinstance(message["content"], list) else [])
        if block["type"] == "thinking" and block["signature"] != signature(messages[:at])
    ]


def thoughts(messages: History) -> int:
    return sum(
        block["type"] == "thinking"
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
    )


def steps(session: Compactor, history: History, count: int, model: str = BOUND) -> None:
    """Go on as a provider's model would; each request must be one that it takes."""
    for _ in range(count):
        number = len(history)
        view = session.view(history, model=model)
        assert_legal(view.messages)
        assert model == FREE or void(view.messages) == []
        said = asks(call(f"t{number}"))
        said["content"].insert(0, thought(number, view.messages))
        history += [said, answers(result(f"t{number}", output(number, 1_500)))]


@pytest.mark.parametrize("name", POLICIES)
def test_no_thinking_stands_behind_an_edited_prefix(world: World, name: str) -> None:
    """What a compaction makes void leaves with it, all else stays; also after a restart."""
    history = [human("Fix the login.")]
    with world.open(policy=POLICIES[name]) as session:
        steps(session, history, 40)
    before = copy.deepcopy(history)
    with world.open(policy=POLICIES[name]) as session:
        steps(session, history, 20)
        assert thoughts(session.view(history, model=BOUND).messages) > 0
        for handle in session.handles():
            assert session.read(handle)
    assert history[: len(before)] == before
    assert all(request.whole for request in world.requests())


def test_other_models_keep_all_thinking(world: World) -> None:
    history = [human("Fix the login.")]
    with world.open(policy=POLICIES["masks"]) as session:
        steps(session, history, 30, FREE)
        view = session.view(history, model=FREE)
        assert view.stats.masked
        assert thoughts(view.messages) == thoughts(history)


def test_the_policy_has_the_last_word_on_binding(world: World) -> None:
    history = [human("Fix the login.")]
    with world.open(policy=POLICIES["masks"].but(bound_thinking=True)) as session:
        steps(session, history, 20, "a-model-of-ones-own")
        assert void(session.view(history, model="a-model-of-ones-own").messages) == []


def test_what_was_only_shortened_on_arrival_makes_nothing_void(world: World) -> None:
    """Nothing that was sent has changed."""
    history = [human("Fix the login.")]
    with world.open(policy=Policy(window=100_000)) as session:
        steps(session, history, 3)
        history[-1]["content"][0]["content"] = output(1, 50_000)
        view = session.view(history, model=BOUND)
        assert view.stats.persisted == 1
        assert thoughts(view.messages) == 3
        assert void(view.messages) == []


def test_an_undo_gives_back_what_is_valid_again_and_drops_what_was_thought_since(
    world: World,
) -> None:
    policy = Policy(window=40_000, trigger=0.2, target=0.03, min_gain=0.01, stages=("mask",))
    history = [human("Fix the login.")]
    with world.open(policy=policy) as session:
        while not session.view(history, model=BOUND).decisions:
            steps(session, history, 1)
        at = len(history)
        steps(session, history, 3)
        assert session.undo() is not None
        view = session.view(history, model=BOUND)
        assert void(view.messages) == []
        assert thoughts(view.messages) == at // 2
        steps(session, history, 5)
    with world.open(policy=policy) as session:
        assert void(session.view(history, model=BOUND).messages) == []
    assert all(request.whole for request in world.requests())


def test_a_message_that_was_nothing_but_thinking_is_not_left_empty(world: World) -> None:
    history = [human("Fix the login.")]
    with world.open(policy=POLICIES["masks"]) as session:
        steps(session, history, 6)
        alone = {"role": "assistant", "content": [thought(99, history)]}
        history += [alone, human("Go on.")]
        steps(session, history, 12)
        view = session.view(history, model=BOUND)
        assert view.stats.masked
        at = history.index(alone)
        assert view.messages[at]["content"] == [{"type": "text", "text": "[thinking left out]"}]


def test_cache_marks_are_recorded_where_they_stand_without_the_thinking(world: World) -> None:
    history = [human("Fix the login.")]
    with world.open(policy=POLICIES["masks"]) as session:
        steps(session, history, 14)
        history[-2]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        steps(session, history, 1)
        view = session.view(history, model=BOUND)
    request = world.requests()[-1]
    found = [
        [at, number]
        for at, message in enumerate(view.messages)
        for number, block in enumerate(message["content"])
        if "cache_control" in block
    ]
    assert request.marks == found
