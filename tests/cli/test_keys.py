"""`compactor keys`, as people and programs call it."""

import base64
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

import compactor.cli
from compactor.cli.keys import keys as group
from compactor.cli.options import vault_options
from compactor.storage import Keys, Kind, MissingKey, Vault


class Said(NamedTuple):
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of one's own, and a working folder without transcripts."""
    for name in ("HOME", "KEY", "KEY_FILE", "IDENTITY"):
        monkeypatch.delenv(f"COMPACTOR_{name}", raising=False)
    monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "state"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program's entry point in this process."""

    def run_one(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["compactor", "keys", *map(str, words)])
        code: Any = 0
        try:
            compactor.cli.main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Said(code or 0, out, err)

    return run_one


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The vault of the workspace `work`, with the session `one`."""
    (tmp_path / "work").mkdir()
    write(tmp_path / "work/.transcripts", "one")
    return tmp_path / "work/.transcripts"


def write(root: Path, session: str) -> None:
    with Vault.create(root, Keys.default()).write(session) as writer:
        writer.append([(Kind.OPEN, session)])


def opens(root: Path, identity: Path, session: str = "one") -> bool:
    try:
        Vault.open(root, Keys.identity(identity)).read(session).close()
    except MissingKey:
        return False
    return True


def test_show_says_where_the_key_is_and_what_hangs_on_it(
    run: Run, root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for programs; the key's bytes are in neither."""
    assert root
    secret = (state / "host.key").read_text().strip()
    said = run("show")
    assert said.code == 0
    for part in ("host.key (the default)", str(state), "1 sessions in 1 vaults", "nobody"):
        assert part in said.out
    assert "the whole state folder" in said.out
    assert said.err.startswith("hint: a recovery recipient")
    data = run("show", "--json").data
    assert {"source", "fingerprint", "state", "slots", "recovery", "backup"} <= set(data)
    assert (data["slots"], data["vaults"], data["rotating"]) == (1, 1, False)
    assert data["fingerprint"] in said.out
    assert secret not in said.out + said.err + json.dumps(data)
    monkeypatch.setenv("COMPACTOR_KEY", secret)
    other = run("show", "--json").data
    assert (other["source"], other["fingerprint"]) == ("COMPACTOR_KEY", data["fingerprint"])


def test_looking_makes_no_key(run: Run, state: Path) -> None:
    """An error with a hint, so that a state folder that is not mounted is noticed."""
    for words in (("show",), ("export", "x"), ("rotate",)):
        said = run(*words)
        assert (said.code, said.out) == (3, "")
        assert said.err.startswith("error: there is no host key")
        assert "\nhint: " in said.err
    assert run("list", "--json").data == {"auditors": []}
    assert not state.exists()


def test_an_auditor_from_key_pair_to_removal(run: Run, root: Path) -> None:
    """The public key goes to stdout alone; existing and later sessions open for them."""
    made = run("new-auditor", "alice.identity", "--name", "alice")
    identity, public = Path("alice.identity"), made.out.strip()
    assert identity.stat().st_mode & 0o777 == 0o600
    assert f"compactor keys add-auditor {public} --name alice" in made.err
    said = run("add-auditor", public, "--name", "alice", "--workspace", root.parent)
    assert (said.code, opens(root, identity)) == (0, True)
    assert "slots of 1 sessions changed" in said.out
    again = run("add-auditor", public, "--workspace", root, "--recovery", "--json").data
    assert again["auditor"] == {"name": "alice", "public_key": public, "recovery": True}
    assert again["vaults"][0]["unchanged"] == ["one"]
    assert run("show", "--json").data["recovery"]["name"] == "alice"
    assert "alice" in run("show").out
    rows = run("list", "--workspace", root, "--json").data["auditors"]
    assert [(row["name"], row["sessions"]) for row in rows] == [("alice", 1)]

    write(root, "two")
    removed = run("remove-auditor", "alice")
    assert (removed.code, "--existing" in removed.err) == (0, True)
    write(root, "three")
    assert [opens(root, identity, name) for name in ("one", "two", "three")] == [True, True, False]
    assert "(not known here)" in run("list", "--workspace", root).out
    said = run("remove-auditor", public, "--existing", "--workspace", root)
    assert (said.code, "copy" in said.err) == (0, True)
    assert [opens(root, identity, name) for name in ("one", "two", "three")] == [False] * 3


def test_this_folder_counts_if_it_has_transcripts(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --workspace; elsewhere only sessions to come are concerned."""
    public = run("new-auditor", "a", "--json").data["public_key"]
    assert run("add-auditor", public, "--json").data["vaults"] == []
    identity = Path("a").absolute()
    assert not opens(root, identity)
    monkeypatch.chdir(root.parent)
    assert run("add-auditor", public, "--json").data["vaults"][0]["changed"] == ["one"]
    assert opens(root, identity)


def test_a_session_whose_key_is_elsewhere_is_named(run: Run, root: Path, state: Path) -> None:
    """Exit code 1: the auditor is known, that session is as it was."""
    next(state.rglob("one.slot")).unlink()
    public = run("new-auditor", "a").out.strip()
    said = run("add-auditor", public, "--workspace", root, "--json")
    assert (said.code, said.data["vaults"][0]["refused"]) == (1, ["one"])
    assert "warning: session one: the key" in said.err
    assert [row["public_key"] for row in run("list", "--json").data["auditors"]] == [public]


def test_a_wrong_call_has_its_own_code(run: Run, root: Path) -> None:
    """Nothing is changed by it, and no private key is quoted."""
    public = run("new-auditor", "a").out.strip()
    other = run("new-auditor", "b").out.strip()
    private = Path("a").read_text().splitlines()[-1]
    assert run("add-auditor", public, "--name", "alice").code == 0
    for words in (
        ("add-auditor", private),
        ("add-auditor", public[:-1]),
        ("add-auditor", other, "--name", "alice"),
        ("add-auditor", other, "--name", "../x"),
        ("add-auditor", public, "--name", "bob"),
        ("remove-auditor", "bob"),
        ("new-auditor", "c", "--name", "a b"),
    ):
        said = run(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("error: ")
        assert "\nhint: " in said.err
        assert private not in said.err
    assert run("remove-auditor", "alice", "--workspace", root).code == 2
    assert run("add-auditor", other, "--workspace", "nowhere").code == 2
    assert run("add-auditor", other, "--workspace", ".").code == 3
    assert [row["name"] for row in run("list", "--json").data["auditors"]] == ["alice"]
    assert not Path("c").exists()


def test_export_writes_a_new_private_file_and_never_over_another(
    run: Run, root: Path, state: Path
) -> None:
    """The file is a key file; what stood there stays."""
    assert root
    said = run("export", "backup")
    assert (said.code, said.out) == (0, "")
    assert Path("backup").stat().st_mode & 0o777 == 0o600
    assert Path("backup").read_text().endswith((state / "host.key").read_text())
    before = Path("backup").read_bytes()
    assert run("export", "backup").code == run("export", "backup", "--force").code == 3
    assert run("new-auditor", "backup").code == 3
    assert Path("backup").read_bytes() == before
    assert run("export", "-").out == before.decode()


def test_a_key_goes_to_a_terminal_only_by_force(root: Path) -> None:
    """On a real one."""
    assert root
    for force, shown in (([], False), (["--force"], True)):
        ours, theirs = pty.openpty()
        program = Path(sys.executable).with_name("compactor")
        command = [str(program), "keys", "export", "-", *force]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=False)
        os.write(theirs, b"end")
        seen = os.read(ours, 10_000)
        for fd in (ours, theirs):
            os.close(fd)
        assert (done.returncode == 0, b"host key" in seen) == (shown, shown)


def test_rotate_makes_a_new_key_and_everything_still_opens(run: Run, root: Path) -> None:
    """It says which key it is now, and to back it up."""
    before = run("show", "--json").data["fingerprint"]
    said = run("rotate", "--json")
    assert (said.code, said.data["wrapped"], said.data["left"]) == (0, 1, [])
    assert said.data["fingerprint"] == run("show", "--json").data["fingerprint"] != before
    assert "the whole state folder" in said.err
    Vault.open(root, Keys.default()).read("one").close()


def test_a_key_from_the_environment_is_rotated_from_the_old_one(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --from the call is refused; what the old key does not open is named."""
    run("export", "old")
    monkeypatch.setenv("COMPACTOR_KEY", base64.b64encode(os.urandom(32)).decode())
    assert run("rotate").code == 2
    assert run("rotate", "--from", "old").code == 0
    Vault.open(root, Keys.default()).read("one").close()
    Path("third").write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("COMPACTOR_KEY", base64.b64encode(os.urandom(32)).decode())
    said = run("rotate", "--from", "third", "--json")
    assert (said.code, said.data["left"]) == (1, ["one"])


def test_a_damaged_list_is_refused(run: Run, root: Path, state: Path) -> None:
    """With the line that is wrong."""
    assert root
    (state / "recipients").touch(0o600)
    (state / "recipients").write_text("alice\n")
    for words in (("list",), ("show",), ("remove-auditor", "alice")):
        said = run(*words)
        assert (said.code, "line 1" in said.err) == (3, True)


@pytest.mark.parametrize("name", sorted(group.commands))
def test_every_command_has_an_example_and_says_its_exit_codes(name: str) -> None:
    """In its own help."""
    text = CliRunner().invoke(group, [name, "--help"]).output
    assert f"  compactor keys {name}" in text
    assert "Exit codes:\n    0  done" in text


def test_readers_take_a_workspace_and_an_identity(
    run: Run, root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--identity` or the environment's; without a key nothing is made."""

    @click.command()
    @vault_options
    def look(root: Path, keys: Keys) -> None:
        with Vault.open(root, keys).read("one") as reader:
            click.echo(f"{keys.source} {[reader.value(frame) for frame in reader.frames()]}")

    def said(*words: str) -> str:
        result = CliRunner().invoke(look, words)
        return result.output or type(result.exception).__name__

    public = run("new-auditor", "a").out.strip()
    run("add-auditor", public, "--workspace", root)
    assert said("--vault", str(root)) == said("--vault", str(root.parent)) == "host.key ['one']\n"
    monkeypatch.setenv("COMPACTOR_STATE", str(state / "none"))
    assert said("--vault", str(root)) == "MissingKey"
    assert said("--vault", str(root), "--identity", "a") == "identity ['one']\n"
    monkeypatch.setenv("COMPACTOR_IDENTITY", "a")
    assert said("--vault", str(root)) == "identity ['one']\n"
    assert said() == "NoTranscript"
    assert not (state / "none").exists()
