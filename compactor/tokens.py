"""How large a prompt is: estimates, their anchor on real usage, and the budget they must fit.

Where the provider has said what a prompt measured, the size of the next one is that figure plus
the estimate of what has come since (median error below 0.1 % in recorded sessions); without it
the estimate stands alone (error of about 3 % in the median and 12 % at the ninetieth percentile;
`scripts/bench/estimate` prints both). Nothing here does I/O.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

from .errors import BadPolicy

BYTES_A_TOKEN = 3
TOKENS_A_BLOCK = 30
DEFAULT_WINDOW = 200_000
MARGIN = 0.02

_DENSE = 0.42  # tokens a byte of numbers, logs, hexadecimal and base64
_DENSE_DIGITS = 0.1  # the share of digits from which a text counts as such
_SHORTEST = 100  # characters below which the kind of a text makes no difference
_SAMPLE = 400  # characters of each of three samples
_APART = 2_000  # tokens by which two prompts must differ to tell how fine the tokenizer is
_LEAST, _MOST = 0.5, 2.0  # of a factor: beyond, something else was measured
_DIGITS = b"0123456789"


def estimate_bytes(size: int) -> int:
    """Estimate the tokens of a block of `size` UTF-8 bytes."""
    return size // BYTES_A_TOKEN + TOKENS_A_BLOCK


def estimate_text(text: str) -> int:
    """Estimate the tokens of a block that holds this text.

    Text full of digits (logs, tables, hexadecimal, base64) takes 0.42 tokens a byte. Everything
    else counts as a third: code and the input of calls measure 0.32 to 0.35, Chinese a token a
    character. Prose measures less, 0.22, but counting it so made whole sessions come out worse,
    since hosts add text that no session records. The kind is judged by three samples, so that
    the work does not grow with the text.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if len(text) >= _SHORTEST and _is_dense(text):
        return int(size * _DENSE) + TOKENS_A_BLOCK
    return estimate_bytes(size)


def _is_dense(text: str) -> bool:
    if len(text) > 3 * _SAMPLE:
        middle = (len(text) - _SAMPLE) // 2
        text = text[:_SAMPLE] + text[middle : middle + _SAMPLE] + text[-_SAMPLE:]
    sample = text.encode("utf-8", "surrogatepass")
    digits = len(sample) - len(sample.translate(None, _DIGITS))
    return digits >= _DENSE_DIGITS * len(sample)


def estimate_image() -> int:
    """Estimate an image: providers scale it down to at most about 1,600 tokens, whatever its bytes.

    Source: https://platform.claude.com/docs/en/build-with-claude/vision
    """
    return 1_600


def estimate_document(encoded: int) -> int:
    """Estimate a document of `encoded` base64 characters: 3,000 tokens for each 100,000 of them.

    A page of text costs 1,500 to 3,000 tokens and is sent as an image beside it.
    Source: https://platform.claude.com/docs/en/build-with-claude/pdf-support
    """
    return 3_000 * (1 + encoded // 100_000)


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the messages of a prompt measured, by the provider's count, and by the estimate.

    The provider counts the whole prompt; `measured` is that less the overhead of that request.
    """

    measured: int
    estimated: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """How many tokens the provider counts of an estimated one, learned from two prompts apart.

    Of one prompt alone, what nobody told of (a system prompt, tools) could not be told from a
    finer tokenizer. `used` and `estimated` are those of the smaller prompt. The factor is rounded
    to hundredths: so it seldom changes, and is seldom recorded.
    """

    factor: float = 1.0
    used: int | None = None
    estimated: int = 0

    def learned(self, used: int, estimated: int) -> Self:
        """Return what is known when a prompt of `estimated` tokens measured `used`."""
        if self.used is None or estimated < self.estimated:
            return replace(self, used=used, estimated=estimated)
        apart = estimated - self.estimated
        if apart < max(_APART, estimated / 2):
            return self
        return self._with((used - self.used) / apart)

    def corrected(self, used: int, estimated: int) -> Self:
        """Return what is known when a prompt was refused: where nothing is, that alone counts."""
        known = self.factor != 1.0
        return self if known or estimated <= 0 else self._with(used / estimated)

    def _with(self, factor: float) -> Self:
        return replace(self, factor=round(min(max(factor, _LEAST), _MOST), 2))

    def encode(self) -> list[float | int | None]:
        """Encode as a list."""
        return [self.factor, self.used, self.estimated]


@dataclass(frozen=True, slots=True)
class Budget:
    """Room for messages, in tokens or, with `unit="chars"`, in characters.

    `window` is the model's, `output` what the request reserves for the answer, `overhead` the
    estimate of system prompt and tools. An anchor holds until a set changes what is sent.
    `scale` is how many tokens the model's tokenizer makes of an estimated one.
    """

    window: int
    output: int
    overhead: int
    anchor: Anchor | None = None
    scale: float = 1.0
    unit: Literal["tokens", "chars"] = "tokens"

    @classmethod
    def of_chars(cls, chars: int, overhead: int = 0) -> Self:
        """Make a budget of `chars` characters; `overhead` of them are system prompt and tools."""
        return cls(chars, 0, overhead, unit="chars")

    @property
    def messages(self) -> int:
        """What messages may take; characters are counted, not estimated, and need no margin."""
        if self.unit == "chars":
            return self.window - self.overhead
        return int(self.window * (1 - MARGIN)) - self.output - self.scaled(self.overhead)

    def amount(self, tokens: int, chars: int) -> int:
        """Return, of a part's estimated tokens and its characters, what this budget counts."""
        return chars if self.unit == "chars" else self.scaled(tokens)

    def scaled(self, estimated: int) -> int:
        """Return estimated tokens as tokens of this model."""
        return round(estimated * self.scale)

    def size(self, estimated: int) -> int:
        """Return the size of messages for which `estimated` tokens are estimated.

        In a budget of characters `estimated` are characters, and stay what they are.
        """
        if self.unit == "chars":
            return estimated
        if self.anchor is None:
            return self.scaled(estimated)
        since = self.scaled(estimated - self.anchor.estimated)
        return max(self.anchor.measured + since, 0)


class Excess(NamedTuple):
    """By how many bytes and images a request is over; `any(excess)` tells whether it is."""

    bytes: int
    images: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider takes in one request beside tokens: bytes of its body, and images.

    None: no limit is known. `models.limits_of` has the provider's.
    """

    max_bytes: int | None = None
    max_images: int | None = None

    def excess(self, size: int, images: int) -> Excess:
        """Return by how much a request of `size` bytes with so many images is over (0: it fits)."""
        return Excess(_above(size, self.max_bytes), _above(images, self.max_images))

    def but(self, max_bytes: int | None, max_images: int | None) -> "Limits":
        """Return these limits with those of a policy in their place where it names any."""
        return Limits(
            self.max_bytes if max_bytes is None else max_bytes,
            self.max_images if max_images is None else max_images,
        )


def _above(value: int, limit: int | None) -> int:
    return 0 if limit is None else max(value - limit, 0)


def budget(
    window: int | None,
    output: int,
    overhead: int,
    anchor: Anchor | None = None,
    scale: float = 1.0,
) -> Budget:
    """Make the budget of a request, in tokens.

    Raises:
        BadPolicy: where the answer alone would take the window (`max_tokens` too large).

    """
    made = Budget(window or DEFAULT_WINDOW, output, overhead, anchor, scale)
    if made.window * (1 - MARGIN) <= output:
        message = f"max_tokens {output} leaves no room in a window of {made.window} tokens"
        raise BadPolicy(message, hint="Lower max_tokens, or set Policy(window=…).")
    return made
