"""Each setting has an effect on a view."""

import dataclasses
from typing import Any

import pytest
from histories import (
    SMALL,
    History,
    World,
    answers,
    asks,
    call,
    conversation,
    exchange,
    hidden,
    human,
    is_masked,
    is_preview,
    output,
    result,
    result_blocks,
    text_of,
)

from compactor import MaskPolicy, PersistPolicy, Policy, View
from compactor.index import Index
from compactor.wire import wire_format


def shown(world: World, history: History, policy: Policy, name: str) -> View:
    with world.open(name, policy=policy) as session:
        return session.view(history)


def batch(*sizes: int, tool: str = "Bash") -> History:
    names = [f"toolu_{i}" for i in range(len(sizes))]
    made = [
        result(n, output(i, size)) for i, (n, size) in enumerate(zip(names, sizes, strict=True))
    ]
    return [human("Go."), asks(*(call(name, tool) for name in names)), answers(*made)]


def mixed() -> History:
    """Return old results, among them short, long and of another tool, and a new batch."""
    history = conversation(10)
    history[2]["content"][0]["content"] = "short one " * 20
    history += exchange(20, 4_000, "Read")
    history += batch(3_000, 2_500, 2_000)[1:]
    return history


WHOLE = {
    "window": 200_000,
    "trigger": 0.99,
    "target": 0.6,
    "unanchored": 0.0,
    "min_gain": 0.9,
    "stages": (),
}
PERSIST = {
    "batch_chars": 5_000,
    "item_chars": 2_200,
    "always_chars": 2_600,
    "preview_chars": 100,
    "tail_chars": 50,
    "tools": {"Bash": 100},
}
MASK = {
    "keep_recent": 9,
    "keep_least": 5,
    "keep_share": 1.0,
    "min_chars": 1_600,
    "scent_chars": 0,
}
SETTINGS: dict[str, dict[str, Any]] = {"whole": WHOLE, "persist": PERSIST, "mask": MASK}
# What other tests show the effect of, since it takes more than one view of one history.
ELSEWHERE = {
    "whole": {
        *("context_chars", "max_bytes", "max_images", "cold_trigger", "cache_ttl_s"),
        *("breaker_turns", "not_human", "request_block_chars", "on_storage_error"),
        *("check_history", "persist", "mask", "archive", "summary", "manual_tool", "gate"),
        "bound_thinking",
    },
    "persist": set[str](),
    "mask": {"media", "only", "never", "inputs"},
}
# The settings that the one above needs to show.
BESIDE: dict[str, Policy] = {
    "unanchored": Policy(window=15_000, unanchored=0.3),
    "trigger": Policy(window=13_000),
    "min_gain": SMALL,
    "preview_chars": Policy(persist=PersistPolicy(always_chars=2_600)),
    "tail_chars": Policy(persist=PersistPolicy(always_chars=2_600)),
    "item_chars": Policy(persist=PersistPolicy(batch_chars=5_000)),
    "batch_chars": Policy(persist=PersistPolicy(item_chars=100)),
    "keep_recent": SMALL.but(mask=MaskPolicy(keep_share=1.0)),
    "keep_least": SMALL.but(mask=MaskPolicy(keep_share=0.0)),
}


def test_every_setting_is_listed_here() -> None:
    """A new setting needs a test of its effect."""
    for part, kind in (("whole", Policy), ("persist", PersistPolicy), ("mask", MaskPolicy)):
        names = {field.name for field in dataclasses.fields(kind)}
        assert names == {*SETTINGS[part]} | ELSEWHERE[part], part


@pytest.mark.parametrize("part", ["whole", "persist", "mask"])
def test_every_setting_changes_a_view(world: World, part: str) -> None:
    """Each option, changed alone, changes what is sent of one and the same history."""
    history = mixed()
    without = []
    for name, value in SETTINGS[part].items():
        base = BESIDE.get(name, SMALL)
        changes: dict[str, Any] = {name: value}
        if part != "whole":
            changes = {part: dataclasses.replace(getattr(base, part), **changes)}
        before = shown(world, history, base, f"{name.replace('_', '-')}-before")
        after = shown(world, history, base.but(**changes), f"{name.replace('_', '-')}-after")
        if before.messages == after.messages:
            without.append(name)
    assert without == []


def test_not_human_tells_the_host_from_the_human() -> None:
    """A text that matches whole is the host's, and not the current request."""
    index = Index(wire_format("anthropic"), r"\[host\].*")
    index.sync(
        [human("Do it."), human("[host] tick"), human("<system-reminder>x</system-reminder>")]
    )
    assert index.request == 2
    index.sync([human("Do it."), human("[host] tick")])
    assert index.request == 0


def test_the_transcript_rebuilds_with_the_same_not_human(world: World) -> None:
    """A setting of the session changes nothing in what an auditor rebuilds."""
    policy = SMALL.but(not_human=r"Fix.*")
    with world.open(policy=policy) as session:
        sent = session.view(conversation(14)).messages
    [request] = world.requests()
    assert request.whole
    assert request.messages == sent


def test_limits_by_tool(world: World) -> None:
    """A tool has a limit of its own, or none; file readers have a large one."""
    policy = Policy(
        persist=PersistPolicy(tools={"Log": 1_000, "Keep": None}, preview_chars=100, tail_chars=0)
    )
    for tool, size, expected in [
        ("Log", 1_001, True),
        ("Log", 1_000, False),
        ("Keep", 300_000, False),
        ("Bash", 30_001, True),
        ("Bash", 30_000, False),
    ]:
        view = shown(world, batch(size, tool=tool), policy, f"{tool.lower()}{size}")
        assert [is_preview(block) for block in result_blocks(view.messages)] == [expected], tool
    view = shown(world, batch(99_000, tool="Read"), Policy(), "read")
    assert not view.changed


def test_a_tool_that_is_never_persisted_stays_in_a_large_batch(world: World) -> None:
    """`None` holds for the batch rule too."""
    policy = Policy(persist=PersistPolicy(batch_chars=10_000, item_chars=10, tools={"Keep": None}))
    view = shown(world, batch(60_000, tool="Keep"), policy, "one")
    assert not view.changed


def test_stages_can_be_switched_off_one_by_one(world: World) -> None:
    """Without persist no preview, without mask no line."""
    history = [*conversation(12), *exchange(90, 40_000)]
    policy = Policy(window=24_000)
    view = shown(world, history, policy.but(stages=("mask",)), "mask")
    assert {is_masked(block) for block in hidden(view.messages)} == {True}
    view = shown(world, history, policy.but(stages=("persist",)), "persist")
    assert [is_preview(block) for block in hidden(view.messages)] == [True]


def test_a_policy_can_be_given_for_one_call(world: World) -> None:
    """It holds for that call only."""
    history = conversation(14)
    with world.open() as session:
        assert not session.view(history, policy=Policy(window=200_000)).changed
        assert session.view(history).changed


def test_scent_stays_in_a_mask(world: World) -> None:
    """The telling lines of a hidden result stand in its note, up to the limit."""
    history = conversation(14)
    history[2]["content"][0]["content"] += "\nerror: the password is wrong\nexit code 3"
    for scent, there in ((150, True), (0, False)):
        policy = SMALL.but(mask=MaskPolicy(scent_chars=scent))
        view = shown(world, history, policy, f"scent{scent}")
        assert ("exit code 3" in text_of(result_blocks(view.messages)[0])) == there
