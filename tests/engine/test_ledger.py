"""Decisions and the sets in force."""

import json

import pytest
from histories import History, answers, asks, call, conversation, human, result, says
from hypothesis import given
from hypothesis import strategies as st

from compactor import Decision, DecisionSet, Stage
from compactor.decisions import Target, decode_digest, encode_digest
from compactor.index import Index
from compactor.ledger import empty, extend, locate, resolve, target
from compactor.policy import INJECTED
from compactor.wire import wire_format

DIGESTS = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(0, 10**6)
DECISIONS = st.builds(
    Decision,
    st.sampled_from(["persist", "mask"]),
    st.builds(Target, DIGESTS, NUMBERS, NUMBERS, NUMBERS),
    st.text(max_size=20),
    DIGESTS,
    NUMBERS,
    st.text(max_size=40),
)
SETS = st.builds(
    DecisionSet,
    NUMBERS,
    st.sampled_from(["arrival", "trigger"]),
    NUMBERS,
    NUMBERS,
    st.lists(DECISIONS, max_size=3).map(tuple),
)


def indexed(history: History) -> Index:
    index = Index(wire_format("anthropic"), INJECTED)
    index.sync(history)
    return index


def decide(
    index: Index, stage: str, message: int, block: int = 0, note: str = "note"
) -> DecisionSet:
    place = target(message, block, index)
    one = Decision(stage, place, f"out-{stage}{message}", bytes(32), 31, note)
    return DecisionSet(len(index), "trigger", 2, 1, (one,))


@given(SETS)
def test_a_set_survives_its_encoding(one: DecisionSet) -> None:
    """Through JSON and back, equal."""
    assert DecisionSet.decode(json.loads(json.dumps(one.encode()))) == one


@given(SETS)
def test_fields_of_later_versions_are_passed_over(one: DecisionSet) -> None:
    """In a set and in its decisions."""
    value = {**one.encode(), "later": 1}
    value["decisions"] = [{**each, "later": [2]} for each in value["decisions"]]
    assert DecisionSet.decode(value) == one


@given(DIGESTS)
def test_digests_are_written_without_padding(digest: bytes) -> None:
    """And read back."""
    assert "=" not in encode_digest(digest)
    assert decode_digest(encode_digest(digest)) == digest


def test_the_newest_decision_wins() -> None:
    """For one block; what the sets save together is counted once."""
    index = indexed(conversation(3))
    sets = [decide(index, Stage.PERSIST, 2, note="long note"), decide(index, Stage.MASK, 2)]
    ledger = resolve(sets, index)
    held = ledger.decision(2, 0)
    assert held is not None
    assert held.stage == Stage.MASK
    facts = index.messages[2].blocks[0]
    assert ledger.saved == facts.tokens - 31
    assert ledger.saved_chars == facts.chars - len("note")
    assert {k: v for k, v in ledger.shown.items() if v} == {"mask": 1}
    assert set(ledger.contents) == {"out-persist2", "out-mask2"}


def test_a_set_at_a_time_or_all_at_once() -> None:
    """`extend` and `resolve` come to the same."""
    index = indexed(conversation(5))
    sets = [
        decide(index, Stage.PERSIST, 2),
        decide(index, Stage.MASK, 4),
        decide(index, Stage.MASK, 2),
    ]
    grown = empty()
    for one in sets:
        grown = extend(grown, one, index)
    assert grown == resolve(sets, index)
    assert [one.at for one in grown.sets] == [11, 11, 11]


def test_a_mask_sleeps_after_a_rewind_and_wakes() -> None:
    """It holds only while its result is consumed; a preview holds all the while."""
    history = conversation(2)
    index = indexed(history)
    sets = [decide(index, Stage.PERSIST, 2), decide(index, Stage.MASK, 2)]
    assert resolve(sets, index).shown["mask"] == 1
    index.sync(history[:3])
    rewound = resolve(sets, index)
    held = rewound.decision(2, 0)
    assert held is not None
    assert held.stage == Stage.PERSIST
    assert rewound.dormant == {index.messages[2].blocks[0].digest}
    index.sync([*history[:3], says("Another way.")])
    assert resolve(sets, index).shown["mask"] == 1


def test_a_decision_sleeps_while_its_block_is_gone() -> None:
    """It hides nothing then, its handle stays known, and it holds again with its block."""
    history = conversation(3)
    index = indexed(history)
    one = decide(index, Stage.MASK, 2)
    index.sync([history[0], *history[3:]])
    gone = resolve([one], index)
    assert not gone.active
    assert gone.saved == gone.saved_chars == 0
    assert list(gone.contents) == ["out-mask2"]
    index.sync(history)
    assert resolve([one], index).decision(2, 0)


def test_a_block_is_found_where_it_moved() -> None:
    """After a history was shortened in front."""
    history = conversation(4)
    index = indexed(history)
    one = decide(index, Stage.MASK, 4)
    index.sync([history[0], *history[3:]])
    assert list(resolve([one], index).active) == [2]


def test_equal_blocks_are_told_apart_by_occurrence() -> None:
    """The second of three equal results is the second wherever they stand."""
    pair: History = [asks(call("a")), answers(result("a", "same"))]
    history = [human("Go."), *pair, *pair, *pair, says("Done.")]
    index = indexed(history)
    place = target(4, 0, index)
    assert place.occurrence == 1
    assert locate(place, index) == (4, 0)
    index.sync([human("Go."), human("Now."), *pair, *pair, *pair, says("Done.")])
    assert locate(place, index) == (5, 0)


def test_equal_blocks_in_one_message() -> None:
    """Each is a place of its own."""
    twice = answers(result("a", "same"), result("a", "same"))
    index = indexed([human("Go."), asks(call("a")), twice, says("Done.")])
    assert [target(2, block, index).occurrence for block in (0, 1)] == [0, 1]
    assert [locate(target(2, block, index), index) for block in (0, 1)] == [(2, 0), (2, 1)]


@pytest.mark.parametrize("stage", [Stage.PERSIST, Stage.MASK])
def test_an_unread_result_is_shown_or_previewed(stage: str) -> None:
    """A mask of an unread result never takes effect."""
    index = indexed(conversation(2))
    ledger = resolve([decide(index, stage, 4)], index)
    assert (ledger.decision(4, 0) is not None) == (stage == Stage.PERSIST)
