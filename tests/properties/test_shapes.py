"""Generated histories of every shape that clients send, with ranges that come and go."""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from compactor import Policy
from tests.properties.hosts import GENERATED
from tests.properties.shapes import POLICIES, Host, Turn, turns

if TYPE_CHECKING:
    from collections.abc import Callable

steps = st.one_of(
    *[st.tuples(st.just("append"), st.lists(turns, min_size=2, max_size=6))] * 4,
    st.tuples(st.just("rewind"), st.integers(0, 12)),
    st.tuples(st.just("edit"), st.integers(0, 40)),
    st.tuples(st.just("harmless"), st.integers(0, 40)),
    st.tuples(st.just("front"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["reload", "mark", "reopen", "crash", "restart", "read"]), st.none()),
)


def step(host: Host, name: str, value: Any) -> None:
    """Do to the history what a step says."""
    simple: dict[str, Callable[[], object]] = {
        "append": lambda: host.extend(value),
        "rewind": lambda: host.rewind(value),
        "edit": lambda: host.edit(value),
        "harmless": lambda: host.harmless(value),
        "front": lambda: host.front(value),
        "reload": host.reload,
        "mark": host.mark,
    }
    simple.get(name, lambda: None)()


def play(watched: Any, plan: list[tuple[str, Any]]) -> None:
    """Play a conversation: a request after each step, held to all promises by `watched`."""
    host = Host()
    for name, value in plan:
        note(f"{name}: {value}")
        step(host, name, value)
        if name in {"reopen", "crash"}:
            getattr(watched, name)()
        view = watched.view(host.history)
        if name == "restart":
            watched.restarted(host.history, view)
        elif name == "read":
            watched.reads()
        elif name == "append":
            watched.again(host.history, view)
    event(f"{min(len(watched.ranges), 4)} ranges or more, {min(watched.sets, 4)} sets or more")
    watched.finish(host.history)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.timeout(120)
@settings(GENERATED, max_examples=20)
@given(
    st.sampled_from(POLICIES),
    st.lists(turns, min_size=6, max_size=14),
    st.lists(steps, min_size=3, max_size=9),
)
def test_every_shape_keeps_the_promises(
    watch: Any, policy: Policy, first: list[Turn], plan: list[tuple[str, Any]]
) -> None:
    """Ranges by size and by count, through rewinds, harmless edits and restarts."""
    with watch.somewhere(policy) as watched:
        play(watched, [("append", first), *plan])
