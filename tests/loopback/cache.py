"""The provider's prompt cache: what a request reads from it and writes to it.

https://platform.claude.com/docs/en/build-with-claude/prompt-caching
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .prompts import Piece
from .shapes import Json, Rules

_SECONDS = {"5m": 300.0, "1h": 3_600.0}


@dataclass(frozen=True, slots=True)
class Use:
    """Input tokens of a request by where they came from."""

    fresh: int
    read: int
    written_5m: int
    written_1h: int

    def usage(self, output: int) -> Json:
        """Return the `usage` object of a reply."""
        return {
            "input_tokens": self.fresh,
            "cache_creation_input_tokens": self.written_5m + self.written_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": output,
            "service_tier": "standard",
        }


@dataclass
class Cache:
    """Prefixes that were written at a mark, each until its time is over."""

    rules: Rules
    now: Callable[[], float]
    _until: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    def account(self, pieces: Sequence[Piece]) -> Use:
        """Read the longest known prefix, write a prefix for each mark, and say what it came to."""
        total = pieces[-1].total if pieces else 0
        marks = [at for at, piece in enumerate(pieces) if piece.mark]
        hit = max((self._found(pieces, at) for at in marks), default=-1)
        read = pieces[hit].total if hit >= 0 else 0
        if hit >= 0:
            self._refresh(pieces[hit].digest)
        written = {"5m": 0, "1h": 0}
        known = read
        for at in marks:
            piece = pieces[at]
            if piece.total < self.rules.min_cached:
                continue
            lifetime = str(piece.mark)
            if piece.total > known:
                written[lifetime] += piece.total - known
                known = piece.total
            if not self._live(piece.digest):
                seconds = _SECONDS[lifetime]
                self._until[piece.digest] = (self.now() + seconds, seconds)
        return Use(total - known, read, written["5m"], written["1h"])

    def _found(self, pieces: Sequence[Piece], mark: int) -> int:
        """Return the last known prefix within reach of a mark; the mark itself counts as one."""
        reach = range(mark, max(mark - self.rules.lookback, -1), -1)
        return next((at for at in reach if self._live(pieces[at].digest)), -1)

    def _live(self, digest: bytes) -> bool:
        return digest in self._until and self._until[digest][0] > self.now()

    def _refresh(self, digest: bytes) -> None:
        _, seconds = self._until[digest]
        self._until[digest] = (self.now() + seconds, seconds)
