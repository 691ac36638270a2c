"""Every threshold of the engine, with its measured default."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from .errors import BadPolicy

INJECTED = r"\s*(<system-reminder>.*</system-reminder>\s*)+"
_FILE_READERS = ("Read", "read", "read_file", "view", "cat", "open_file")


class Stage:
    """Names of the stages, in the order of their cost."""

    PERSIST = "persist"
    MASK = "mask"


STAGES = (Stage.PERSIST, Stage.MASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistPolicy:
    """When a new tool result is replaced by a preview; sizes in characters.

    `batch_chars`: results of one turn together; above it those over `item_chars` are replaced,
    largest first, until the turn fits. `always_chars`: a single result above it is replaced in
    any case; `tools` overrides that by tool name (None: never). `preview_chars` of its head and
    `tail_chars` of its end stay.
    """

    batch_chars: int = 200_000
    item_chars: int = 30_000
    always_chars: int = 30_000
    preview_chars: int = 2_000
    tail_chars: int = 500
    tools: Mapping[str, int | None] = field(
        default_factory=lambda: MappingProxyType(dict.fromkeys(_FILE_READERS, 100_000))
    )

    def limit(self, tool: str | None) -> int | None:
        """Return the size above which a single result of this tool is replaced."""
        return self.tools.get(tool, self.always_chars) if tool else self.always_chars


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPolicy:
    """Which consumed tool results become one line.

    The newest `keep_recent` results stay (fewer, but at least `keep_least`, where they take more
    than `keep_share` of the budget), and so do those up to `min_chars` characters. `scent_chars`
    of a result's telling lines stay in its note.
    """

    keep_recent: int = 5
    keep_least: int = 3
    keep_share: float = 0.2
    min_chars: int = 120
    scent_chars: int = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the engine does, and when.

    `window`: tokens of the model's context window (None: 200,000).
    `trigger` and `target`: shares of the budget for messages at which compaction starts and at
    which it stops; until the provider has reported real usage the trigger counts `unanchored`
    lower.
    `min_gain`: a compaction that would save less than this share of the budget is left for
    later, since it would break the cached prefix for little, unless it makes the prompt fit.
    `stages`: the stages in force, in the order of their work.
    `not_human`: a text block of a user message that this pattern matches whole was put in by the
    host and is not the human's request.
    """

    window: int | None = None
    trigger: float = 0.7
    target: float = 0.1
    unanchored: float = 0.05
    min_gain: float = 0.05
    stages: tuple[str, ...] = STAGES
    not_human: str = INJECTED
    persist: PersistPolicy = field(default_factory=PersistPolicy)
    mask: MaskPolicy = field(default_factory=MaskPolicy)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if not 0 < self.target < self.trigger <= 1:
            _refuse("0 < target < trigger <= 1", "trigger=0.7, target=0.1 are the defaults.")
        if not 0 <= self.unanchored < self.trigger:
            _refuse("0 <= unanchored < trigger", "0.05 is the default.")
        if not 0 <= self.min_gain < 1:
            _refuse("0 <= min_gain < 1", "0.05 is the default.")
        if self.window is not None and self.window < 1:
            _refuse("window >= 1", "The window is counted in tokens.")
        if unknown := [stage for stage in self.stages if stage not in STAGES]:
            message = f"policy: no stage {unknown[0]!r}"
            raise BadPolicy(message, hint=f"The stages are {', '.join(STAGES)}.")
        if len(set(self.stages)) < len(self.stages):
            _refuse("each stage once", "Name each stage once, in the order of their work.")
        sizes = (
            *(getattr(self.persist, n) for n in self.persist.__slots__ if n != "tools"),
            *(limit for limit in self.persist.tools.values() if limit is not None),
            *(getattr(self.mask, n) for n in self.mask.__slots__),
        )
        if self.persist.preview_chars + self.persist.tail_chars < 1:
            _refuse("a preview", "An unread result keeps preview_chars or tail_chars in view.")
        if min(sizes) < 0:
            _refuse("sizes >= 0", "Sizes are counted in characters, numbers of results or shares.")
        try:
            re.compile(self.not_human, re.DOTALL)
        except re.error:
            _refuse("not_human is a regular expression", "See Python's `re`.")

    def but(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return replace(self, **changes)


def _refuse(rule: str, hint: str) -> None:
    message = f"policy: {rule} is required"
    raise BadPolicy(message, hint=hint)
