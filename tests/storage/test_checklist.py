"""The statements of the checklist that the vault holds, one named test each."""

import datetime as dt
import errno
import hashlib
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from compactor import Compactor, Policy, Request, Transcript
from compactor.storage import (
    BadName,
    Keys,
    Kind,
    MissingKey,
    NotJson,
    NotStored,
    Place,
    Recipient,
    Vault,
    recipients,
)
from compactor.verify import verify

pytestmark = pytest.mark.usefixtures("alone")

Message = dict[str, Any]
History = list[Message]

CANARY = "canary-92f0"
POLICY = Policy(window=10_000, stages=("persist", "mask"))
PROGRAM = Path(sys.executable).with_name("compactor")


@pytest.fixture
def auditor(tmp_path: Path) -> Path:
    """The identity file of somebody for whom new sessions are wrapped."""
    path = tmp_path / "alice.identity"
    public = recipients.parse_public(recipients.new_identity(path, "alice"))
    recipients.add(tmp_path / "state", Recipient("alice", public))
    return path


def exchange(number: int, content: object, tool: str = "Bash", name: str = "t") -> History:
    """Return a call and the answer to it."""
    call = {"type": "tool_use", "id": f"{name}{number}", "name": tool, "input": {"n": number}}
    result = {"type": "tool_result", "tool_use_id": f"{name}{number}", "content": content}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def conversation(exchanges: int = 12) -> History:
    """Return a history of which a view leaves most out; each third result is a blob."""
    history: History = [{"role": "user", "content": f"Look. {CANARY}"}]
    for number in range(exchanges):
        text = f"{CANARY} line {number} of a log\n" * (1_200 if number % 3 == 0 else 50)
        history += exchange(number, text)
    return history


def converse(work: Path, history: History, **request: Any) -> list[History]:
    """Play a history turn by turn in one session; the views come back as they were sent."""
    sent = []
    with Compactor.open(work, "one", policy=POLICY) as session:
        for end in range(1, len(history) + 1, 2):
            view = session.view(history[:end], **request)
            assert view.degraded is None
            sent.append(json.loads(json.dumps(view.messages)))
    return sent


def requests(work: Path, keys: Keys | None = None) -> list[Request]:
    with Transcript.open(work, "one", keys) as transcript:
        return list(transcript.requests())


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_092_every_file_has_its_place_and_mode(work: Path, tmp_path: Path, auditor: Path) -> None:
    """A session with blobs, an auditor and a resume writes what FORMAT.md lists, for its owner."""
    auditor.unlink()
    before = os.umask(0)
    try:
        converse(work, conversation())
        converse(work, conversation(13))
    finally:
        os.umask(before)
    store = Vault.open(work / ".transcripts", Keys.default()).id
    found = set()
    for path in [*work.rglob("*"), tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
        name = str(path.relative_to(tmp_path)).replace(store, "ID")
        found.add(re.sub("[a-z2-7]{32}", "NAME", name))
    vault, one = "work/.transcripts", "work/.transcripts/s/one"
    assert found == {
        *(
            vault,
            f"{vault}/.gitignore",
            f"{vault}/CACHEDIR.TAG",
            f"{vault}/STORE.json",
            f"{vault}/s",
            one,
        ),
        *(f"{one}/000001.lane", f"{one}/000002.lane", f"{one}/blobs", f"{one}/blobs/NAME.blob"),
        *(f"{one}/lock", f"{one}/recipients.slots", f"{one}/recipients.lock"),
        *("state", "state/host.key", "state/keys.lock", "state/recipients"),
        *("state/slots", "state/slots/ID", "state/slots/ID/one.slot"),
        *("state/heads", "state/heads/ID", "state/heads/ID/one.head"),
    }


def test_093_a_vault_without_its_keys_says_nothing(work: Path, tmp_path: Path) -> None:
    """No text stands in any file or name, and a copy without the state folder does not open."""
    converse(work, conversation(), system=f"{CANARY} " * 3_000)
    texts = [CANARY, "of a log", "tool_result", "Bash", "Earlier tool result"]
    wanted = [text.encode(form) for text in texts for form in ("utf-8", "utf-16-le")]
    assert any(path.suffix == ".blob" for path in files_under(work))
    for path in [*files_under(work), *files_under(tmp_path / "state")]:
        data = path.read_bytes() + str(path).encode()
        assert not [text for text in wanted if text in data]
    with pytest.raises(MissingKey):
        Transcript.open(work, "one", Keys(os.urandom(32), tmp_path / "elsewhere"))


def test_095_git_takes_nothing_of_a_vault(work: Path) -> None:
    """Neither `git add -A` nor a file that is named; the rest of the workspace it takes."""
    (work / "main.py").write_text("pass\n")
    converse(work, conversation())

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-c", "core.excludesFile=", *words]
        return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)

    git("init", "-q", ".")
    assert git("add", "-A").returncode == 0
    assert git("add", ".transcripts/s/one/000001.lane").returncode != 0
    assert git("ls-files").stdout == "main.py\n"


def test_095_a_backup_that_asks_leaves_a_vault_out(work: Path, tmp_path: Path) -> None:
    """By the tag that tar, borg and restic know: nothing but names goes into the backup."""
    converse(work, conversation())
    made = tmp_path / "backup.tar"
    subprocess.run(["tar", "--exclude-caches", "-cf", made, "-C", work, "."], check=True)
    listed = subprocess.run(["tar", "-tf", made], capture_output=True, text=True, check=True)
    assert ".lane" not in listed.stdout


def test_096_sessions_of_one_vault_are_apart(
    vault: Vault, root: Path, write: Callable[..., None], read: Callable[..., list[object]]
) -> None:
    """The same content shows no relation, and files of one session do not open in another."""
    large = f"{CANARY} " * 5_000
    write("a", large, session="one")
    write("b", large, session="two")
    assert [read("one"), read("two")] == [["a", large], ["b", large]]
    first, second = (next((root / "s" / name / "blobs").iterdir()) for name in ("one", "two"))
    assert first.name != second.name
    assert first.read_bytes()[32:] != second.read_bytes()[32:]
    shutil.copy(root / "s/two/000001.lane", root / "s/one/000002.lane")
    with vault.read("one") as reader:
        values = []
        for frame in reader.frames():
            if frame.place.lane == 2:
                with pytest.raises(ValueError, match="lane"):  # damaged, or under another key
                    reader.value(frame)
            else:
                values.append(reader.value(frame))
    assert values == ["a", large]


def test_096_users_of_one_vault_are_apart(vault: Vault, root: Path, tmp_path: Path) -> None:
    """Somebody with keys of their own reads and continues no other's session, and changes none."""
    theirs = Vault.open(root, Keys(os.urandom(32), tmp_path / "their-state"))
    for owner, name in ((vault, "mine"), (theirs, "theirs")):
        with owner.write(name) as writer:
            writer.append([(Kind.MESSAGES, CANARY)])
            writer.sync()
    before = {path: path.read_bytes() for path in files_under(root)}
    for owner, other in ((vault, "theirs"), (theirs, "mine")):
        for door in (owner.read, owner.write):
            with pytest.raises(MissingKey):
                door(other)
    assert {path: path.read_bytes() for path in files_under(root)} == before
    with theirs.read("theirs") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == [CANARY]


def test_099_no_id_of_a_conversation_is_part_of_a_path(work: Path, tmp_path: Path) -> None:
    """Calls and tools named like paths, devices or very long ones leave all names as they are."""
    history: History = [{"role": "user", "content": "Go."}]
    for name in ("../../x", "/tmp/x", "con", "a\0b", "x" * 2_000, "X", "..", "日本"):
        history += exchange(0, (f"{name} " * 20_000)[:40_000], tool=name, name=name)
    converse(work, history, metadata={"user_id": "../../y"})
    names = {path.name for path in work.rglob("*")} | {path.name for path in tmp_path.iterdir()}
    known = r"work|state|s|one|blobs|lock|\d{6}\.lane|[a-z2-7]{32}\.blob"
    known += r"|STORE\.json|CACHEDIR\.TAG|\.gitignore"
    assert not {name for name in names if not re.fullmatch(rf"{known}|\.transcripts", name)}
    assert [request.messages for request in requests(work)][-1][-1]["role"] == "user"


def test_099_names_that_would_meet_on_a_disk_are_refused(
    vault: Vault, root: Path, write: Callable[..., None], read: Callable[..., list[object]]
) -> None:
    """What differs by case or by what a system strips is no name; all others are folders apart."""
    names = ["a", "a.b", "a-b", "a_b", "ab", "a.b-c", "x" * 64]
    for name in names:
        write(name, session=name)
    for name in ("A", "a.", "a ", "A.B", "a\0", "x" * 65, "á"):
        with pytest.raises(BadName):
            write(name, session=name)
    assert vault.sessions() == sorted(names)
    assert {path.name for path in (root / "s").iterdir()} == set(names)
    assert [read(name) for name in names] == [[name] for name in names]


class Odd:
    """Has a text, and is no JSON."""

    def __str__(self) -> str:
        return CANARY


ODD: dict[str, object] = {
    "object": Odd(),
    "bytes": b"x",
    "set": {1, 2},
    "integer key": {1: "x"},
    "null key": {None: 1},
    "nan": float("nan"),
    "infinity": float("inf"),
    "complex": 1j,
    "decimal": Decimal("1.0"),
    "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "path": Path("x"),
}


@pytest.mark.parametrize("what", ODD)
def test_100_nothing_becomes_a_string_silently(
    vault: Vault, what: str, folder: Path, read: Callable[..., list[object]]
) -> None:
    """What JSON cannot hold is refused at any depth, and nothing of the call is written."""
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "before")])
        size = (folder / "000001.lane").stat().st_size
        for odd in (ODD[what], {"a": ["x" * 20_000, ODD[what]]}):
            with pytest.raises(NotJson):
                writer.append([(Kind.MESSAGES, "good"), (Kind.MESSAGES, odd)])
        assert (folder / "000001.lane").stat().st_size == size
    assert read() == ["before"]


def test_100_look_alikes_keep_their_types(
    write: Callable[..., None], read: Callable[..., list[object]]
) -> None:
    """Numbers, booleans, null and their texts are told apart, and so is the order of keys."""
    values = [1, 1.0, True, "1", "1.0", "true", None, "null", 0, -0.0, False, "", [], {}, 10**40]
    write(*values, values, {"b": 1, "a": 1})
    assert repr(read()) == repr([*values, values, {"b": 1, "a": 1}])


def canonical(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def chain(messages: History) -> bytes:
    """Return the chain digest as FORMAT.md describes it, for messages without marks and nulls."""
    digest = bytes(32)
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        names = []
        for block in blocks:
            inner = block.get("content")
            as_list = {"content": [{"type": "text", "text": inner}]}
            whole = {**block, **as_list} if isinstance(inner, str) else block
            names.append(hashlib.sha256(canonical(whole)).hexdigest())
        own = hashlib.sha256(canonical({**message, "content": names})).digest()
        digest = hashlib.sha256(digest + own).digest()
    return digest


def test_100_the_archive_states_how_exact_it_is(work: Path) -> None:
    """Each request says by which digest its rebuilt view is the sent one, and when it is not."""
    sent = converse(work, conversation())
    held = requests(work)
    assert [request.digest for request in held] == [chain(view) for view in sent]
    assert all(request.whole for request in held)
    with Vault.open(work / ".transcripts", Keys.default()).read("one") as reader:
        lost = [frame for frame in reader.frames() if frame.kind is Kind.MESSAGES][5]
    lane = work / ".transcripts/s/one/000001.lane"
    data = bytearray(lane.read_bytes())
    data[lost.offset + 100] ^= 1
    lane.write_bytes(data)
    said = requests(work)
    assert [request.whole for request in said] == [True] * 5 + [False] * (len(said) - 5)
    assert [request.digest for request in said] == [request.digest for request in held]


BLOCKS: list[Message] = [
    {"type": "text", "text": "t", "citations": [{"type": "char_location", "start": 0}]},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text"}]},
    {"type": "of_a_later_version", "x": [1, 1.0, True, "1"], "big": 2**70},
]
ANSWERS: list[Message] = [
    {"type": "thinking", "thinking": "", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    {"type": "text", "text": "Let me see.\u2028"},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "x", "y": "z"}]},
]


def test_101_a_session_is_replayed_exactly(work: Path) -> None:
    """Every kind of block, and model, versions of tools and arguments as of each request."""
    history: History = [
        {"role": "user", "content": "As a string."},
        {"role": "assistant", "content": ANSWERS},
        {"role": "user", "content": BLOCKS},
        *exchange(1, [BLOCKS[0], BLOCKS[1]]),
        *exchange(2, "an error", name="e"),
        *exchange(3, f"{CANARY}\n" * 9_000),
    ]
    history[-3]["content"][0]["is_error"] = True
    asked: list[dict[str, Any]] = [
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "temperature": 0.0,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [{"type": "bash_20250124", "name": "bash"}],
        },
        {
            "model": "claude-opus-4-5",
            "max_tokens": 100,
            "thinking": {"type": "enabled", "budget_tokens": 50},
            "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "b", "input_schema": {}}],
        },
    ]
    sent = []
    with Compactor.open(work, "one", policy=POLICY) as session:
        for arguments, length in zip(asked, (3, len(history)), strict=True):
            sent.append(session.view(history[:length], **arguments))
    assert sent[1].changed
    for request, view, arguments in zip(requests(work), sent, asked, strict=True):
        assert repr(request.messages) == repr(view.messages)
        recorded = {"system": request.system, "tools": request.tools, **request.options}
        assert {k: v for k, v in recorded.items() if v is not None} == arguments
    with Transcript.open(work, "one") as transcript:
        assert repr(transcript.messages()) == repr(history)
    with Vault.open(work / ".transcripts", Keys.default()).read("one") as reader:
        opened: Any = reader.value(next(reader.frames()))
    assert opened["wire"] == "anthropic"
    assert re.fullmatch(r"\d+\.\d+.*", opened["version"])


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """Be a user whom modes keep out, in a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() != 0:
            yield folder
            return
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("part", [".", "s/one", "s/one/blobs"])
def test_110_a_folder_that_cannot_be_written(part: str) -> None:
    """A typed error with the system's number; what is there reads, and later it goes on."""
    with ordinary_user() as top:
        root, session = top / "vault", "two" if part == "." else "one"
        vault = Vault.create(root, Keys(bytes(32), top / "state"))
        with vault.write("one") as writer:
            writer.append([(Kind.MESSAGES, "a")])
        (root / part).chmod(0o500)
        if part == ".":
            (root / "s").chmod(0o500)
        with pytest.raises(NotStored) as refused, vault.write(session) as writer:
            writer.append([(Kind.MESSAGES, f"{CANARY} " * 5_000)])
        assert refused.value.errno == errno.EACCES
        with vault.read("one") as reader:
            assert [reader.value(frame) for frame in reader.frames()] == ["a"]
        for folder in (root, root / "s", root / part):
            folder.chmod(0o700)
        with vault.write(session) as writer:
            assert writer.append([(Kind.MESSAGES, f"{CANARY} " * 5_000)])[0].seq == 1


def test_110_a_workspace_that_cannot_be_written() -> None:
    """A session refuses to open, with a typed error, rather than to run without a transcript."""
    with ordinary_user() as top:
        work = top / "work"
        work.mkdir(mode=0o500)
        with pytest.raises(NotStored) as refused:
            Compactor.open(work, "one", policy=Policy(), keys=Keys(bytes(32), top / "state"))
        assert refused.value.errno == errno.EACCES
        assert list(work.iterdir()) == []
        work.chmod(0o700)


@pytest.mark.parametrize("size", [7_000, 40_000], ids=["record", "blob"])
def test_110_no_room_for_what_is_written(vault: Vault, size: int, folder: Path) -> None:
    """Half a record or half a blob is not stored and is said so; the next lane takes it whole."""
    value = os.urandom(size).hex()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, "a")])
        writer.sync()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
        try:
            with pytest.raises(NotStored) as refused:
                writer.append([(Kind.MESSAGES, value)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert refused.value.errno == errno.EFBIG
        assert not list(folder.rglob("*.tmp"))
        writer.renew()
        assert writer.append([(Kind.MESSAGES, value)]) == [Place(2, 1)]
        writer.sync()
    with vault.read("one") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == ["a", value]
        assert not reader.skipped


def test_118_an_auditor_proves_and_replays_a_copy(
    work: Path, tmp_path: Path, auditor: Path
) -> None:
    """With a private key and the vault alone: every byte, every request, everything left out."""
    sent = converse(work, conversation())
    copy = tmp_path / "copy" / ".transcripts"
    shutil.copytree(work / ".transcripts", copy)
    shutil.rmtree(tmp_path / "state")
    keys = Keys.identity(auditor)
    assert [request.messages for request in requests(copy, keys)] == sent
    options = ["--vault", str(copy), "--identity", str(auditor), "--json"]
    said = subprocess.run(
        [PROGRAM, "verify", *options], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    report = verify(Vault.open(copy, keys), "one")
    assert (report.verdict, report.findings) == ("whole", ())
    assert report.views == report.audit.requests == len(sent)
    assert report.read == report.handles > 5
    assert json.loads(said.stdout)["sessions"][0]["handles_read"] == report.read
    with Transcript.open(copy, "one", keys) as transcript:
        originals = [transcript.read(handle).decode() for handle in transcript.handles()]
    contents = [message["content"][0].get("content") for message in conversation()[2::2]]
    assert originals
    assert set(originals) <= set(contents)


def test_118_no_changed_byte_passes_the_audit(work: Path) -> None:
    """In the lane and in each blob, wherever it is changed."""
    converse(work, conversation(9))
    vault = Vault.open(work / ".transcripts", Keys.default())
    assert verify(vault, "one").verdict == "whole"
    for path in (path for path in files_under(work) if path.suffix in {".lane", ".blob"}):
        data = path.read_bytes()
        for at in range(0, len(data), len(data) // 4):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert verify(vault, "one").verdict in {"damaged", "wrong key"}, (path.name, at)
        path.write_bytes(data)
    assert verify(vault, "one").verdict == "whole"
