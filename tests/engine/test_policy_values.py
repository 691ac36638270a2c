"""Policies as values: defaults, presets, changes by name, and what is refused."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from compactor import BadPolicy, MaskPolicy, PersistPolicy, Policy
from compactor.policy import ArchivePolicy, ToolRule

NAMES = [
    *(field.name for field in dataclasses.fields(Policy)),
    *(
        f"{part}__{field.name}"
        for part in ("persist", "mask", "archive")
        for field in dataclasses.fields(getattr(Policy(), part))
    ),
]


@pytest.mark.parametrize("kind", [Policy, PersistPolicy, MaskPolicy, ArchivePolicy, ToolRule])
def test_every_setting_is_explained(kind: type[Any]) -> None:
    """The docstring of its class names it."""
    for field in dataclasses.fields(kind):
        nested = dataclasses.is_dataclass(field.type)
        assert nested or f"`{field.name}`" in str(kind.__doc__), field.name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [object(), [{}]], ids=["object", "list"])
def test_a_value_of_another_type_is_refused(name: str, value: object) -> None:
    """With the whole name of the setting, what it must be, and a hint."""
    with pytest.raises(BadPolicy) as caught:
        Policy().but(**{name: value})
    assert str(caught.value).startswith(f"policy: {name.replace('__', '.')} must ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"target": 0}, "0 < target < trigger is required"),
        ({"target": 0.7}, "0 < target < trigger is required"),
        ({"trigger": 0.5, "target": 0.6}, "0 < target < trigger is required"),
        ({"trigger": 1.1}, "trigger must be a share from 0 to 1"),
        ({"trigger": float("nan")}, "trigger must be a share from 0 to 1"),
        ({"trigger": True}, "trigger must be a share from 0 to 1"),
        ({"unanchored": -0.1}, "unanchored must be a share from 0 to 1"),
        ({"unanchored": 0.7}, "unanchored < trigger is required"),
        ({"cold_trigger": 2}, "cold_trigger must be a share from 0 to 1"),
        ({"cache_ttl_s": -1}, "cache_ttl_s must be a whole number, 0 or more"),
        ({"min_gain": -0.1}, "min_gain must be a share from 0 to 1"),
        ({"min_gain": 1}, "min_gain < 1 is required"),
        ({"breaker_turns": -1}, "breaker_turns must be a whole number, 0 or more"),
        ({"window": 0}, "window must be a whole number, 1 or more"),
        ({"window": -5}, "window must be a whole number, 1 or more"),
        ({"window": 1e5}, "window must be a whole number, 1 or more"),
        ({"window": True}, "window must be a whole number, 1 or more"),
        ({"context_chars": 0}, "context_chars must be a whole number, 1 or more"),
        ({"max_bytes": 0}, "max_bytes must be a whole number, 1 or more"),
        ({"max_images": 0}, "max_images must be a whole number, 1 or more"),
        ({"stages": ("persist", "archives")}, "no stage 'archives'"),
        ({"stages": ("mask", "mask")}, "stages must name each stage once"),
        ({"stages": "mask"}, "stages must be a list of names"),
        ({"stages": (1,)}, "stages must be a list of names"),
        ({"not_human": "("}, "not_human must be a regular expression"),
        ({"not_human": b"x"}, "not_human must be a text"),
        ({"request_block_chars": -1}, "request_block_chars must be a whole number, 0 or more"),
        ({"on_storage_error": "stop"}, "on_storage_error must be one of degrade, raise"),
        ({"check_history": "none"}, "check_history must be one of edges, full"),
        ({"mask": 3}, "mask must be a table of settings"),
        ({"persist__batch_chars": -1}, "persist.batch_chars must be a whole number, 0 or more"),
        ({"persist__item_chars": -1}, "persist.item_chars must be a whole number, 0 or more"),
        ({"persist__always_chars": -1}, "persist.always_chars must be a whole number, 0 or more"),
        ({"persist__preview_chars": -1}, "persist.preview_chars must be a whole number, 0 or more"),
        ({"persist__tail_chars": -1}, "persist.tail_chars must be a whole number, 0 or more"),
        (
            {"persist": {"preview_chars": 0, "tail_chars": 0}},
            "persist.preview_chars + persist.tail_chars must be 1 or more",
        ),
        ({"persist__tools": 5}, "persist.tools must map names of tools to rules"),
        (
            {"persist__tools": {"Bash": -1}},
            "persist.tools.Bash.limit must be a whole number, 1 or more",
        ),
        (
            {"persist__tools": {"Bash": "all"}},
            "persist.tools.Bash.show must be one of head, tail, both",
        ),
        (
            {"persist__tools__Bash": ToolRule(never="no")},  # type: ignore[arg-type]
            "persist.tools.Bash.never must be true or false",
        ),
        ({"persist__tools__Bash": {"limits": 5}}, "no setting persist.tools.Bash.limits"),
        ({"mask__keep_recent": -1}, "mask.keep_recent must be a whole number, 0 or more"),
        ({"mask__keep_least": -1}, "mask.keep_least must be a whole number, 0 or more"),
        ({"mask__keep_share": -0.1}, "mask.keep_share must be a share from 0 to 1"),
        ({"mask__min_chars": -1}, "mask.min_chars must be a whole number, 0 or more"),
        ({"mask__scent_chars": -1}, "mask.scent_chars must be a whole number, 0 or more"),
        ({"mask__media": 1}, "mask.media must be true or false"),
        ({"mask__only": "Bash"}, "mask.only must be a list of names"),
        ({"mask__never": "Bash"}, "mask.never must be a list of names"),
        (
            {"mask__inputs": ["Bash"]},
            "mask.inputs must be a list of pairs, a tool and a key of its input",
        ),
        ({"archive__max_messages": 0}, "archive.max_messages must be a whole number, 1 or more"),
        ({"archive__keep_head": -1}, "archive.keep_head must be a whole number, 0 or more"),
        ({"archive__keep_tail": -1}, "archive.keep_tail must be a whole number, 0 or more"),
        (
            {"archive__max_messages": 49},
            "archive.keep_head + archive.keep_tail must be less than archive.max_messages",
        ),
        (
            {"archive__keep_user_chars": -1},
            "archive.keep_user_chars must be a whole number, 0 or more",
        ),
        ({"archive__keep_user_share": 2}, "archive.keep_user_share must be a share from 0 to 1"),
    ],
    ids=str,
)
def test_contradictions_are_refused(settings: dict[str, Any], rule: str) -> None:
    """Each with its rule and a hint."""
    with pytest.raises(BadPolicy) as caught:
        Policy().but(**settings)
    assert str(caught.value) == f"policy: {rule}"
    assert caught.value.hint


def test_a_hint_names_the_default() -> None:
    """What to put there instead is said where it can be said in a word."""
    with pytest.raises(BadPolicy) as caught:
        MaskPolicy(keep_recent=-1)
    assert caught.value.hint == "The default is 5."


def test_a_policy_is_a_value() -> None:
    """Equal settings are equal, `but` leaves the original alone, and nothing can be assigned."""
    assert Policy() == Policy()
    assert hash(Policy()) == hash(Policy())
    changed = Policy().but(trigger=0.9)
    assert (Policy().trigger, changed.trigger) == (0.7, 0.9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.trigger = 0.1  # type: ignore[misc]
    with pytest.raises(BadPolicy):
        Policy().but(trigger=2)
    with pytest.raises(TypeError):
        Policy().persist.tools["Bash"] = 1  # type: ignore[index]


def test_a_policy_can_be_copied() -> None:
    """By `copy` and by `pickle`, for a process of its own."""
    policy = Policy.frugal(persist__tools={"Log": "tail"}, mask__never=["Read"])
    assert copy.deepcopy(policy) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def values(policy: Policy) -> tuple[Any, ...]:
    persist, mask = policy.persist, policy.mask
    return (
        *(policy.trigger, policy.target, mask.keep_recent),
        *(persist.always_chars, persist.limit("Read")),
    )


def test_presets_differ_where_it_was_measured() -> None:
    """The bill against what stays in view; file readers have 100,000 in each."""
    assert values(Policy()) == (0.7, 0.1, 5, 30_000, 100_000)
    assert values(Policy.frugal()) == (0.5, 0.1, 3, 10_000, 100_000)
    assert values(Policy.roomy()) == (0.9, 0.3, 10, 10_000, 100_000)
    for preset in (Policy.frugal(), Policy.roomy()):
        same = {"trigger": 0.7, "target": 0.1, "mask__keep_recent": 5}
        assert preset.but(persist__always_chars=30_000, **same) == Policy()


def test_the_other_defaults() -> None:
    """As measured, or as the teaching pipeline has them."""
    policy = Policy()
    assert policy.stages == ("persist", "mask", "archive", "summarize")
    assert (policy.unanchored, policy.cold_trigger, policy.cache_ttl_s) == (0.05, 0.5, 300)
    assert (policy.request_block_chars, policy.breaker_turns) == (100_000, 3)
    assert (policy.on_storage_error, policy.check_history) == ("degrade", "edges")
    assert (policy.manual_tool, policy.gate) == (False, "checkpoint")
    assert policy.persist.preview("Bash") == (2_000, 500)
    assert (policy.persist.batch_chars, policy.persist.item_chars) == (200_000, 30_000)
    assert policy.mask == MaskPolicy(
        keep_recent=5, keep_least=3, keep_share=0.2, min_chars=120, scent_chars=150, media=True
    )
    assert policy.archive == ArchivePolicy(
        max_messages=None, keep_head=3, keep_tail=46, keep_user_chars=80_000, keep_user_share=0.2
    )
    summary = policy.summary
    assert (summary.keep_exchanges, summary.keep_share) == (3, 0.2)
    assert (summary.state_chars, summary.state_share, summary.input_chars) == (8_000, 0.1, None)
    assert (summary.rebuild_every, summary.failures) == (5, 3)


def test_the_course_has_the_teaching_thresholds() -> None:
    """Its stages in its order, its sizes and counts, and nothing that it does not have."""
    course = Policy.course()
    assert course.stages == ("persist", "archive", "mask", "summarize")
    assert course.summary.input_chars == 80_000
    persist, archive, mask = course.persist, course.archive, course.mask
    assert (persist.batch_chars, persist.item_chars) == (200_000, 30_000)
    assert persist.preview("Bash") == persist.preview("Read") == (2_000, 0)
    assert persist.limit("Bash") == persist.limit("Read") == persist.batch_chars
    assert (archive.max_messages, archive.keep_head, archive.keep_tail) == (50, 3, 46)
    assert (mask.keep_recent, mask.min_chars, mask.scent_chars) == (3, 120, 0)


@pytest.mark.parametrize("preset", [Policy.frugal, Policy.roomy, Policy.course])
def test_presets_take_overrides(preset: Any) -> None:
    """Settings of a stage too, and those not named stay the preset's."""
    made = preset(window=50_000, mask={"min_chars": 7})
    assert made == preset().but(window=50_000, mask__min_chars=7)
    assert (made.window, made.mask.min_chars) == (50_000, 7)
    assert made.mask.keep_recent == preset().mask.keep_recent


def test_settings_of_a_stage_change_by_name() -> None:
    """As a mapping, as `stage__setting`, or as a whole; together they are checked once."""
    policy = Policy.frugal()
    changed = policy.but(mask={"keep_recent": 9}, mask__min_chars=1)
    assert changed.mask == MaskPolicy(keep_recent=9, min_chars=1)
    assert changed.persist == policy.persist
    assert policy.but(mask=MaskPolicy(min_chars=1)).mask == MaskPolicy(min_chars=1)
    assert policy.but(archive__max_messages=40, archive__keep_tail=30).archive.keep_tail == 30
    with pytest.raises(BadPolicy, match="mask is given twice"):
        policy.but(mask=MaskPolicy(), mask__min_chars=1)


def test_rules_by_tool_change_one_by_one() -> None:
    """`but` leaves the other tools' rules; a new `PersistPolicy` has only its own."""
    persist = Policy().but(persist__tools={"mcp__log__tail": 5}).persist
    assert (persist.limit("mcp__log__tail"), persist.limit("Read")) == (5, 100_000)
    assert Policy().but(persist__tools__mcp__log__tail=5).persist == persist
    assert PersistPolicy(tools={"Log": 5}).limit("Read") == 30_000


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("triger", "trigger"),
        ("keep_recent", "mask.keep_recent"),
        ("mask__keep_recnt", "mask.keep_recent"),
        ("archive__max_message", "archive.max_messages"),
    ],
)
def test_an_unknown_name_is_refused(name: str, nearest: str) -> None:
    """The hint has the nearest names first."""
    with pytest.raises(BadPolicy, match=f"no setting {name.replace('__', '.')}") as caught:
        Policy().but(**{name: 1})
    assert str(caught.value.hint).startswith(f"The nearest: {nearest}")


def test_a_name_like_no_other_gets_the_list() -> None:
    """Where nothing is near, the hint has all names of that place."""
    with pytest.raises(BadPolicy, match=r"no setting archive\.q") as caught:
        Policy().but(archive__q=1)
    assert str(caught.value.hint).startswith("There are max_messages, keep_head, ")


@pytest.mark.parametrize(
    ("short", "rule", "preview"),
    [
        (5_000, ToolRule(limit=5_000), (100, 20)),
        (None, ToolRule(never=True), (100, 20)),
        ("never", ToolRule(never=True), (100, 20)),
        ("head", ToolRule(limit=900, show="head"), (120, 0)),
        ("tail", ToolRule(limit=900, show="tail"), (0, 120)),
        ("both", ToolRule(limit=900), (100, 20)),
        ({"limit": 7, "show": "tail"}, ToolRule(limit=7, show="tail"), (0, 120)),
        (ToolRule(limit=8), ToolRule(limit=8), (100, 20)),
    ],
    ids=str,
)
def test_rules_by_tool_in_short(short: Any, rule: ToolRule, preview: tuple[int, int]) -> None:
    """A limit, a part to show, or never; what a rule leaves open holds for all tools."""
    persist = PersistPolicy(
        always_chars=900, preview_chars=100, tail_chars=20, tools={"Log": short}
    )
    assert persist.rule("Log") == rule
    assert persist.limit("Log") == (None if rule.never else rule.limit)
    assert persist.preview("Log") == preview
    for other in ("Bash", None):
        assert persist.rule(other) == ToolRule(limit=900)
        assert persist.preview(other) == (100, 20)


@pytest.mark.parametrize(
    ("mask", "may"),
    [
        (MaskPolicy(), {"Bash", "Read", None}),
        (MaskPolicy(never=frozenset({"Read"})), {"Bash", None}),
        (MaskPolicy(only=frozenset({"Read"})), {"Read"}),
        (MaskPolicy(only=frozenset()), set()),
        (MaskPolicy(only=frozenset({"Bash", "Read"}), never=frozenset({"Read"})), {"Bash"}),
    ],
    ids=["all", "never", "only", "none", "both"],
)
def test_tools_that_may_be_masked(mask: MaskPolicy, may: set[str | None]) -> None:
    """An allow list names all that may, a deny list has the last word."""
    assert {tool for tool in ("Bash", "Read", None) if mask.may_mask(tool)} == may


def test_lists_become_sets() -> None:
    """What a file gives as lists is frozen."""
    mask = Policy().but(mask={"only": ["A"], "never": ("B",), "inputs": [["Write", "text"]]}).mask
    assert (mask.only, mask.never) == (frozenset({"A"}), frozenset({"B"}))
    assert mask.inputs == {("Write", "text")}
    assert Policy().but(stages=["mask"]).stages == ("mask",)
