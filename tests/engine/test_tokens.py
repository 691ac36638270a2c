"""Estimates: by the kind of a text, by samples, and of media."""

import base64
import timeit

import pytest

from compactor.tokens import (
    estimate_bytes,
    estimate_document,
    estimate_image,
    estimate_text,
)

PROSE = "The quick brown fox jumps over the lazy dog, and nothing else happens here. " * 40
LOG = "2026-12-01 03:12:34 worker 17: 204 in 12 ms\n" * 40


def test_an_estimate_counts_bytes() -> None:
    """A third of the UTF-8 bytes, and 30 a block."""
    assert estimate_text("a" * 300) == 130
    assert estimate_text("语" * 100) == 130
    assert estimate_text("") == 30


def test_lone_surrogates_are_no_error() -> None:
    """They count as the three bytes they are stored in, sampled or not."""
    assert estimate_text("\ud800") == estimate_bytes(3)
    assert estimate_text("\ud800" * 2_000) == estimate_bytes(6_000)


@pytest.mark.parametrize(
    "text",
    [LOG, bytes(range(256)).hex() * 4, base64.b64encode(bytes(range(256)) * 8).decode()],
    ids=["log", "hex", "base64"],
)
def test_text_full_of_digits_costs_more(text: str) -> None:
    """0.42 tokens a byte."""
    assert estimate_text(text) == int(len(text) * 0.42) + 30


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "    return [each.name for each in found if each.size]\n" * 40,
        '{"name": "value"}' * 90,
    ],
    ids=["prose", "code", "json"],
)
def test_other_text_counts_by_its_bytes(text: str) -> None:
    """A few digits change nothing."""
    assert estimate_text(text) == estimate_bytes(len(text))
    assert estimate_text(text + "12") == estimate_bytes(len(text) + 2)


def test_a_short_text_is_not_judged() -> None:
    """Below a hundred characters the kind makes no difference worth the look."""
    assert estimate_text("7" * 99) == estimate_bytes(99)
    assert estimate_text("7" * 100) > estimate_bytes(100)


def test_the_end_and_the_middle_of_a_long_text_count_too() -> None:
    """A log under a heading of prose is a log."""
    text = PROSE[:400] + LOG * 10
    assert estimate_text(text) > estimate_bytes(len(text))


def test_an_estimate_is_the_same_each_time() -> None:
    """Samples stand at fixed places."""
    text = PROSE + LOG * 3
    assert len({estimate_text(text) for _ in range(5)}) == 1


def test_a_long_text_takes_no_longer_than_a_short_one() -> None:
    """A thousand times the text, and by far not a thousand times the time."""
    short = min(timeit.repeat(lambda: estimate_text(PROSE), number=20, repeat=5))
    long = PROSE * 1_000
    assert min(timeit.repeat(lambda: estimate_text(long), number=20, repeat=5)) < 50 * short


def test_an_image_costs_the_same_whatever_its_bytes() -> None:
    """Providers scale it down."""
    assert estimate_image() == 1_600


def test_a_document_costs_by_its_size() -> None:
    """3,000 tokens for each 100,000 characters of base64, begun ones included."""
    assert estimate_document(0) == 3_000
    assert estimate_document(1_000_000) == 33_000
