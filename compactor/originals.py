"""The exact originals behind handles, found in a history."""

import hashlib

from .decisions import AnyDecision, RangeDecision
from .index import Index
from .ledger import find_span
from .messages import canonical
from .render import Renderer
from .wire import Wire


def original(renderer: Renderer, handle: str) -> bytes | None:
    """Return what a handle of the sets in force names, from the history at hand; else None."""
    for one in reversed(renderer.ledger.sets):
        for decision in one.decisions:
            if decision.handle == handle:
                return in_history(decision, renderer.index, renderer.wire)
    return None


def in_history(decision: AnyDecision, index: Index, wire: Wire) -> bytes | None:
    """Return what a decision hides, from a history; None where it does not stand there."""
    if isinstance(decision, RangeDecision):
        start = find_span(decision.span, index)
        if start is None:
            return None
        return canonical(index.plain[start : start + decision.span.length])
    for message, block in index.places(decision.target.digest):
        data = wire.block_bytes(index.plain[message], block)
        if hashlib.sha256(data).digest() == decision.content:
            return data
    return None
