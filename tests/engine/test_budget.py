"""Budgets: the room for messages, the anchor, other units and other limits."""

from typing import Any

import pytest
from histories import SMALL, World, conversation, exchange, human, image

from compactor import BadPolicy, Policy
from compactor.tokens import Anchor, Budget, Calibration, Excess, Limits, budget


def test_room_for_messages_is_what_the_rest_leaves() -> None:
    """Window less margin, answer, system prompt and tools."""
    assert budget(10_000, 1_000, 500).messages == 8_300
    assert budget(None, 0, 0).window == 200_000


@pytest.mark.parametrize("output", [9_800, 10_000, 50_000])
def test_an_answer_that_takes_the_window_is_refused(output: int) -> None:
    """`max_tokens` at or above the window is a typed error with a hint."""
    with pytest.raises(BadPolicy) as caught:
        budget(10_000, output, 0)
    assert caught.value.hint
    assert isinstance(caught.value, ValueError)


def test_an_anchor_replaces_the_estimate_of_what_was_sent() -> None:
    """What the messages measured, plus the estimate of what has come since."""
    made = Budget(10_000, 0, 200, Anchor(measured=5_000, estimated=4_000))
    assert made.size(4_000) == 5_000
    assert made.size(4_300) == 5_300
    assert Budget(10_000, 0, 200).size(4_300) == 4_300


def test_a_size_is_never_negative() -> None:
    """However far an anchor is off."""
    assert Budget(10_000, 0, 9_000, Anchor(measured=10, estimated=4_000)).size(100) == 0


def test_a_finer_tokenizer_counts_more() -> None:
    """What is estimated is scaled, also the overhead and what has come since; usage is not."""
    made = Budget(10_000, 0, 200, scale=1.5)
    assert made.size(1_000) == 1_500
    assert made.messages == 9_500
    known = Budget(10_000, 0, 200, Anchor(measured=5_000, estimated=4_000), scale=1.5)
    assert known.size(4_300) == 5_450
    assert budget(10_000, 0, 200, None, 1.5) == made


def test_characters_are_counted_as_they_are() -> None:
    """A budget of characters has no margin, no answer and no scale."""
    made = Budget.of_chars(10_000, overhead=400)
    assert made.messages == 9_600
    assert made.size(9_700) == 9_700
    assert made.unit == "chars"


def test_an_amount_is_in_the_unit_of_the_budget() -> None:
    """Of a part's tokens and characters, a budget picks what it counts."""
    assert Budget.of_chars(10_000).amount(tokens=100, chars=300) == 300
    assert Budget(10_000, 0, 0).amount(tokens=100, chars=300) == 100
    assert Budget(10_000, 0, 0, scale=1.3).amount(tokens=100, chars=300) == 130


def test_limits_tell_by_how_much_a_request_is_over() -> None:
    """At a limit it fits, one more does not."""
    limits = Limits(max_bytes=1_000, max_images=2)
    assert limits.excess(1_000, 2) == Excess(bytes=0, images=0)
    assert not any(limits.excess(1_000, 2))
    assert limits.excess(1_500, 3) == Excess(bytes=500, images=1)


def test_no_limit_is_never_exceeded() -> None:
    """What is not known does not hold a request back."""
    assert not any(Limits().excess(10**12, 10**6))


def test_a_policy_has_its_own_limits() -> None:
    """They take the place of the provider's, one by one."""
    assert Limits(1_000, 2).but(max_bytes=None, max_images=5) == Limits(1_000, 5)
    assert Limits(1_000, 2).but(max_bytes=0, max_images=None) == Limits(0, 2)


def test_the_budget_error_reaches_the_caller(world: World) -> None:
    """`view` raises it before it takes anything in, and the session goes on."""
    history = conversation(2)
    with world.open() as session:
        with pytest.raises(BadPolicy):
            session.view(history, max_tokens=10_000)
        assert session.view(history, max_tokens=5_000).messages is history
    assert len(world.requests()) == 1


def test_an_anchor_from_the_reply_counts(world: World) -> None:
    """What the provider counted decides, not the estimate."""
    history = conversation(2)
    with world.open() as session:
        session.view(history)
        session.observe({"input_tokens": 5_000, "cache_read_input_tokens": 1_000})
        history += exchange(2)
        view = session.view(history)
    assert 6_000 < view.stats.view_tokens < 7_000


def test_an_anchor_is_void_after_the_prefix_changed(world: World) -> None:
    """Usage stored before a compaction does not size the view after it."""
    history = conversation(4)
    with world.open() as session:
        session.view(history)
        session.observe({"input_tokens": 1_000_000})
        history += exchange(4)
        assert session.view(history).changed
        history += exchange(5)
        assert session.view(history).stats.view_tokens < 10_000


def test_the_trigger_counts_lower_without_an_anchor(world: World) -> None:
    """A size between 0.65 and 0.70 of the room triggers only before real usage is known."""
    history = conversation(10)
    with world.open("known") as session:
        session.view(history)
        session.observe({"input_tokens": 6_600})
        assert not session.view(history).changed
    policy = SMALL.but(unanchored=0.2)
    with world.open("unknown", policy=policy) as session:
        assert session.view(history).changed


@pytest.mark.parametrize("slot", ["system", "tools"])
def test_a_changed_overhead_does_not_shrink_the_messages(world: World, slot: str) -> None:
    """After real usage was seen, a longer system prompt or tool list leaves messages as large."""
    values: dict[str, list[Any]] = {
        "system": ["short", "long " * 3_000],
        "tools": [[{"name": "a"}], [{"name": "a", "description": "long " * 3_000}]],
    }
    small, large = values[slot]
    history = conversation(4)
    with world.open(policy=Policy(window=50_000)) as session:
        first = session.view(history, **{slot: small})
        session.observe({"input_tokens": first.stats.view_tokens + 40})
        second = session.view(history, **{slot: large})
    assert second.stats.view_tokens == pytest.approx(first.stats.view_tokens, rel=0.05)


def test_the_overhead_and_the_answer_take_room(world: World) -> None:
    """A system prompt, tools and `max_tokens` each bring compaction forward."""
    history = conversation(9)
    with world.open("none") as session:
        assert not session.view(history).changed
    more: dict[str, Any] = {
        "system": "word " * 2_500,
        "tools": [{"name": "x", "description": "word " * 2_500}],
        "max_tokens": 4_000,
    }
    for slot, value in more.items():
        with world.open(slot.replace("_", "-")) as session:
            assert session.view(history, **{slot: value}).changed


def test_a_large_image_counts_as_an_image(world: World) -> None:
    """Four megabytes of base64 are not a million tokens."""
    with world.open() as session:
        view = session.view([human("See.", image(4_000_000))])
    assert not view.over_budget
    assert view.stats.view_tokens < 2_000


def test_two_prompts_apart_tell_how_fine_the_tokenizer_is() -> None:
    """What nobody told of, system prompt and tools, stands in both and drops out."""
    known = Calibration().learned(20_000 + 13_000, 10_000).learned(20_000 + 39_000, 30_000)
    assert known.factor == 1.3
    assert known.learned(20_000 + 41_000, 31_000).factor == pytest.approx(1.333, abs=0.01)


def test_prompts_that_are_alike_tell_nothing() -> None:
    known = Calibration().learned(33_000, 10_000)
    assert known.learned(35_000, 11_000).factor == 1.0
    assert known.learned(40_000, 11_999).factor == 1.0


def test_a_factor_has_bounds_and_a_smaller_prompt_is_the_new_measure() -> None:
    known = Calibration().learned(10_000, 10_000)
    assert known.learned(500_000, 30_000).factor == 2.0
    assert known.learned(10_100, 30_000).factor == 0.5
    assert known.learned(5_000, 4_000) == Calibration(1.0, 5_000, 4_000)


def test_a_refusal_alone_counts_where_nothing_is_known() -> None:
    """F46: an overflow corrects the factor."""
    assert Calibration().corrected(30_000, 20_000).factor == 1.5
    assert Calibration(1.2, 1, 1).corrected(30_000, 20_000).factor == 1.2


def test_what_is_saved_is_scaled_by_what_was_counted(world: World) -> None:
    """A finer tokenizer: estimates after a set are right, also after a restart."""
    history = conversation(3)
    with world.open(policy=SMALL.but(window=20_000)) as session:
        for number in range(10, 60):
            view = session.view(history)
            counted = int(1.4 * sum(len(str(m)) / 3 for m in view.messages))
            session.observe({"input_tokens": counted})
            history += exchange(number)
        after = session.view(history)
        real = int(1.4 * sum(len(str(m)) / 3 for m in after.messages))
        assert after.stats.view_tokens == pytest.approx(real, rel=0.12)
    with world.open(policy=SMALL.but(window=20_000)) as session:
        assert session.view(history).stats.view_tokens == after.stats.view_tokens
