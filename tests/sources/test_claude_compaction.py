from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Session = Callable[..., Recording]

USAGE = {"input_tokens": 9, "output_tokens": 1}


def row(kind: str, name: str, parent: str | None, text: str, **more: object) -> dict[str, Any]:
    message = {"role": kind, "content": text, "usage": USAGE}
    return {"type": kind, "uuid": name, "parentUuid": parent, "message": message, **more}


def boundary(logical: str | None, **metadata: object) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "B",
        "parentUuid": None,
        "logicalParentUuid": logical,
        "compactMetadata": {"trigger": "auto", **metadata},
    }


BEFORE = [
    row("user", "1", None, "a"),
    row("assistant", "2", "1", "b"),
    row("user", "3", "2", "c"),
    row("assistant", "4", "3", "d"),
]
SUMMARY = row("user", "S", "B", "what happened", isCompactSummary=True)
WHOLE = ["a", "b", "c", "d", "e", "f"]


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


def after(parent: str) -> list[dict[str, Any]]:
    return [row("user", "5", parent, "e"), row("assistant", "6", "5", "f")]


def holds_all(recording: Recording) -> None:
    assert said(recording) == WHOLE
    exact = [point.usage is not None for point in recording.requests]
    assert exact == [True, True, False]


def test_history_goes_on_before_the_boundary(session: Session) -> None:
    """The full history crosses a compaction, without the summary; usage ends there."""
    recording = session(*BEFORE, boundary("4"), SUMMARY, *after("S"))
    holds_all(recording)
    assert recording.warnings == []


def test_two_compactions(session: Session) -> None:
    """Each compaction is crossed."""
    recording = session(
        *BEFORE,
        boundary("4"),
        SUMMARY,
        *after("S"),
        {**boundary("6"), "uuid": "C"},
        {**SUMMARY, "uuid": "T", "parentUuid": "C"},
        row("user", "7", "T", "g"),
    )
    assert said(recording) == [*WHOLE, "g"]


@pytest.mark.parametrize("logical", ["lost", None])
def test_old_leaf_is_missing(session: Session, logical: str | None) -> None:
    """Where the old leaf is not in the file, the row before the boundary stands in."""
    recording = session(*BEFORE, boundary(logical), SUMMARY, *after("S"))
    holds_all(recording)
    assert recording.warnings == ["line 5: the row before it is missing, file order used"]


KEPT = {"preservedMessages": {"anchorUuid": "S", "uuids": ["3", "4"]}}
SEGMENT = {"preservedSegment": {"headUuid": "3", "anchorUuid": "S", "tailUuid": "4"}}


@pytest.mark.parametrize("metadata", [KEPT, SEGMENT, {**KEPT, **SEGMENT}])
@pytest.mark.parametrize("logical", ["4", None])
def test_kept_rows_stay_where_they_are(
    session: Session, metadata: dict[str, Any], logical: str | None
) -> None:
    """Rows that were kept come once, if later rows hang on the summary."""
    holds_all(session(*BEFORE, boundary(logical, **metadata), SUMMARY, *after("S")))


@pytest.mark.parametrize("metadata", [KEPT, SEGMENT])
@pytest.mark.parametrize("logical", ["4", None])
def test_later_rows_hang_on_kept_rows(
    session: Session, metadata: dict[str, Any], logical: str | None
) -> None:
    """Rows that were kept come once, if the chain passes the boundary by."""
    holds_all(session(*BEFORE, boundary(logical, **metadata), SUMMARY, *after("4")))


@pytest.mark.parametrize("metadata", [KEPT, SEGMENT, {}])
@pytest.mark.parametrize("logical", ["4", "2"])
def test_kept_rows_are_written_again(
    session: Session, metadata: dict[str, Any], logical: str
) -> None:
    """Rows that were kept and written again behind the summary come once."""
    again = [{**BEFORE[2], "parentUuid": "S"}, BEFORE[3]]
    recording = session(*BEFORE, boundary(logical, **metadata), SUMMARY, *again, *after("4"))
    holds_all(recording)
    assert recording.warnings == []


def test_summary_without_boundary(session: Session) -> None:
    """Older files mark the summary only; it is left out all the same."""
    recording = session(*BEFORE, {**SUMMARY, "parentUuid": None}, *after("S"))
    holds_all(recording)


def test_cleared_results_end_usage(session: Session) -> None:
    """After a boundary within the chain usage is about something else than this history."""
    small = {**boundary(None), "subtype": "microcompact_boundary", "parentUuid": "4"}
    holds_all(session(*BEFORE, small, *after("B")))


def test_rewind_to_before_the_boundary(session: Session) -> None:
    """A compaction on a branch that was left does not end usage."""
    recording = session(*BEFORE, boundary("4"), SUMMARY, row("user", "5", "2", "again"),
                        row("assistant", "6", "5", "f"))  # fmt: skip
    assert said(recording) == ["a", "b", "again", "f"]
    assert all(point.usage for point in recording.requests)
