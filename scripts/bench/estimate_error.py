"""Compare the estimate with what providers counted in recorded sessions, and time it.

A session falls into stretches in which one model was sent a growing prompt. The first request of
a stretch gives the system prompt and tools, which no session records. "alone" is the error of
each later prompt's size by the estimate of all that came since the first request, "growth" that
error over what came since (from 3,000 tokens), "anchored" the error where the request before is
known.
"""

import argparse
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from compactor.messages import canonical
from compactor.models import density_of
from compactor.sources import SourceError, load
from compactor.tokens import estimate_bytes, estimate_document, estimate_image, estimate_text
from compactor.wire import wire_format

DEMO = Path(__file__).resolve().parents[1] / "demo-session.jsonl"
LEAST = 3_000  # tokens of growth below which its relative error says nothing
Point = tuple[int, str, int]  # length of the history, model, tokens of the prompt


@dataclass(slots=True)
class Errors:
    """Relative errors by how they were come by."""

    alone: list[float] = field(default_factory=list)
    growth: list[float] = field(default_factory=list)
    anchored: list[float] = field(default_factory=list)


def _old(text: str) -> int:
    return estimate_bytes(len(text.encode("utf-8", "surrogatepass")))


RULES: dict[str, tuple[Callable[[str], int], bool]] = {
    "bytes / 3 + 30": (_old, False),
    "by class": (estimate_text, False),
    "by class and tokenizer": (estimate_text, True),
}


def main() -> int:
    """Print both tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[DEMO])
    errors = {name: Errors() for name in RULES}
    sessions = 0
    for messages, points in _sessions(parser.parse_args().paths):
        sessions += 1
        for name, (rule, scaled) in RULES.items():
            sums = [0, *accumulate(_size(message, rule) for message in messages)]
            for stretch in _stretches(points):
                _measure(errors[name], sums, stretch, scaled=scaled)
    prompts = len(next(iter(errors.values())).anchored)
    print(f"{sessions} sessions with recorded usage, {prompts} prompts")
    print(f"{'median / p90 of the error':<26} {'alone':>15} {'growth':>15} {'anchored':>15}")
    for name, found in errors.items():
        row = (found.alone, found.growth, found.anchored)
        print(f"{name:<26} {' '.join(f'{_spread(values):>15}' for values in row)}")
    for what, text in {"60 characters": "x y " * 15, "1,000,000": "x y 1 " * 166_667}.items():
        took = min(timeit.repeat(partial(estimate_text, text), number=1_000, repeat=5))
        print(f"{what:<26} {took * 1_000:>12.2f} µs")
    return 0 if sessions else 1


def _sessions(paths: Sequence[Path]) -> Iterator[tuple[list[Any], list[Point]]]:
    wire = wire_format("anthropic")
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_file():
                continue
            try:
                recording = load(file)
            except (SourceError, UnicodeDecodeError):
                continue
            used = [(p, wire.used_tokens(p.usage) if p.usage else None) for p in recording.requests]
            points = [(p.length, str(p.model), tokens) for p, tokens in used if tokens]
            if len(points) > 1:
                yield recording.messages, points


def _stretches(points: list[Point]) -> Iterator[list[Point]]:
    """Cut where the model changes, or the prompt shrinks: something was compacted there."""
    stretch = points[:1]
    for before, point in pairwise(points):
        if point[1] != before[1] or point[2] < before[2]:
            yield stretch
            stretch = []
        stretch.append(point)
    yield stretch


def _measure(errors: Errors, sums: list[int], stretch: list[Point], *, scaled: bool) -> None:
    (start, model, base), *_ = stretch
    scale = density_of(model) if scaled else 1
    for before, (length, _, used) in pairwise(stretch):
        last = before[2] + scale * (sums[length] - sums[before[0]])
        errors.anchored.append(abs(last - used) / used)
        if used - base >= LEAST:
            off = abs(base + scale * (sums[length] - sums[start]) - used)
            errors.alone.append(off / used)
            errors.growth.append(off / (used - base))


def _size(message: Any, rule: Callable[[str], int]) -> int:
    content = message.get("content") or []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return sum(_block_size(block, rule) for block in blocks)


def _block_size(block: Any, rule: Callable[[str], int]) -> int:
    kind = block.get("type")
    if kind == "tool_use":
        return estimate_bytes(len(canonical(block.get("input"))))
    if kind == "image":
        return estimate_image()
    if kind == "document":
        return estimate_document(len(str(block.get("source", {}).get("data", ""))))
    if kind == "tool_result" and isinstance(content := block.get("content"), list):
        texts = [part.get("text", "") for part in content if part.get("type") == "text"]
        media = [part for part in content if part.get("type") != "text"]
        return rule("".join(texts)) + sum(_block_size(part, rule) for part in media)
    texts = [block.get(name) for name in ("content", "text", "thinking", "data")]
    return rule(next((text for text in texts if isinstance(text, str)), ""))


def _spread(values: list[float]) -> str:
    if len(values) < 2:  # noqa: PLR2004
        return "-"
    return f"{statistics.median(values):.2%} / {statistics.quantiles(values, n=10)[-1]:.1%}"


if __name__ == "__main__":
    sys.exit(main())
