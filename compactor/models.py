"""What is known of models: context window, output limit, and how finely they cut text.

Figures are tokens. A provider's own model information comes first (`model_info`), then this
table, then the caller's default: an unknown model is None here, never a guess.

Sources, as stored copies had them in December 2026:

* Claude: https://platform.claude.com/docs/en/models/overview and the page of each model below it
  (Haiku 5.5 of October 2026, Opus 5 of July 2026, Sonnet 4.5 of September 2025), and
  https://platform.claude.com/docs/en/build-with-claude/context-windows, which names the families
  of a million tokens: Fable 5, Mythos 5, Opus 5, Opus 4.6 to 4.8, Sonnet 5, Sonnet 4.6. Newer
  members of a family are taken to have the window of the family.
* The tokenizer of Claude 4.7 and later makes about 30 % more tokens of the same text:
  https://platform.claude.com/docs/en/models/haiku-5-5/overview (October 2026).
* Models that bind thinking to what was sent before it: the list on
  https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (2026).
* OpenAI: https://vercel.com/ai-gateway/models, which links to the provider's page of each model
  (GPT-5.4 and 5.4 mini of March 2026), https://docs.oxen.ai (GPT-5.5 of April 2026) and
  https://rageagainstthepixel.github.io/OpenAI-DotNet for older ones. Of a window of GPT-5 at most
  window less output limit may be input.
* Limits of a request: https://platform.claude.com/docs/en/build-with-claude/vision (2026): 32 MB;
  100 images for models with 200,000 tokens, 600 for all others.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .tokens import Limits

LONG_CONTEXT_BETA = "context-1m-"  # context-1m-2025-08-07: 1M tokens on Sonnet 4 and 4.5
LONG_CONTEXT_SUFFIX = "[1m]"  # Claude Code's way of writing the same
_SMALL, _MILLION = 200_000, 1_000_000
_NEW_TOKENIZER = 1.3
_ENDS = ("", "-", "@", ":", "[")


class Family(NamedTuple):
    """Models whose names start alike.

    `window` and `output` in tokens; `density` is the tokens that it makes of a token by the
    estimate; `beta` tells whether a beta header widens the window to a million; `bound` whether a
    thinking block is refused once anything that was sent before it has changed.
    """

    window: int
    output: int
    density: float = 1.0
    beta: bool = False
    bound: bool = False


_NEW = Family(_MILLION, 128_000, _NEW_TOKENIZER)

_BOUND = _NEW._replace(bound=True)

# A name ends where it ends, or at one of `_ENDS`; the longest that fits decides.
FAMILIES: Mapping[str, Family] = {
    "claude-fable-5": _NEW,
    "claude-mythos-5": _NEW,
    "claude-opus-5": _NEW,
    "claude-sonnet-5": _NEW,
    "claude-fable-5-1": _BOUND,
    "claude-fable-5-2": _BOUND,
    "claude-mythos-5-1": _BOUND,
    "claude-mythos-5-2": _BOUND,
    "claude-opus-5-5": _BOUND,
    "claude-sonnet-5-5": _BOUND,
    "claude-haiku-5-5": _BOUND,
    "claude-opus-4-8": _NEW,
    "claude-opus-4-7": _NEW,
    "claude-opus-4-6": Family(_MILLION, 128_000),
    "claude-sonnet-4-6": Family(_MILLION, 128_000),
    "claude-opus-4-5": Family(_SMALL, 64_000),
    "claude-sonnet-4-5": Family(_SMALL, 64_000, beta=True),
    "claude-haiku-4-5": Family(_SMALL, 64_000),
    "claude-opus-4": Family(_SMALL, 32_000),
    "claude-sonnet-4": Family(_SMALL, 64_000, beta=True),
    "claude-3-7": Family(_SMALL, 64_000),
    "claude-3-5": Family(_SMALL, 8_192),
    "claude-3": Family(_SMALL, 4_096),
    "gpt-5.5": Family(1_050_000, 128_000),
    "gpt-5.4": Family(1_050_000, 128_000),
    "gpt-5.4-mini": Family(400_000, 128_000),
    "gpt-5.4-nano": Family(400_000, 128_000),
    "gpt-5.2": Family(400_000, 128_000),
    "gpt-5.2-chat": Family(128_000, 16_384),
    "gpt-5.1": Family(400_000, 128_000),
    "gpt-5.1-chat": Family(128_000, 16_384),
    "gpt-5": Family(400_000, 128_000),
    "gpt-5-chat": Family(128_000, 16_384),
    "gpt-4.1": Family(1_047_576, 32_768),
    "gpt-4o": Family(128_000, 16_384),
    "gpt-4-turbo": Family(128_000, 4_096),
    "gpt-4-32k": Family(32_768, 8_192),
    "gpt-4": Family(8_192, 8_192),
    "gpt-3.5-turbo": Family(16_385, 4_096),
    "codex-mini": Family(_SMALL, 100_000),
    "o4-mini": Family(_SMALL, 100_000),
    "o3": Family(_SMALL, 100_000),
    "o1": Family(_SMALL, 100_000),
    "o1-mini": Family(128_000, 65_536),
    "o1-preview": Family(128_000, 32_768),
}

# Names of the window in providers' model objects, the most telling first: Anthropic's, OpenRouter's
# and others', vLLM's, Google's.
_INFO = (
    "max_input_tokens",
    "context_window",
    "context_length",
    "max_context_length",
    "max_model_len",
    "input_token_limit",
    "inputTokenLimit",
)


def family_of(model: str) -> Family | None:
    """Return the family of a model by its name, whoever resells it; None for an unknown one."""
    name = _plain(model)
    fitting = [
        start
        for start in FAMILIES
        if name.startswith(start) and name[len(start) : len(start) + 1] in _ENDS
    ]
    return FAMILIES[max(fitting, key=len)] if fitting else None


def _plain(model: str) -> str:
    """Strip a reseller's prefix: `us.anthropic.claude-…`, `anthropic/claude-opus-4.8`."""
    name = model.lower().rpartition("/")[2]
    claude = name.find("claude-")
    return name if claude < 0 else name[claude:].replace(".", "-")


def window_of(model: str, betas: Iterable[str] = ()) -> int | None:
    """Return the context window of a model in tokens; None for an unknown one.

    Args:
        model: its name, as in the request.
        betas: the beta headers that are sent with the request.

    """
    family = family_of(model)
    if family is None:
        return None
    asked = model.lower().endswith(LONG_CONTEXT_SUFFIX)
    asked = asked or any(beta.startswith(LONG_CONTEXT_BETA) for beta in betas)
    return _MILLION if family.beta and asked else family.window


def density_of(model: str) -> float:
    """Return how many tokens a model makes of one by the estimate; 1 for an unknown one."""
    family = family_of(model)
    return family.density if family else 1.0


def binds_thinking(model: str) -> bool:
    """Tell whether a model refuses thinking of its own after an edited prefix."""
    family = family_of(model)
    return family is not None and family.bound


def limits_of(model: str | None = None, betas: Iterable[str] = ()) -> Limits:
    """Return what Anthropic's Messages API takes in one request to a model beside tokens."""
    window = window_of(model, betas) if model else None
    return Limits(max_bytes=32_000_000, max_images=100 if (window or 0) <= _SMALL else 600)


def model_info(info: object) -> int | None:
    """Return the context window that a provider's model object or dictionary names, in tokens."""
    for name in _INFO:
        value = info.get(name) if isinstance(info, Mapping) else getattr(info, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
