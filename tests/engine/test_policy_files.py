"""The policy of a workspace: who has the word, and what is said of a bad file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactor import BadPolicy, Policy
from compactor.policy_files import PRESETS, load, user_file

VARIABLES = ("PRESET", "WINDOW", "TRIGGER", "TARGET", "STAGES")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file; nothing of the developer's reaches the tests."""
    for name in VARIABLES:
        monkeypatch.delenv(f"COMPACTOR_{name}", raising=False)
    path = tmp_path / "own.toml"
    monkeypatch.setenv("COMPACTOR_CONFIG", str(path))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "pyproject.toml"


def refused(workspace: Path) -> BadPolicy:
    with pytest.raises(BadPolicy) as caught:
        load(workspace)
    assert caught.value.hint
    return caught.value


def test_without_files_the_defaults_hold(tmp_path: Path) -> None:
    """A missing file, section or workspace is no error."""
    assert load(tmp_path) == load(str(tmp_path / "none")) == Policy()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nwindow = 5\n")
    assert load(tmp_path) == Policy()


def test_the_last_has_the_word(
    tmp_path: Path, own: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defaults, user, project, environment."""
    own.write_text("window = 1_000\ntrigger = 0.6\ntarget = 0.2\n[mask]\nmin_chars = 7\n")
    assert load(tmp_path) == Policy(window=1_000, trigger=0.6, target=0.2).but(mask__min_chars=7)
    project.write_text("[tool.compactor]\nwindow = 2_000\ntrigger = 0.8\nmask.keep_recent = 9\n")
    policy = load(tmp_path)
    assert (policy.window, policy.trigger, policy.target) == (2_000, 0.8, 0.2)
    assert (policy.mask.min_chars, policy.mask.keep_recent) == (7, 9)
    monkeypatch.setenv("COMPACTOR_WINDOW", "3_000")
    assert load(tmp_path) == policy.but(window=3_000)


def test_every_variable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers as numbers, stages as a list; an empty one says nothing."""
    values = ("frugal", "50000", "0.8", "0.25", "persist, mask")
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(f"COMPACTOR_{name}", value)
    assert load(tmp_path) == Policy.frugal(
        window=50_000, trigger=0.8, target=0.25, stages=("persist", "mask")
    )
    for name in VARIABLES:
        monkeypatch.setenv(f"COMPACTOR_{name}", " ")
    assert load(tmp_path) == Policy()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_takes_the_place_of_the_defaults(tmp_path: Path, own: Path, name: str) -> None:
    """All settings that are named are laid over it."""
    own.write_text(f'window = 9_000\npreset = "{name}"\nmask.min_chars = 7\n')
    assert load(tmp_path) == PRESETS[name]().but(window=9_000, mask__min_chars=7)


def test_the_last_preset_holds(
    tmp_path: Path, own: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves nothing that a file sets by name."""
    own.write_text('preset = "course"\nmask.min_chars = 7\n')
    project.write_text('[tool.compactor]\npreset = "roomy"\n')
    assert load(tmp_path) == Policy.roomy(mask__min_chars=7)
    monkeypatch.setenv("COMPACTOR_PRESET", "default")
    assert load(tmp_path) == Policy().but(mask__min_chars=7)


def test_tables_of_a_stage_and_rules_by_tool(tmp_path: Path, own: Path, project: Path) -> None:
    """The example of the module's docstring works, and rules of two files add up."""
    docs = str(sys.modules[load.__module__].__doc__)
    own.write_text("\n".join(line[4:] for line in docs.splitlines() if line.startswith("    ")))
    project.write_text("[tool.compactor.persist.tools]\nBash = 6_000\n[tool.compactor.archive]\n")
    policy = load(tmp_path)
    rules = policy.persist
    assert (policy.window, policy.trigger, policy.mask.keep_recent) == (100_000, 0.5, 4)
    assert (rules.limit("Bash"), rules.limit("Logs"), rules.limit("Notes")) == (6_000, 5_000, None)
    assert (rules.rule("Logs").show, rules.limit("Read")) == ("tail", 100_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window = 'wide'", "window must be a whole number, 1 or more"),
        ("window = 0", "window must be a whole number, 1 or more"),
        ("triger = 0.5", "no setting triger"),
        ("self = 1", "no setting self"),
        ("mask = 3", "mask must be a table of settings"),
        ("mask.keep_recent = -1", "mask.keep_recent must be a whole number, 0 or more"),
        ("mask.never = 'Read'", "mask.never must be a list of names"),
        ("target = 0.9", "0 < target < trigger is required"),
        ("stages = ['masks']", "no stage 'masks'"),
        ("stages = 'mask'", "stages must be a list of names"),
        ("preset = 'tiny'", "preset must be the name of one"),
        ("preset = ['frugal']", "preset must be the name of one"),
        ("not_human = 1979-05-27", "not_human must be a text"),
    ],
)
def test_a_bad_setting_is_named_with_its_file(
    tmp_path: Path, own: Path, project: Path, text: str, message: str
) -> None:
    """And with what it must be."""
    own.write_text(text)
    assert str(refused(tmp_path)) == f"{own}: {message}"
    own.unlink()
    project.write_text(f"[tool.compactor]\n{text}\n")
    assert str(refused(tmp_path)) == f"{project}: {message}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WINDOW", "wide", "COMPACTOR_WINDOW: must be a whole number"),
        ("WINDOW", "0", "environment (COMPACTOR_WINDOW): window must be a whole number, 1 or more"),
        ("TRIGGER", "80%", "COMPACTOR_TRIGGER: must be a share from 0 to 1"),
        ("TRIGGER", "80", "environment (COMPACTOR_TRIGGER): trigger must be a share from 0 to 1"),
        ("TARGET", "nan", "environment (COMPACTOR_TARGET): target must be a share from 0 to 1"),
        ("STAGES", "mask,mask", "environment (COMPACTOR_STAGES): stages must name each stage once"),
        ("PRESET", "tiny", "environment (COMPACTOR_PRESET): preset must be the name of one"),
    ],
)
def test_a_bad_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """And what it must be."""
    monkeypatch.setenv(f"COMPACTOR_{name}", value)
    assert str(refused(tmp_path)) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"window = 1\npassword = hunter2\n", "is no TOML at line 2, column 12"),
        (b"hunter2 = 1\nhunter2 = 2\n", "is no TOML"),
        (b"password = '\xff'\n", "is no TOML"),
        (b"x = " + b"[" * 100_000, "is no TOML"),
    ],
    ids=["value", "twice", "encoding", "depth"],
)
def test_bad_toml_is_named_but_not_quoted(
    tmp_path: Path, own: Path, data: bytes, message: str
) -> None:
    """The file may hold what is not for a log."""
    own.write_bytes(data)
    error = refused(tmp_path)
    assert str(error).startswith(f"{own}: {message}")
    assert "hunter2" not in f"{error} {error.hint}"


@pytest.mark.parametrize("text", ["tool = 5", "[tool]\ncompactor = 'frugal'"])
def test_a_section_that_is_no_table_is_refused(tmp_path: Path, project: Path, text: str) -> None:
    """With the section that it should be."""
    project.write_text(text)
    error = refused(tmp_path)
    assert "must be a table" in str(error)
    assert error.hint == "Write [tool.compactor]."


@pytest.mark.parametrize("name", ["own.toml", "pyproject.toml"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    """Settings that are there and not heard would surprise."""
    (tmp_path / name).mkdir()
    assert str(refused(tmp_path)) == f"{tmp_path / name}: cannot be read: Is a directory"


def test_where_the_users_file_stands(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`COMPACTOR_CONFIG` names it, else it is in the user's folder of settings."""
    assert user_file() == own
    monkeypatch.setenv("COMPACTOR_CONFIG", "")
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: Path("/settings") / name)
    assert user_file() == Path("/settings/compactor/policy.toml")


def test_files_are_read_only_on_request() -> None:
    """`import compactor` reads no settings and loads no parser for them."""
    code = "import sys, compactor; print({'tomllib', 'difflib'} & set(sys.modules) or '')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COMPACTOR_CONFIG": "/"},
    )
    assert answer.stdout.strip() == ""


def test_a_workspace_cannot_say_who_the_human_is(tmp_path: Path, own: Path, project: Path) -> None:
    """Whoever can write there could have the human's words left out; the user's file may."""
    project.write_text("[tool.compactor]\nnot_human = '.*'\n")
    assert "not_human" in str(refused(tmp_path))
    project.unlink()
    own.write_text("not_human = 'x'\n")
    assert load(tmp_path).not_human == "x"
