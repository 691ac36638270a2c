"""What was done, told by calls and results alone."""

from typing import Any

from compactor.summarize import Event, Record, What, record

READERS = frozenset({"Read", "Grep", "compact_context"})


def done(*events: Event) -> Record:
    return record(events, READERS.__contains__)


def called(call: str, tool: str, **arguments: Any) -> Event:
    return Event(0, What.CALLED, "{}", tool, call, arguments)


def returned(call: str, text: str, *, failed: bool = False) -> Event:
    return Event(1, What.RETURNED, text, None, call, failed=failed)


def test_an_action_has_its_outcome() -> None:
    made = done(
        called("a", "Bash", command="pytest -q"), returned("a", "...\n3 failed, 4 passed\n\n")
    )
    assert made.actions == ("Bash: pytest -q → 3 failed, 4 passed",)


def test_failures_and_lost_results_are_told_as_such() -> None:
    made = done(
        called("a", "Bash", command="make"),
        returned("a", "no rule", failed=True),
        called("b", "Bash", command="rm x"),
    )
    assert made.actions == ("Bash: make → failed: no rule", "Bash: rm x → no result on record")


def test_parallel_calls_keep_their_own_results() -> None:
    made = done(
        called("a", "Bash", command="one"),
        called("b", "Bash", command="two"),
        returned("b", "2"),
        returned("a", "1"),
    )
    assert made.actions == ("Bash: two → 2", "Bash: one → 1")


def test_a_run_of_one_action_is_told_once() -> None:
    pair = called("a", "Bash", command="make"), returned("a", "ok")
    assert done(*pair, *pair, *pair).actions == ("Bash: make → ok (3 times)",)


def test_files_are_told_once_by_what_was_done_to_them_last() -> None:
    made = done(
        called("a", "Read", file_path="/w/p/src/a.py"),
        called("b", "Read", file_path="/w/p/src/b.py"),
        called("c", "Edit", file_path="/w/p/src/b.py"),
        called("d", "Read", file_path="/w/p/src/a.py"),
    )
    assert (made.root, made.read, made.written) == ("/w/p/src/", ("a.py",), ("b.py",))


def test_paths_without_a_common_folder_stay_whole() -> None:
    made = done(called("a", "Read", path="/etc/x"), called("b", "Read", path="/var/y"))
    assert (made.root, made.read) == (None, ("/etc/x", "/var/y"))
    assert done(called("a", "Read", path="src/a.py")).read == ("src/a.py",)


def test_reading_is_no_action_and_the_last_checkpoint_stands() -> None:
    made = done(
        called("a", "Grep", pattern="x"),
        returned("a", "y"),
        called("b", "compact_context", checkpoint=" first "),
        called("c", "compact_context", checkpoint="second"),
    )
    assert made.checkpoint == "second"
    assert made.actions == ()


def test_long_commands_and_outputs_are_cut_to_a_line() -> None:
    [action] = done(
        called("a", "Bash", command="x" * 10_000), returned("a", "y\n" * 100_000)
    ).actions
    assert len(action) < 400
    assert "\n" not in action
