"""Open a session's recorder, whatever became of its key, and close one that was forgotten."""

from collections.abc import Callable
from contextlib import suppress

from compactor.storage import MissingKey, Vault

from .recorder import Recorder

_SUCCESSORS, _LONGEST_BASE = 1_000, 60


def open_recorder(  # noqa: PLR0913 - what a session's first record says
    open_vault: Callable[[], Vault],
    name: str,
    wire: str,
    wait: float,
    *,
    not_human: str,
    parent: str | None = None,
) -> Recorder:
    """Open a session for writing, or the first of its successors whose key is here."""
    lost: MissingKey | None = None
    for number in range(1, _SUCCESSORS):
        own = name if number == 1 else f"{name[:_LONGEST_BASE].rstrip('._-')}.{number}"
        try:
            continues = name if number > 1 else None
            return Recorder(
                open_vault, own, wire, wait, continues=continues, parent=parent, not_human=not_human
            )
        except MissingKey as error:
            lost = lost or error
    assert lost is not None  # noqa: S101 - the loop has run
    raise lost


def close_late(recorder: Recorder) -> None:
    """Close a session that its owner forgot, at the latest when the interpreter ends."""
    with suppress(Exception):
        recorder.close()
