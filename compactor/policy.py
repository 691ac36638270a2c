"""Every threshold of the engine, with its measured default.

The measurements: replays of 17 recorded coding sessions of 60 to 1,800 requests in windows of
20,000 to 200,000 tokens, billed under prompt caching (a cached token costs 0.1, a written one
1.25). "Regret" counts what the model later quoted although it no longer stood in view.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Self

from .policy_checks import check, frozen, merged, refuse

INJECTED = r"\s*(<system-reminder>.*</system-reminder>\s*)+"
_FILE_READERS = ("Read", "read", "read_file", "view", "cat", "open_file")
_READ_ONLY = frozenset(
    {
        *_FILE_READERS,
        *("Grep", "Glob", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite", "TodoRead"),
        *(
            "grep",
            "glob",
            "ls",
            "find",
            "search",
            "list",
            "list_dir",
            "list_files",
            "read_many_files",
        ),
        *("web_search", "web_fetch", "update_plan", "think", "open", "scroll_down", "scroll_up"),
        *("read_transcript", "search_transcript", "compact_context"),
    }
)


class Stage:
    """Names of the stages, in the order of their cost."""

    PERSIST = "persist"
    MASK = "mask"
    ARCHIVE = "archive"
    SUMMARIZE = "summarize"
    THINKING = "thinking"  # no stage of its own: what another one makes void


STAGES = (Stage.PERSIST, Stage.MASK, Stage.ARCHIVE, Stage.SUMMARIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRule:
    """How new results of one tool are persisted.

    `limit` (characters, None): a single result above it is replaced; None: `always_chars` holds.
    `show` ("both"): which part stays in view, "head", "tail" or "both".
    `never` (False): leave this tool's results alone, in a large batch too.
    """

    limit: int | None = None
    show: Literal["head", "tail", "both"] = "both"
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistPolicy:
    """When a new tool result is replaced by a preview; sizes in characters.

    `batch_chars` (200,000) and `item_chars` (30,000): where the results of one turn are larger
    than the first, those above the second are replaced, largest first, until the turn fits. The
    teaching pipeline's values; no measured session reached them.
    `always_chars` (30,000): a single result above it is replaced in any case. 10,000 is hardly
    cheaper and leaves fewer facts in view.
    `tools` (100,000 for tools that read files, of which 18 % are quoted late, against 3.5 % of
    what shells print): by tool name a `ToolRule`, or in short its limit, its `show`, or "never"
    (None means the same).
    `preview_chars` (2,000) of the head and `tail_chars` (500) of the end stay: more makes no
    difference to later quotes, but the end of a log holds its outcome.
    """

    batch_chars: int = 200_000
    item_chars: int = 30_000
    always_chars: int = 30_000
    preview_chars: int = 2_000
    tail_chars: int = 500
    tools: Mapping[str, ToolRule | Mapping[str, Any] | str | int | None] = field(
        default_factory=lambda: dict.fromkeys(_FILE_READERS, 100_000), hash=False
    )

    def __post_init__(self) -> None:
        """Make the rules alike, and refuse what contradicts itself."""
        check(self, "persist.")
        if self.preview_chars + self.tail_chars < 1:
            refuse(
                "persist.preview_chars + persist.tail_chars must be 1 or more",
                "An unread result keeps a preview in view; Policy(stages=…) switches stages off.",
            )
        if not isinstance(self.tools, Mapping):
            refuse("persist.tools must map names of tools to rules", 'Such as {"Read": 100_000}.')
        rules = {tool: _rule(tool, value) for tool, value in self.tools.items()}
        object.__setattr__(self, "tools", MappingProxyType(rules))

    def __reduce__(self) -> tuple[Callable[..., "PersistPolicy"], tuple[dict[str, Any]]]:
        """Make copies and pickles possible, which a read-only mapping is not."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _persist_policy, (values | {"tools": dict(self.tools)},)

    def rule(self, tool: str | None) -> ToolRule:
        """Return the rule of a tool; it has a limit unless it says `never`."""
        found = self.tools.get(tool) if tool else None
        rule = found if isinstance(found, ToolRule) else ToolRule()
        unset = rule.limit is None and not rule.never
        return replace(rule, limit=self.always_chars) if unset else rule

    def limit(self, tool: str | None) -> int | None:
        """Return the size above which a single result of this tool is replaced (None: never)."""
        rule = self.rule(tool)
        return None if rule.never else rule.limit

    def preview(self, tool: str | None) -> tuple[int, int]:
        """Return how many characters of the head and of the end of this tool's results stay."""
        whole = self.preview_chars + self.tail_chars
        parts = {"head": (whole, 0), "tail": (0, whole)}
        return parts.get(self.rule(tool).show, (self.preview_chars, self.tail_chars))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPolicy:
    """Which consumed tool results become one line.

    `keep_recent` (5 results): the newest that stay; 3 to 10 cost the same within 1 %, and 10
    regret a tenth less than 3.
    `keep_share` (0.2 of the budget): where those take more, fewer stay, but at least
    `keep_least` (3).
    `min_chars` (120 characters): what is no longer stays; its note would save nothing.
    `scent_chars` (150 characters): of a result's telling lines, kept in its note: one to three
    hundredths more of the facts stay in view at no measurable cost, and more does not help.
    `media` (True): old images and documents give way too.
    `only` (None: every tool) and `never` (none): names of the tools whose results may and may not
    be masked; `never` has the last word.
    `inputs` (none): pairs of a tool and a key of its calls' input, whose long values are masked
    too. That saves 1 to 4 % and adds regret, and models imitate the placeholders.
    """

    keep_recent: int = 5
    keep_least: int = 3
    keep_share: float = 0.2
    min_chars: int = 120
    scent_chars: int = 150
    media: bool = True
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    inputs: frozenset[tuple[str, str]] = frozenset()

    def __post_init__(self) -> None:
        """Make sets of what a file gives as lists, and refuse what is no setting."""
        for name in ("only", "never", "inputs"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        check(self, "mask.")

    def may_mask(self, tool: str | None) -> bool:
        """Tell whether results of this tool may be masked (None: of a tool unknown)."""
        return tool not in self.never and (self.only is None or tool in self.only)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePolicy:
    """When the middle of the history gives way to one note, and what of it stays.

    `max_messages` (None: never by count): above it the middle goes, down to the first
    `keep_head` (3) and the newest `keep_tail` (46) messages. Off, since 50 with 3 and 46 breaks
    the cached prefix on 86 of 100 requests and costs 2.4 times sending everything; rather 400
    with 3 and 197.
    `keep_user_chars` (80,000 characters), at most `keep_user_share` (0.2) of the budget: of what
    the human wrote in there, kept verbatim, newest first. In 191 sessions the longest had 61,879.
    """

    max_messages: int | None = None
    keep_head: int = 3
    keep_tail: int = 46
    keep_user_chars: int = 80_000
    keep_user_share: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        check(self, "archive.")
        if self.max_messages is not None and self.keep_head + self.keep_tail >= self.max_messages:
            refuse(
                "archive.keep_head + archive.keep_tail must be less than archive.max_messages",
                "The note needs a place: 3 and 46 go with 50.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPolicy:
    """How all but the newest exchanges become one message with a state summary.

    It is done where masking ended above the middle of trigger and target.
    `keep_exchanges` (3): the newest that stay, at most `keep_share` (0.2) of the budget, the open
    one always.
    `state_chars` (8,000 characters), at most `state_share` (0.1) of the budget: what the state may
    take. Beside it stand what the human said (`archive.keep_user_chars`) and, at most half as
    large, the actions that were done.
    `rebuild_every` (5): so often a state is made anew from everything that it stands for, against
    drift; else from the one before and what is new.
    `input_chars` (None): of a longer stretch the summarizer reads that many characters, the first
    quarter at its start and the rest at its end; None: all of it, in pieces.
    `failures` (3): a summarizer that failed so often in a row is not asked again, except by hand;
    the extractive one, which needs no model, takes its place.
    `read_only`: names of tools whose calls change nothing; all others are listed, with their
    outcome, as done. Tools of the request with the hint `readOnlyHint` count as well.
    """

    keep_exchanges: int = 3
    keep_share: float = 0.2
    state_chars: int = 8_000
    state_share: float = 0.1
    rebuild_every: int = 5
    input_chars: int | None = None
    failures: int = 3
    read_only: frozenset[str] = _READ_ONLY

    def __post_init__(self) -> None:
        """Refuse what is no setting."""
        object.__setattr__(self, "read_only", frozen(self.read_only))
        check(self, "summary.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the engine does, and when: `Policy()`, or one of its presets.

    `window` (tokens of the model's context window; None: what is known of the model, else
    200,000) and `context_chars` (None): a budget in characters that holds beside it.
    `max_bytes` and `max_images` of a request (None: the provider's own limits).
    `trigger` (0.7) and `target` (0.1): shares of the budget for messages at which compaction
    starts and at which it stops. The trigger decides cost and regret (per 100 requests 10.3 at
    0.5, 7.5 at 0.8); the target how often the prefix breaks, and no facts.
    `unanchored` (0.05): that much lower the trigger counts until the provider has reported real
    usage: the estimate alone is 3 to 11 % off in one case of ten.
    `cold_trigger` (0.5): the trigger, where that is lower, once the provider's cache is cold, as
    after `cache_ttl_s` (300 seconds, the life of a cache entry): cost falls by 7 to 8 %. 1: off.
    `min_gain` (0.05): a compaction that would save less than this share of the budget is left for
    later, since it would break the cached prefix for little, unless it makes the prompt fit.
    `breaker_turns` (3 turns): compactions that refill sooner open the breaker. 0: never.
    `bound_thinking` (None: by the model): thinking blocks are refused once what was sent before
    them has changed, so that those which a compaction makes void leave the view with it.
    `stages` (persist, mask, archive, summarize): the stages in force, in the order of their work.
    With a summary among them, archiving goes by count, and by size only where none can be had.
    `manual_tool` (False): offer the model a tool by which it asks for a compaction, and `gate`
    ("checkpoint"): after calls that change something it has to say in its checkpoint what was
    decided and done, or "open": always granted.
    `not_human` (text in a `<system-reminder>` tag): a text block of a user message that this
    pattern matches whole was put in by the host and is not the human's request.
    `request_block_chars` (100,000 characters): a text block of the current request above it may
    be persisted once it is consumed; everything else of the request stands in every view.
    `on_storage_error` ("degrade"): keep in view what cannot be stored and say so, or "raise".
    `check_history` ("edges"): where an edit of old messages is looked for, at the ends or in
    "full", which costs time at each request.
    """

    window: int | None = None
    context_chars: int | None = None
    max_bytes: int | None = None
    max_images: int | None = None
    trigger: float = 0.7
    target: float = 0.1
    unanchored: float = 0.05
    cold_trigger: float = 0.5
    cache_ttl_s: int = 300
    min_gain: float = 0.05
    breaker_turns: int = 3
    bound_thinking: bool | None = None
    stages: tuple[str, ...] = STAGES
    not_human: str = INJECTED
    request_block_chars: int = 100_000
    on_storage_error: Literal["degrade", "raise"] = "degrade"
    check_history: Literal["edges", "full"] = "edges"
    manual_tool: bool = False
    gate: Literal["checkpoint", "open"] = "checkpoint"
    persist: PersistPolicy = field(default_factory=PersistPolicy)
    mask: MaskPolicy = field(default_factory=MaskPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    summary: SummaryPolicy = field(default_factory=SummaryPolicy)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if isinstance(self.stages, list):
            object.__setattr__(self, "stages", tuple(self.stages))
        check(self, "")
        if not 0 < self.target < self.trigger:
            refuse("0 < target < trigger is required", "The defaults: trigger=0.7, target=0.1.")
        if self.unanchored >= self.trigger:
            refuse("unanchored < trigger is required", "The default of unanchored is 0.05.")
        if self.min_gain >= 1:
            refuse("min_gain < 1 is required", "The default is 0.05.")
        if unknown := [stage for stage in self.stages if stage not in STAGES]:
            refuse(f"no stage {unknown[0]!r}", f"The stages are {', '.join(STAGES)}.")
        if len(set(self.stages)) < len(self.stages):
            refuse("stages must name each stage once", "In the order of their work.")
        try:
            re.compile(self.not_human, re.DOTALL)
        except re.error:
            refuse("not_human must be a regular expression", "See Python's `re`.")

    @classmethod
    def frugal(cls, **changes: Any) -> Self:
        """Compact early: the smallest bill (23 to 34 % of sending everything), fewer facts."""
        made = cls(
            trigger=0.5,
            target=0.1,
            persist=PersistPolicy(always_chars=10_000),
            mask=MaskPolicy(keep_recent=3),
        )
        return made.but(**changes)

    @classmethod
    def roomy(cls, **changes: Any) -> Self:
        """Compact late: the most facts in view, a larger bill (42 to 57 %)."""
        made = cls(
            trigger=0.9,
            target=0.3,
            persist=PersistPolicy(always_chars=10_000),
            mask=MaskPolicy(keep_recent=10),
        )
        return made.but(**changes)

    @classmethod
    def course(cls, **changes: Any) -> Self:
        """Work with the stages and thresholds of the teaching pipeline, to compare with it.

        There only the batch counts: a single result above `batch_chars` is the one that its batch
        rule would replace too.
        """
        made = cls(
            stages=(Stage.PERSIST, Stage.ARCHIVE, Stage.MASK, Stage.SUMMARIZE),
            persist=PersistPolicy(
                batch_chars=200_000,
                item_chars=30_000,
                always_chars=200_000,
                preview_chars=2_000,
                tail_chars=0,
                tools={},
            ),
            archive=ArchivePolicy(max_messages=50, keep_head=3, keep_tail=46),
            mask=MaskPolicy(keep_recent=3, min_chars=120, scent_chars=0),
            summary=SummaryPolicy(input_chars=80_000),
        )
        return made.but(**changes)

    def but(self, /, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Settings of a stage are given as `mask__keep_recent=3`, or as a mapping, which changes
        what it names and leaves the rest: `mask={"keep_recent": 3}`. So do rules by tool.

        Raises:
            BadPolicy: for a name that is no setting, or settings that contradict each other.

        """
        made: Self = merged(self, changes, "")
        return made


def _rule(tool: str, value: Any) -> ToolRule:
    path = f"persist.tools.{tool}."
    if value is None or value == "never":
        value = {"never": True}
    elif not isinstance(value, ToolRule | Mapping):
        value = {"show" if isinstance(value, str) else "limit": value}
    rule: ToolRule = value if isinstance(value, ToolRule) else merged(ToolRule(), value, path)
    check(rule, path)
    return rule


def _persist_policy(values: dict[str, Any]) -> PersistPolicy:
    return PersistPolicy(**values)
