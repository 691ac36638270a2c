from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.sources import Recording

    Document = Callable[..., list[Recording]]

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
TEXTS = [
    {"role": "system", "content": "rules", "agent": "main"},
    {"role": "user", "content": "demo", "is_demo": True},
    {"role": "user", "content": "task"},
    {"role": "assistant", "content": "think\nls", "thought": "think", "action": "ls"},
    {"role": "user", "content": "files"},
    {"role": "assistant", "content": "submit", "thought": "", "action": "submit"},
]
CALLS: list[dict[str, Any]] = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": [{"type": "text", "text": "task"}]},
    {"role": "assistant", "content": "think", "action": "ls", "tool_calls": [CALL]},
    {"role": "tool", "content": "files", "tool_call_ids": ["c"]},
    {"role": "assistant", "content": "end"},
]
STEPS = [
    {"messages": TEXTS, "action": "ls", "observation": "files", "thought": "think", "response": ""},
    {"action": "submit", "observation": "", "thought": "", "response": "submit it"},
]


def said(recording: Recording) -> list[Any]:
    return [message["content"] for message in recording.messages]


def test_texts(document: Document) -> None:
    """Old trajectories are texts; the task is the human's, demonstrations and output are not."""
    (recording,) = document({"trajectory": STEPS, "history": TEXTS, "info": {}}, indent=1)
    assert recording.format == "swe_agent"
    assert said(recording) == ["demo", "task", "think\nls", "files", "submit"]
    assert [(p.length, p.human) for p in recording.requests] == [(2, 1), (4, 1)]
    assert recording.warnings == []


def test_calls(document: Document) -> None:
    """Newer ones have calls, and name the calls of a result in a list."""
    (recording,) = document({"history": CALLS})
    assert said(recording)[1:3] == [
        [
            {"type": "text", "text": "think"},
            {"type": "tool_use", "id": "c", "name": "bash", "input": {"a": 1}},
        ],
        [{"type": "tool_result", "tool_use_id": "c", "content": "files"}],
    ]
    assert [(p.length, p.human) for p in recording.requests] == [(1, 0), (3, 0)]


def test_steps_alone(document: Document) -> None:
    """Without a history the steps tell what was said."""
    (recording,) = document({"trajectory": STEPS, "info": {}})
    assert said(recording)[1:] == ["think\nls", "files", "submit it"]


def test_damaged_trajectory(document: Document) -> None:
    """What is no message is counted, what is torn is left out."""
    (recording,) = document(b'{"history": [7, {"role": "user", "content": "task"}, {"role": "as')
    assert said(recording) == ["task"]
    assert recording.warnings[0].startswith("byte")
    assert recording.warnings[1] == "message 1: not an object, left out"


def test_tau_bench(document: Document) -> None:
    """Each run is a conversation; nobody but the user's side is human."""
    traj = [
        {"role": "system", "content": "policy"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "name": "bash", "content": "found"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "###STOP###"},
    ]
    run = {"task_id": 1, "reward": 1.0, "info": {"task": {"actions": [{}]}}, "traj": traj}
    for found in (document([run, run]), document(run, run)):
        assert [recording.format for recording in found] == ["tau_bench"] * 2
        for recording in found:
            assert len(recording.messages) == 5
            assert [(p.length, p.human) for p in recording.requests] == [(1, 0), (3, 0)]
    (recording,) = document(run)
    assert recording.messages[0] == {"role": "user", "content": "hello"}
