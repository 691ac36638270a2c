"""The table of models, and what providers say of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from compactor.models import FAMILIES, density_of, family_of, limits_of, model_info, window_of
from compactor.tokens import Limits

BETA = "context-1m-2025-08-07"


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4-6", 1_000_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("claude-opus-4-20250514", 200_000),
        ("claude-haiku-5-5", 1_000_000),
        ("claude-3-5-haiku-latest", 200_000),
        ("gpt-4.1-mini", 1_047_576),
        ("gpt-4o-2024-08-06", 128_000),
        ("gpt-4", 8_192),
        ("gpt-5.1-chat-latest", 128_000),
        ("o3-mini", 200_000),
    ],
)
def test_a_model_has_the_window_of_its_family(model: str, window: int) -> None:
    """The longest name that fits decides."""
    assert window_of(model) == window


@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-opus-4.8-fast",
        "us.anthropic.claude-opus-4-8-v1:0",
        "openrouter/anthropic/claude-opus-4.8",
        "claude-opus-4-8@20260301",
        "Claude-Opus-4-8",
    ],
)
def test_a_reseller_changes_nothing(model: str) -> None:
    """Prefixes, dots for hyphens and suffixes are other names of the same model."""
    assert family_of(model) is FAMILIES["claude-opus-4-8"]


@pytest.mark.parametrize("model", ["", "llama-4", "claude-next", "gpt-50", "gpt-5.9", "o33"])
def test_an_unknown_model_has_no_window(model: str) -> None:
    """A name that merely starts alike is not guessed at."""
    assert window_of(model) is None
    assert density_of(model) == 1


def test_a_beta_header_widens_the_window() -> None:
    """Only where the model knows it, by header or in Claude Code's spelling."""
    assert window_of("claude-sonnet-4-5", [BETA]) == 1_000_000
    assert window_of("claude-sonnet-4-20250514[1m]") == 1_000_000
    assert window_of("claude-sonnet-4-5", ["files-api-2025-04-14"]) == 200_000
    assert window_of("claude-haiku-4-5", [BETA]) == 200_000


def test_newer_tokenizers_make_more_tokens() -> None:
    """30 % more since Claude 4.7."""
    assert density_of("claude-opus-4-7") == 1.3
    assert density_of("claude-opus-4-6") == 1


def test_limits_go_with_the_window() -> None:
    """32 MB for all; 100 images, or 600 where a million tokens fit."""
    assert limits_of("claude-haiku-4-5") == Limits(32_000_000, 100)
    assert limits_of("claude-opus-5") == Limits(32_000_000, 600)
    assert limits_of() == limits_of("unknown") == Limits(32_000_000, 100)


@pytest.mark.parametrize(
    "info",
    [
        {"max_input_tokens": 5_000},
        {"context_length": 5_000, "id": "x"},
        {"max_input_tokens": None, "inputTokenLimit": 5_000},
        SimpleNamespace(context_window=5_000),
        SimpleNamespace(max_input_tokens=5_000, context_window=9_000),
    ],
)
def test_a_providers_word_is_read(info: Any) -> None:
    """From a dictionary or an object, by the most telling name."""
    assert model_info(info) == 5_000


@pytest.mark.parametrize(
    "info", [None, {}, "claude", {"context_window": True}, {"context_window": "5k"}, {"id": 0}]
)
def test_what_says_nothing_is_none(info: Any) -> None:
    """Other types than a positive whole number are no window."""
    assert model_info(info) is None
