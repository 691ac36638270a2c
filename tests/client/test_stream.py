"""The reply that a stream's events come to."""

from typing import Any

import pytest

from compactor.integrations.anthropic_stream import Reply
from tests.loopback import replies

USAGE = {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 40}
CITATION = {"type": "char_location", "cited_text": "yes", "start_char_index": 0}


def message(*blocks: Any) -> dict[str, Any]:
    made = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    return {**made, "content": list(blocks), **ending, "usage": USAGE}


def heard(events: Any) -> Any:
    reply = Reply()
    told = [reply.take(event) for event in events]
    assert told[:-1] == [None] * (len(told) - 1)
    return told[-1]


def delta(**fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": fields}


def test_a_reply_is_put_together() -> None:
    """Text, thinking, calls and blocks without deltas come out as the provider has them."""
    whole = message(
        {"type": "thinking", "thinking": "I see. " * 40, "signature": "s" * 90},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "é" * 100},
        {
            "type": "tool_use",
            "id": "a",
            "name": "run",
            "input": {"command": "ls " * 60, "n": 2**70},
        },
        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
    )
    assert heard(replies.events(whole)) == whole


def test_citations() -> None:
    """Citations that come by deltas are added to those of the start."""
    start, *rest = replies.events(message({"type": "text", "text": "", "citations": None}))
    added = [delta(type="citations_delta", citation=CITATION)] * 2
    opened, stop = rest[0], rest[-3:]
    reply = heard([start, opened, *added, delta(type="text_delta", text="Yes."), *stop])
    assert reply["content"] == [{"type": "text", "text": "Yes.", "citations": [CITATION] * 2}]


@pytest.mark.parametrize(
    "odd",
    [
        delta(type="hologram_delta", hologram="?"),
        delta(type="input_json_delta", partial_json='{"path": "a.'),
    ],
    ids=["an unknown delta", "an input that was cut off"],
)
def test_what_is_not_understood(odd: dict[str, Any]) -> None:
    """A reply of which a part is not understood is known by its usage and its end only."""
    start, opened, *rest = replies.events(message({"type": "tool_use", "id": "a", "input": {}}))
    reply = heard([start, opened, odd, {"type": "news"}, *rest[-3:]])
    assert "content" not in reply
    assert (reply["usage"], reply["stop_reason"]) == (USAGE, "end_turn")


def test_counts_of_the_end() -> None:
    """Counts at the end are of the whole; one that is left out there stands as it was."""
    start, *rest = replies.events(message())
    end = {**rest[-2], "usage": {"input_tokens": None, "output_tokens": 40}}
    assert heard([start, end, rest[-1]])["usage"] == USAGE
