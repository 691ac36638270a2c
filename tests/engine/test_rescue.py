"""The one rescue after the provider refused a request for its length."""

import pytest
from histories import (
    World,
    answers,
    asks,
    assert_legal,
    call,
    conversation,
    exchange,
    human,
    image,
    output,
    result,
    says,
)
from test_thinking import steps, thoughts

from compactor import CannotFit, Policy
from compactor.refusals import Refusal, RefusalKind

OVERFLOW = Refusal(RefusalKind.OVERFLOW, measured=210_000, limit=200_000)


def test_an_overflow_is_compacted_at_once_to_the_target(world: World) -> None:
    """CHECKLIST 86, 87: what the refusal measured counts, not the estimate; pairs stay whole."""
    history = conversation(30)
    with world.open(policy=Policy(window=200_000)) as session:
        assert not session.view(history).decisions
        view = session.rescue(OVERFLOW, history)
        assert view is not None
        assert_legal(view.messages)
        assert view.stats.view_tokens < 200_000
        assert human("Fix the login.") in view.messages
        assert history == conversation(30)
    with world.transcript() as transcript:
        assert [one.reason for one in transcript.sets] == ["rescue"]
        assert all(request.whole for request in transcript.requests())


def test_a_refusal_without_figures_is_taken_for_a_full_window(world: World) -> None:
    history = conversation(30)
    with world.open(policy=Policy(window=200_000)) as session:
        session.view(history)
        view = session.rescue(Refusal(RefusalKind.OVERFLOW), history)
        assert view is not None
        assert view.decisions


def test_the_limit_that_a_refusal_names_holds_from_then_on(world: World) -> None:
    """For that model: the window was believed to be larger."""
    history = conversation(10)
    with world.open() as session:
        policy = Policy(window=200_000)
        session.view(history, policy=policy, model="m")
        small = Refusal(RefusalKind.OVERFLOW, measured=9_000, limit=8_000)
        view = session.rescue(small, history, policy=policy, model="m")
        assert view is not None
        assert view.stats.window == 8_000
        history += [says("Done."), human("More.")]
        assert session.view(history, policy=policy, model="m").stats.window == 8_000
        assert session.view(history, policy=policy, model="other").stats.window == 200_000


def test_one_rescue_only_until_a_request_has_succeeded(world: World) -> None:
    """C23, CHECKLIST 88, 115: a success is a usage report, or the model's next message."""
    history = conversation(30)
    with world.open(policy=Policy(window=200_000)) as session:
        session.view(history)
        assert session.rescue(OVERFLOW, history) is not None
        assert session.rescue(OVERFLOW, history) is None
        session.view(history)
        assert session.rescue(OVERFLOW, history) is None
        session.observe({"input_tokens": 20_000})
        history += exchange(77)
        assert session.rescue(OVERFLOW, history) is not None
        session.view(history)
        history += exchange(78)
        session.view(history)
        assert session.rescue(OVERFLOW, history) is not None


def test_what_cannot_be_small_enough_names_what_takes_the_room(world: World) -> None:
    """C16, C26: a typed error, at once, with sizes and no content."""
    history = [human("secret " * 40_000)]
    with world.open(policy=Policy(window=200_000)) as session:
        session.view(history)
        with pytest.raises(CannotFit) as caught:
            session.rescue(Refusal(RefusalKind.OVERFLOW, 90_000, 50_000), history)
    assert caught.value.hint is not None
    assert "message 0 (text): " in caught.value.hint
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_too_many_bytes_are_met_by_images_and_large_blocks_first(world: World) -> None:
    """Texts and calls stay; half of the bytes go."""
    history = [human("Look.")]
    for number in range(12):
        history += [
            asks(call(f"i{number}")),
            answers(result(f"i{number}", [{"type": "text", "text": "seen"}, image(200_000)])),
        ]
    with world.open(policy=Policy(window=200_000)) as session:
        before = session.view(history)
        view = session.rescue(Refusal(RefusalKind.TOO_MANY_BYTES), history)
        assert view is not None
        assert len(str(view.messages)) < 0.55 * len(str(before.messages))
        assert view.messages[-1] == history[-1]


def test_an_answer_that_is_too_long_is_asked_to_be_shorter(world: World) -> None:
    """Nothing is compacted for that."""
    history = conversation(5)
    with world.open(policy=Policy(window=200_000)) as session:
        session.view(history)
        refusal = Refusal(RefusalKind.MAX_TOKENS, 188_240, 200_000, 11_760)
        view = session.rescue(refusal, history)
        assert view is not None
        assert view.request_hints == {"max_tokens": 11_760}
        assert view.messages is history


def test_bound_thinking_leaves_the_view_and_stays_out(world: World) -> None:
    history = [human("Fix the login.")]
    with world.open(policy=Policy(window=100_000)) as session:
        steps(session, history, 4)
        view = session.rescue(Refusal(RefusalKind.BOUND_THINKING), history)
        assert view is not None
        assert thoughts(view.messages) == 0
        assert thoughts(history) == 4
        history += exchange(50)
        later = session.view(history)
        assert later.messages[: len(view.messages)] == view.messages


def test_other_refusals_are_none_of_ours(world: World) -> None:
    """The error itself goes up (recover), or nothing is done (rescue)."""

    class RateLimit(Exception):
        status_code = 429
        body = {"error": {"type": "rate_limit_error", "message": "slow down"}}  # noqa: RUF012

    history = conversation(5)
    with world.open() as session:
        session.view(history)
        assert session.rescue(Refusal(RefusalKind.NONE), history) is None
        error = RateLimit()
        with pytest.raises(RateLimit) as caught:
            session.recover(error, history)
        assert caught.value is error


def test_no_summarizer_is_asked_in_a_rescue(world: World) -> None:
    class Never:
        name = "never"

        def summarize(self, _: object) -> object:
            raise AssertionError

    history = conversation(30)
    with world.open(policy=Policy(window=200_000), summarizer=Never()) as session:
        session.view(history)
        view = session.rescue(OVERFLOW, history)
        assert view is not None
        assert view.stats.summarizer is None


def test_unread_results_keep_a_preview_in_a_rescue(world: World) -> None:
    """C28: the newest batch alone is too large."""
    history = [*conversation(3), *exchange(9, 90_000)]
    policy = Policy(window=200_000, stages=("mask",))
    with world.open(policy=policy) as session:
        session.view(history)
        view = session.rescue(Refusal(RefusalKind.OVERFLOW, 40_000, 20_000), history)
        assert view is not None
        shown = view.messages[-1]["content"][0]["content"]
        assert output(9, 300) in shown


def test_render_shows_what_is_in_force_and_decides_nothing(world: World) -> None:
    history = conversation(14)
    with world.open() as session:
        view = session.view(history)
        longer = [*history, *exchange(60, 60_000)]
        assert session.render(longer) == [*view.messages, *longer[len(history) :]]
        assert session.view(history).messages == view.messages
    assert len(world.requests()) == 1
