"""`compactor replay`, as people and programs call it."""

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

import compactor.cli
from compactor import Compactor, Keys, Policy, Stage, Transcript
from compactor.cli.replay import replay as command
from compactor.replay import replay
from compactor.sources import Recording, RequestPoint, formats, load
from compactor.tokens import estimate_text

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts" / "demo-session.jsonl"
PROGRAM = Path(sys.executable).with_name("compactor")

COUNTS = (
    *("messages", "requests", "raw_tokens", "view_tokens", "prefix_breaks"),
    *("history_bytes", "vault_bytes", "unreadable", "differing"),
    *("view_mismatches", "illegal_views"),
)
ROW = {*COUNTS, "path", "part", "peak_tokens", "window", "cost_ratio", "decisions", "seconds"}
PROOFS = ("unreadable", "differing", "view_mismatches", "illegal_views")
STAGES = {"persist", "mask", "archive", "summarize"}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders of one's own for everything that the command might write to."""
    for name in ("COMPACTOR", "COMPACTOR_HOME", "COMPACTOR_KEY", "COMPACTOR_KEY_FILE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    folders = {"TMPDIR": tmp_path / "tmp", "COMPACTOR_STATE": tmp_path / "state"}
    for name, folder in folders.items():
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folders


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the installed program, its output not on a terminal."""
    words = [str(PROGRAM), "replay", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def invoke(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(command, list(map(str, arguments)))


def sizes(*numbers: int) -> list[dict[str, Any]]:
    """Make a session of Claude Code whose tool results have these sizes."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Count the lines."}]
    for number, size in enumerate(numbers):
        call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"n": number}}
        text = (f"line of output {number}\n" * (size // 15 + 1))[:size]
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return [*messages, {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}]


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Path]:
    """Write a session file whose tool results have the sizes given."""

    def write(*numbers: int, name: str = "small.jsonl") -> Path:
        rows = [
            {
                "type": message["role"],
                "uuid": f"u{number}",
                "parentUuid": f"u{number - 1}" if number else None,
                "sessionId": "s",
                "timestamp": f"2026-04-06T09:{number // 60:02}:{number % 60:02}.000Z",
                "message": {**message, "id": f"msg_{number}"},
            }
            for number, message in enumerate(sizes(*numbers))
        ]
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write


def check_row(row: dict[str, Any]) -> None:
    assert set(row) - {"over_budget"} == ROW
    assert all(type(row[name]) is int and row[name] >= 0 for name in COUNTS)
    assert set(row["decisions"]) == STAGES
    assert all(row[name] == 0 for name in PROOFS)
    assert row["cost_ratio"] > 0
    assert row["seconds"] > 0


def test_json_has_the_shape_that_programs_rely_on(environment: dict[str, Path]) -> None:
    """One object on stdout and nothing else; all proofs hold; both stages act; nothing stays."""
    done = run(DEMO, "--window", 30_000, "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert set(data) == {"sessions", "totals"}
    assert done.stdout.lstrip().startswith("{")
    (row,) = data["sessions"]
    check_row(row)
    recording = load(DEMO)
    assert row["path"] == str(DEMO)
    assert row["window"] == 30_000
    assert row["requests"] == len(recording.requests)
    assert row["messages"] == recording.requests[-1].length
    used = recording.messages[: row["messages"]]
    exact = sum(len(orjson.dumps(message, option=orjson.OPT_SORT_KEYS)) for message in used)
    assert row["history_bytes"] == exact
    assert row["decisions"]["persist"] > 0
    assert row["decisions"]["mask"] > 0
    assert row["decisions"]["summarize"] == 0
    assert row["view_tokens"] < row["raw_tokens"]
    assert row["cost_ratio"] < 1
    assert 0 < row["vault_bytes"] < row["history_bytes"]
    assert list(environment["TMPDIR"].iterdir()) == []
    assert list(environment["COMPACTOR_STATE"].iterdir()) == []


def test_totals_are_sums(session: Callable[..., Path]) -> None:
    """Counts add up; the ratio is that of the sums, not a mean of ratios."""
    one = session(*[2_000] * 20, name="one.jsonl")
    two = session(*[300] * 3, name="two.jsonl")
    three = session(*[40_000] * 2, name="three.jsonl")
    data = json.loads(invoke(one, two, three, "--window", 8_000, "--json").stdout)
    rows, totals = data["sessions"], data["totals"]
    assert [Path(row["path"]).name for row in rows] == ["one.jsonl", "two.jsonl", "three.jsonl"]
    for row in rows:
        check_row(row)
    for name in COUNTS:
        assert totals[name] == sum(row[name] for row in rows)
    for stage in STAGES:
        assert totals["decisions"][stage] == sum(row["decisions"][stage] for row in rows)
    assert totals["seconds"] == pytest.approx(sum(row["seconds"] for row in rows))
    ratios = [row["cost_ratio"] for row in rows]
    assert min(ratios) < totals["cost_ratio"] < max(ratios)
    assert totals["cost_ratio"] != pytest.approx(sum(ratios) / len(ratios), rel=1e-3)
    costs = [cost_of(load(path), 8_000) for path in (one, two, three)]
    expected = sum(view for _, view, _ in costs) / sum(raw for raw, _, _ in costs)
    assert totals["cost_ratio"] == pytest.approx(expected)


def tokens(message: dict[str, Any]) -> int:
    """Estimate a message, block by block; a call's input by its bytes over three, and 30."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    total = 0
    for block in blocks:
        text = block.get("text") or block.get("content") or ""
        if block["type"] == "tool_use":
            text = json.dumps(block["input"], separators=(",", ":"))
            total += len(text.encode()) // 3 + 30
        else:
            total += estimate_text(text)
    return total


def cost_of(recording: Recording, window: int) -> tuple[float, float, int]:
    """Work out anew what both cost under prompt caching, and how often the views' prefix broke."""
    raw = view = 0.0
    breaks = 0
    before: list[list[Any]] = [[], []]
    folder = Path(os.environ["TMPDIR"]) / "cost"
    folder.mkdir(exist_ok=True)
    keys = Keys(bytes(32), folder / "state")
    stages = tuple(stage for stage in Policy().stages if stage is not Stage.SUMMARIZE)
    policy = Policy(window=window, stages=stages)  # as `replay` without --summarize
    with Compactor.open(folder, policy=policy, keys=keys) as opened:
        for point in recording.requests:
            history = recording.messages[: point.length]
            both = [history, opened.view(history).messages]
            costs = []
            for number, messages in enumerate(both):
                pairs = zip(before[number], messages, strict=False)
                same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(before[number]))
                held = sum(map(tokens, messages[:same]))
                costs.append(0.1 * held + 1.25 * sum(map(tokens, messages[same:])))
                breaks += number == 1 and same < len(before[number])
                before[number] = messages
            raw, view = raw + costs[0], view + costs[1]
    return raw, view, breaks


@pytest.mark.parametrize(
    ("numbers", "window"),
    [([2_000] * 30, 8_000), ([40_000, 100, 35_000, 100], 50_000), ([500] * 4, 200_000)],
)
def test_costs_are_those_of_an_independent_count(
    numbers: list[int], window: int, session: Callable[..., Path]
) -> None:
    """A tenth for the longest common prefix, five quarters for the rest of each request."""
    recording = load(session(*numbers))
    raw, view, breaks = cost_of(recording, window)
    data = json.loads(invoke(recording.path, "--window", window, "--json").stdout)
    (row,) = data["sessions"]
    assert row["cost_ratio"] == pytest.approx(view / raw)
    assert row["prefix_breaks"] == breaks
    assert row["raw_tokens"] == sum(
        sum(map(tokens, recording.messages[: point.length])) for point in recording.requests
    )


def test_until_stops_each_session(session: Callable[..., Path]) -> None:
    """`--until N` makes N requests of each session; more than there are is all of them."""
    one, two = session(*[100] * 9, name="one.jsonl"), session(100, name="two.jsonl")
    data = json.loads(invoke(one, two, "--until", 4, "--json").stdout)
    assert [row["requests"] for row in data["sessions"]] == [4, 2]
    assert [row["messages"] for row in data["sessions"]] == [7, 3]


def test_scale_plays_a_session_several_times() -> None:
    """`--scale 3` is one legal conversation of three times the requests, proven as a whole."""
    whole = json.loads(invoke(DEMO, "--until", 60, "--json").stdout)["totals"]
    done = invoke(DEMO, "--scale", 3, "--window", 60_000, "--json")
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)["sessions"]
    check_row(row)
    recording = load(DEMO)
    assert row["requests"] == 3 * len(recording.requests)
    assert row["messages"] > 2.9 * recording.requests[-1].length
    assert row["raw_tokens"] > 8 * whole["raw_tokens"]


def test_a_kept_vault_opens(environment: dict[str, Path], tmp_path: Path) -> None:
    """`--vault` leaves a transcript that opens by the name that is printed, with the user's key."""
    vault = tmp_path / "kept" / "here"
    done = run(DEMO, "--vault", vault, "--until", 60, "--window", 20_000)
    assert done.returncode == 0
    (name,) = (folder.name for folder in (vault / ".transcripts" / "s").iterdir())
    with Transcript.open(vault, name) as transcript:
        requests = list(transcript.requests())
        assert len(requests) == 60
        assert all(request.whole for request in requests)
        assert transcript.handles()
        assert all(transcript.read(handle) for handle in transcript.handles())
        recording = load(DEMO)
        assert transcript.messages() == recording.messages[: recording.requests[59].length]
    assert (environment["COMPACTOR_STATE"] / "host.key").exists()
    assert list(environment["TMPDIR"].iterdir()) == []
    with Transcript.open(vault / ".transcripts", name) as transcript:
        assert transcript.handles()


def test_the_name_of_a_kept_session_stands_on_one_line(
    session: Callable[..., Path], tmp_path: Path
) -> None:
    """Folder and name can be copied from the output, however long they are."""
    vault = tmp_path / "a-folder-with-a-rather-long-name" / "and-one-more-folder-in-it"
    done = run(session(100, name="a-session-of-some-length.jsonl"), "--vault", vault)
    (name,) = (folder.name for folder in (vault / ".transcripts" / "s").iterdir())
    kept = rf"kept in {re.escape(str(vault))}(/\.transcripts)?: {name}"
    assert re.search(rf"^{kept}$", done.stdout, re.MULTILINE)


def test_two_runs_into_one_vault(session: Callable[..., Path], tmp_path: Path) -> None:
    """Each run has a session of its own, also for the same file."""
    path = session(*[3_000] * 8)
    for _ in range(2):
        assert invoke(path, path, "--vault", tmp_path / "kept", "--window", 8_000).exit_code == 0
    assert len(list((tmp_path / "kept" / ".transcripts" / "s").iterdir())) == 4


def refused(done: subprocess.CompletedProcess[str], code: int) -> None:
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_unknown_format(tmp_path: Path) -> None:
    """Exit 2, an error, and a hint that names the formats."""
    path = tmp_path / "notes.jsonl"
    path.write_text('{"some": "json"}\n')
    done = run(path)
    refused(done, 2)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert str(path) in lines[0]
    assert lines[1].startswith("hint: ")
    assert "pi" in lines[1]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00\xff\xfe binary", b"[1, 2]\n"])
def test_a_file_that_is_no_session(content: bytes, tmp_path: Path) -> None:
    """Exit 2 with an error and a hint, whatever is in it."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    done = run(path)
    refused(done, 2)
    assert re.search(r"^error: .+\nhint: .+\n\Z", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.jsonl"],
        [],
        [DEMO, "--window", "10"],
        [DEMO, "--until", "0"],
        [DEMO, "--scale", "0"],
        [DEMO, "--vault", DEMO],
        [DEMO, "--unknown"],
        [ROOT],
    ],
)
def test_a_wrong_call(arguments: list[object]) -> None:
    """Exit 2 and no traceback."""
    done = run(*arguments)
    refused(done, 2)
    assert "error" in done.stderr.lower()


def test_a_vault_that_cannot_be_made(session: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 3: a file stands where a folder must be."""
    (tmp_path / "file").write_text("")
    done = run(session(100), "--vault", tmp_path / "file" / "below")
    refused(done, 3)
    assert re.search(r"^error: .", done.stderr, re.MULTILINE)


def test_a_vault_that_is_not_safe(session: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 3: others may write to it."""
    vault = tmp_path / "kept" / ".transcripts"
    vault.mkdir(parents=True)
    vault.chmod(0o777)
    done = run(session(100), "--vault", tmp_path / "kept")
    refused(done, 3)
    assert re.search(r"^error: .", done.stderr, re.MULTILINE)


def test_a_key_that_is_none(
    session: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 with a hint."""
    monkeypatch.setenv("COMPACTOR_KEY", "too short")
    done = run(session(100), "--vault", tmp_path / "kept")
    refused(done, 3)
    assert re.search(r"^error: .+\nhint: .+\n\Z", done.stderr, re.MULTILINE)


def test_a_part_that_reads_back_otherwise(
    session: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1, and the counts say which proof failed."""
    read = Transcript.read
    monkeypatch.setattr(Transcript, "read", lambda self, handle: read(self, handle) + b"!")
    done = invoke(session(*[3_000] * 8), "--window", 8_000, "--json")
    assert done.exit_code == 1
    totals = json.loads(done.stdout)["totals"]
    assert totals["decisions"]["mask"] > 0
    assert totals["decisions"]["archive"] > 0
    assert totals["differing"] == sum(totals["decisions"].values())
    assert totals["unreadable"] == totals["view_mismatches"] == totals["illegal_views"] == 0


def test_a_part_that_does_not_read_back(
    session: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1: a blob that is gone makes its part unreadable and the views not rebuilt."""
    read = Transcript.read

    def vanishing(_: Transcript, handle: str) -> bytes:
        raise OSError if re.fullmatch("(out|msgs)-[a-z2-7]+", handle) else AssertionError

    monkeypatch.setattr(Transcript, "read", vanishing)
    done = invoke(session(*[3_000] * 8), "--window", 8_000, "--json")
    monkeypatch.setattr(Transcript, "read", read)
    assert done.exit_code == 1
    totals = json.loads(done.stdout)["totals"]
    assert totals["decisions"]["mask"] > 0
    assert totals["decisions"]["archive"] > 0
    assert totals["unreadable"] == sum(totals["decisions"].values())


def test_a_view_that_is_not_rebuilt(
    session: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1: a request missing from the transcript is a mismatch, and those after it."""
    requests = Transcript.requests

    def fewer(self: Transcript) -> Iterator[Any]:
        yield from list(requests(self))[1:]

    monkeypatch.setattr(Transcript, "requests", fewer)
    done = invoke(session(*[3_000] * 8), "--window", 8_000)
    assert done.exit_code == 1
    assert "proofs failed" in done.stdout
    assert "proven" not in done.stdout


def replaced(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Change the first block of a message, in a copy."""
    first, *others = message["content"]
    return {**message, "content": [{**first, **fields}, *others]}


def unread_hidden(view: list[Any]) -> list[Any]:
    return [*view[:-1], replaced(view[-1], content="gone " * 60)]


def unread_dropped(view: list[Any]) -> list[Any]:
    return view[:-1]


def unread_answers_another_call(view: list[Any]) -> list[Any]:
    return [*view[:-1], replaced(view[-1], tool_use_id="t99")]


def request_reworded(view: list[Any]) -> list[Any]:
    return [{**view[0], "content": "Count something."}, *view[1:]]


def request_said_elsewhere(view: list[Any]) -> list[Any]:
    said = {"role": "assistant", "content": [{"type": "text", "text": view[0]["content"]}]}
    return [{"role": "user", "content": "…"}, said, *view[1:]]


def exchange_left_out_without_a_note(view: list[Any]) -> list[Any]:
    return [view[0], *view[3:]]


def call_left_out(view: list[Any]) -> list[Any]:
    return [view[0], {"role": "user", "content": "[1 message archived]"}, *view[2:]]


def unread_archived(view: list[Any]) -> list[Any]:
    return [view[0], {"role": "user", "content": "[all messages archived]"}]


def call_altered(view: list[Any]) -> list[Any]:
    return [*view[:-2], replaced(view[-2], name="Write"), view[-1]]


def block_added(view: list[Any]) -> list[Any]:
    text = {"type": "text", "text": "And this."}
    return [*view[:-1], {**view[-1], "content": [*view[-1]["content"], text]}]


@pytest.mark.parametrize(
    "spoil",
    [
        unread_hidden,
        unread_dropped,
        unread_answers_another_call,
        request_reworded,
        request_said_elsewhere,
        exchange_left_out_without_a_note,
        call_left_out,
        unread_archived,
        call_altered,
        block_added,
    ],
)
@pytest.mark.parametrize("only", [False, True])
def test_a_view_that_breaks_a_rule(
    spoil: Callable[[list[Any]], list[Any]],
    only: bool,  # noqa: FBT001 - pytest passes parameters by name
    session: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit 1: the judge works from the messages, not from what the engine says of them."""
    view = Compactor.view

    def spoiled(self: Compactor, messages: list[Any], **request: Any) -> Any:
        made = view(self, messages, **request)
        now = len(messages) == 9 or (len(messages) > 3 and not only)
        return dataclasses.replace(made, messages=spoil(made.messages)) if now else made

    monkeypatch.setattr(Compactor, "view", spoiled)
    done = invoke(session(*[3_000] * 4), "--json")
    assert done.exit_code == 1
    assert 1 <= json.loads(done.stdout)["totals"]["illegal_views"] <= (1 if only else 3)


def test_views_that_keep_the_rules_are_not_blamed(session: Callable[..., Path]) -> None:
    """Masks, archives by size and by count, and previews stand where they may."""
    path = session(*[2_000, 300, 40_000, 9_000] * 10)
    for policy in ("default", "frugal", "roomy", "course"):
        done = invoke(path, "--json", "--window", 12_000, "--policy", policy)
        assert done.exit_code == 0
        assert json.loads(done.stdout)["totals"]["decisions"]["archive"] > 0


def test_a_file_of_several_conversations(tmp_path: Path) -> None:
    """Each is a row of its own with its number, and a warning names it."""
    path = tmp_path / "runs.json"
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    runs: list[dict[str, Any]] = [
        {"task_id": n, "reward": 1.0, "info": {}, "traj": said * n} for n in (1, 2, 3)
    ]
    path.write_text(json.dumps(runs))
    data = json.loads(invoke(path, "--json").stdout)
    rows = data["sessions"]
    assert [row["part"] for row in rows] == [1, 2, 3]
    assert [row["requests"] for row in rows] == [1, 2, 3]
    assert data["totals"]["requests"] == 6
    shown = run(path).stdout
    names = re.findall(r"^session +(.+)$", shown, re.MULTILINE)
    assert names == ["runs.json", "runs.json, part 2", "runs.json, part 3"]


def test_presets_differ(session: Callable[..., Path]) -> None:
    """`--policy` names one; the default is `default`."""
    path = session(*[9_000] * 30)
    rows = {
        words: invoke(path, "--window", 50_000, "--json", *words)
        for words in ((), ("--policy", "default"), ("--policy", "frugal"), ("--policy", "roomy"))
    }
    sent = [json.loads(done.stdout)["totals"]["view_tokens"] for done in rows.values()]
    assert sent[0] == sent[1]
    assert len({*sent}) == 3


def test_a_file_of_settings(session: Callable[..., Path], tmp_path: Path) -> None:
    """Its window holds unless `--window` is given; `--policy` takes the place of its preset."""
    path, settings = session(*[3_000] * 12), tmp_path / "mine.toml"
    settings.write_text('preset = "course"\nwindow = 9_000\n[mask]\nkeep_recent = 1\n')

    def totals(*words: object) -> Any:
        done = invoke(path, "--json", "--policy-file", settings, *words)
        assert done.exit_code == 0
        return json.loads(done.stdout)["totals"]

    assert totals()["window"] == 9_000
    assert totals("--window", 8_000)["window"] == 8_000
    assert totals()["decisions"] != totals("--policy", "default")["decisions"]


@pytest.mark.parametrize(
    "text", ["not TOML", "keep = 1", 'preset = "none"', "preset = []", "trigger = 7", "[persist"]
)
def test_settings_that_are_none(text: str, session: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 2 with an error and a hint."""
    (tmp_path / "mine.toml").write_text(text)
    done = run(session(100), "--policy-file", tmp_path / "mine.toml")
    refused(done, 2)
    assert re.search(r"^error: .+\nhint: .+\n\Z", done.stderr, re.MULTILINE)


def test_help_has_examples_and_exit_codes() -> None:
    """What a caller needs to know stands in `--help`."""
    done = run("--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert "compactor replay scripts/demo-session.jsonl" in done.stdout
    codes = done.stdout[done.stdout.index("Exit codes:") :]
    assert re.findall(r"^ +(\d) ", codes, re.MULTILINE) == ["0", "1", "2", "3"]
    for option in ("--window", "--policy", "--vault", "--scale", "--json", "--until"):
        assert option in done.stdout
    assert all(name in done.stdout for name in formats())


def test_the_group_lists_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compactor --help` names every command, and its exit is clean."""
    monkeypatch.setattr(sys, "argv", ["compactor", "--help"])
    with pytest.raises(SystemExit) as ended:
        compactor.cli.main()
    assert ended.value.code == 0


def test_people_get_a_table_and_no_chart_in_a_pipe(session: Callable[..., Path]) -> None:
    """Without a terminal: no control characters, no chart, nothing on stderr."""
    done = run(session(*[3_000] * 12), "--window", 8_000)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "█" not in done.stdout
    assert "proven: " in done.stdout
    assert "0 unreadable, 0 differing, 0 view mismatches, 0 illegal views" in " ".join(
        done.stdout.split()
    )


def on_terminal(arguments: list[object], *, stdout: bool, stderr: bool) -> tuple[int, str, str]:
    """Run the program with its output on a terminal; return the code, the terminal, the rest."""
    leader, follower = pty.openpty()
    words = [str(PROGRAM), "replay", *map(str, arguments)]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=follower if stdout else subprocess.PIPE,
        stderr=follower if stderr else subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            data = os.read(leader, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not data:
            break
        seen += data
    rest, _ = process.communicate(timeout=60)
    os.close(leader)
    return process.returncode, seen.decode(), (rest or b"").decode()


def test_a_terminal_gets_a_chart(session: Callable[..., Path]) -> None:
    """The context over the requests: what was sent, what was left out, the window."""
    path = session(*[3_000] * 20)
    code, seen, _ = on_terminal([path, "--window", 8_000], stdout=True, stderr=False)
    assert code == 0
    assert all(sign in seen for sign in ("█ sent", "░ left out", "─ window"))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).splitlines()
    drawn = [line for line in lines if "█" in line or "░" in line]
    assert len(drawn) > 4
    assert max(map(len, drawn)) <= 100


def test_progress_goes_to_stderr_only() -> None:
    """With stderr on a terminal and stdout in a pipe, the data stay clean."""
    arguments = [DEMO, "--window", 30_000, "--json"]
    code, seen, rest = on_terminal(arguments, stdout=False, stderr=True)
    assert code == 0
    assert "demo-session.jsonl" in seen
    assert json.loads(rest)["totals"]["requests"] > 0


def test_warnings_of_the_importer_go_to_stderr(session: Callable[..., Path]) -> None:
    """A damaged line is named there, and the data stay clean."""
    path = session(100, 100)
    path.write_text('{"broken": \n' + path.read_text())
    done = run(path, "--json")
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {path}: ")
    assert json.loads(done.stdout)["sessions"][0]["requests"] == 3


NASTY = "[bold]\x1b]0;owned\x07[red].jsonl"


def test_a_file_name_is_safe_on_a_terminal(session: Callable[..., Path]) -> None:
    """Control characters and markup in a name are shown, not obeyed."""
    code, seen, _ = on_terminal([session(100, name=NASTY)], stdout=True, stderr=False)
    assert code == 0
    assert "[bold]" in seen
    assert "\x1b]0;owned" not in seen
    assert "\x07" not in seen


def test_a_file_name_is_safe_in_an_error(tmp_path: Path) -> None:
    """Also where the file is refused."""
    (tmp_path / NASTY).write_text("{}\n")
    code, seen, _ = on_terminal([tmp_path / NASTY], stdout=False, stderr=True)
    assert code == 2
    assert "error: " in seen
    assert "\x1b]0;owned" not in seen


def test_a_session_without_requests(tmp_path: Path) -> None:
    """Nothing was sent: zeros, a ratio of one, exit 0."""
    recording = Recording(tmp_path / "none", "claude_code", [], [], [])
    report = replay(
        recording, window=10_000, workspace=tmp_path, keys=Keys(bytes(32), tmp_path / "s")
    )
    assert report.cost_ratio == 1.0
    assert report.failures == report.requests == report.messages == 0


def test_recorded_usage_anchors_sizes(tmp_path: Path) -> None:
    """Where a provider counted, its count stands for the estimate in both sums."""
    messages = sizes(3_000, 3_000)
    points = []
    for number, length in enumerate((1, 3, 5)):
        estimate = sum(map(tokens, messages[:length]))
        counted = 1_000 + estimate + 10 * number  # 1,000 are the prompt and the tools
        points.append(RequestPoint(length, None, {"input_tokens": counted}, 0))
    recording = Recording(tmp_path / "counted", "claude_code", messages, points, [])
    report = replay(
        recording, window=50_000, workspace=tmp_path, keys=Keys(bytes(32), tmp_path / "s")
    )
    expected = [sum(map(tokens, messages[:n])) + 10 * i for i, n in enumerate((1, 3, 5))]
    assert report.raw_sizes == expected
    assert report.view_sizes == expected
    assert report.cost_ratio == 1.0
    assert report.failures == 0
