"""Cases about the vault that users hit elsewhere; the numbers are those of the case list."""

import base64
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compactor import Compactor, Policy, Transcript, UnknownHandle
from compactor.storage import Damaged, Keys, Kind, Place, Vault, WrongKey
from compactor.verify import verify

pytestmark = pytest.mark.usefixtures("alone")

Message = dict[str, Any]
History = list[Message]

POLICY = Policy(window=10_000, stages=("persist", "mask"))
HOST_KEY = bytes(range(32))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(HOST_KEY, tmp_path / "state")


@pytest.fixture
def lane(work: Path) -> Path:
    """The first lane of the session that `converse` plays."""
    return work / ".transcripts/s/one/000001.lane"


def exchange(number: int, content: object) -> History:
    """Return a call and the answer to it."""
    call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"n": number}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": content}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def conversation(exchanges: int, size: int = 1_500) -> History:
    """Return a history of which a view leaves most out; no two results are alike."""
    history: History = [{"role": "user", "content": "Look at everything."}]
    for number in range(exchanges):
        line = f"output {number}: {os.urandom(16).hex()}\n"
        history += exchange(number, (line * (size // len(line) + 1))[:size])
    return history


def converse(work: Path, keys: Keys, history: History, start: int = 1) -> None:
    """Play a history turn by turn in one session and close it."""
    with Compactor.open(work, "one", policy=POLICY, keys=keys) as session:
        for end in range(start, len(history) + 1, 2):
            assert session.view(history[:end]).degraded is None


def vault_of(work: Path, keys: Keys) -> Vault:
    return Vault.open(work / ".transcripts", keys)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bodies(work: Path, keys: Keys, kind: Kind) -> list[Any]:
    with vault_of(work, keys).read("one") as reader:
        return [reader.value(frame) for frame in reader.frames() if frame.kind is kind]


AGENT = """
import json, sys
from pathlib import Path
from compactor import Compactor, Keys, Policy
history = json.load(sys.stdin)
keys = Keys(bytes(range(32)), Path(sys.argv[2]))
policy = Policy(window=10_000, stages=("persist", "mask"))
session = Compactor.open(sys.argv[1], "one", policy=policy, keys=keys)
for end in range(1, len(history) + 1, 2):
    view = session.view(history[:end])
print(json.dumps(view.messages), flush=True)
while True:
    pass
"""


def test_c55_a_kill_right_after_a_view_loses_nothing_and_alarms_nobody(
    work: Path, keys: Keys
) -> None:
    """SIGKILL: the audit says open tail, every view is proven and everything reads back."""
    history = conversation(14)
    command = [sys.executable, "-c", AGENT, str(work), str(keys.state)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin
        assert process.stdout
        json.dump(history, process.stdin)
        process.stdin.close()
        shown = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    report = verify(vault_of(work, keys), "one")
    assert report.verdict == "open tail"
    assert report.views == report.audit.requests == 15
    assert report.read == report.handles > 0
    with Compactor.open(work, "one", policy=POLICY, keys=keys) as session:
        assert session.view(history).messages == shown
    assert verify(vault_of(work, keys), "one").views == 16


def test_c54_images_are_stored_once_however_often_they_are_recorded(work: Path, keys: Keys) -> None:
    """Ten restarts with a history that was rewritten each time: five images are five blobs."""
    images = [base64.b64encode(os.urandom(30_000)).decode() for _ in range(5)]
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        for data in images
    ]
    for turn in range(10):
        history = conversation(2)
        history[0]["content"] = [{"type": "text", "text": f"Turn {turn}."}, *blocks]
        converse(work, keys, history, start=5)
    assert len(list((work / ".transcripts/s/one/blobs").iterdir())) == 5
    assert size_of(work) < 1.5 * sum(map(len, images))


def test_c59_c79_a_compaction_stores_references(work: Path, keys: Keys) -> None:
    """Twice the conversation is about twice the disk, and a set holds none of what it hides."""
    sizes = {}
    for exchanges in (15, 30):
        place = work / str(exchanges)
        place.mkdir()
        history = conversation(exchanges, 30_000)
        converse(place, keys, history)
        sizes[exchanges] = size_of(place)
    assert sizes[30] < 2.4 * sizes[15]
    sets = bodies(work / "30", keys, Kind.SET)
    decisions = [decision for one in sets for decision in one["decisions"]]
    assert len(decisions) >= 30
    assert max(len(json.dumps(decision)) for decision in decisions) < 4_000
    assert size_of(work / "30") < len(json.dumps(history))


def test_c62_one_session_is_one_entry(work: Path, keys: Keys) -> None:
    """However many processes wrote it, and whatever else stands in the folder."""
    history = conversation(4)
    for end in (3, 5, 7, 9):
        converse(work, keys, history[:end], start=end)
    assert len(list((work / ".transcripts/s/one").glob("*.lane"))) == 4
    (work / ".transcripts/s/lost+found").mkdir(mode=0o700)
    (work / ".transcripts/s/empty").mkdir(mode=0o700)
    assert vault_of(work, keys).sessions() == ["one"]


def test_c64_c68_a_message_recorded_by_half_and_then_in_full_is_there_once(
    work: Path, keys: Keys, lane: Path
) -> None:
    """Cut anywhere in its last messages, a session goes on and its history is the one at hand."""
    history = conversation(12)
    converse(work, keys, history)
    with vault_of(work, keys).read("one") as reader:
        last = [frame for frame in reader.frames() if frame.kind is Kind.MESSAGES][-1]
    os.truncate(lane, last.offset + 50)
    converse(work, keys, history, start=len(history))
    with Transcript.open(work, "one", keys) as transcript:
        assert transcript.messages() == history
        texts = {message["content"][0].get("content") for message in history[2::2]}
        assert {transcript.read(handle).decode() for handle in transcript.handles()} <= texts


def test_c65_an_empty_blob_is_unrecoverable_and_said_so(work: Path, keys: Keys) -> None:
    """The session opens, what was in the file is an error, all else reads, the audit names it."""
    history = conversation(8, 30_000)
    converse(work, keys, history)
    blob = next((work / ".transcripts/s/one/blobs").iterdir())
    os.truncate(blob, 0)
    lost, kept = [], []
    with Transcript.open(work, "one", keys) as transcript:
        for handle in transcript.handles():
            try:
                kept.append(transcript.read(handle))
            except Damaged as error:
                lost.append((handle, error.where))
    assert (len(lost), len(set(kept))) == (1, 7)
    assert lost[0][0] == lost[0][1]
    report = verify(vault_of(work, keys), "one")
    assert report.verdict == "damaged"
    assert blob.stem in [finding.blob for finding in report.findings]


def test_c66_nuls_in_the_middle_are_counted_and_the_rest_loads(
    work: Path, keys: Keys, lane: Path
) -> None:
    """300 of them between two records: everything reads, and the audit says where and how many."""
    history = conversation(12)
    converse(work, keys, history)
    with vault_of(work, keys).read("one") as reader:
        at = list(reader.frames())[9].offset
    data = lane.read_bytes()
    lane.write_bytes(data[:at] + bytes(300) + data[at:])
    with Transcript.open(work, "one", keys) as transcript:
        assert transcript.messages() == history
    report = verify(vault_of(work, keys), "one")
    assert report.verdict == "damaged"
    assert (1, at, 300) in [(each.lane, each.offset, each.size) for each in report.findings]


def test_c69_a_torn_end_is_quiet_and_damage_in_the_middle_is_loud(
    work: Path, keys: Keys, lane: Path
) -> None:
    """Without a known head, an end as a crash leaves it does not alarm; a hole does."""
    converse(work, keys, conversation(12))
    data = lane.read_bytes()
    lane.write_bytes(data[:-20])
    assert verify(vault_of(work, keys), "one").verdict == "open tail"
    middle = len(data) // 2
    lane.write_bytes(data[:middle] + bytes(20) + data[middle + 20 :])
    assert verify(vault_of(work, keys), "one").verdict == "damaged"


def test_c70_looking_changes_nothing(work: Path, keys: Keys, lane: Path) -> None:
    """Reading and auditing a torn and damaged session, twice, leaves every byte and time."""
    converse(work, keys, conversation(12))
    data = lane.read_bytes()
    lane.write_bytes(data[:900] + bytes(20) + data[920:-20])
    (lane.parent / "blobs" / "left.tmp").write_bytes(b"half")

    def snapshot() -> dict[Path, tuple[bytes, int]]:
        files = [path for path in work.parent.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = snapshot()
    said = []
    for _ in range(2):
        said.append(verify(vault_of(work, keys), "one").findings)
        with Transcript.open(work, "one", keys) as transcript:
            list(transcript.requests())
    assert said[0] == said[1] != ()
    assert snapshot() == before


WRITER = """
import sys
from pathlib import Path
from compactor.storage import Keys, Kind, Vault
vault = Vault.open(Path(sys.argv[1]), Keys(bytes(range(32)), Path(sys.argv[2])))
with vault.write("one") as writer:
    for n in range(int(sys.argv[3])):
        writer.append([(Kind.MESSAGES, [n, f"{n} " * (10_000 if n % 5 == 0 else 9)])])
        if n == 0:
            print("begun", flush=True)
"""


@contextmanager
def other_process(root: Path, keys: Keys, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that appends `count` records, after its first one."""
    command = [sys.executable, "-c", WRITER, str(root), str(keys.state), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        yield process


def test_c71_readers_beside_a_writer_see_a_growing_beginning(
    vault: Vault, root: Path, keys: Keys
) -> None:
    """A reader and an audit never take a record that is being written for damage."""
    lengths: list[int] = []
    with other_process(root, keys, 150) as process:
        while not lengths or process.poll() is None:
            with vault.read("one") as reader:
                values: list[Any] = [reader.value(frame) for frame in reader.frames()]
                assert not reader.skipped
                assert reader.audit().verdict in {"open, in use", "open tail"}
            assert [value[0] for value in values] == list(range(len(values)))
            lengths.append(len(values))
    assert lengths == sorted(lengths)
    assert process.returncode == 0
    with vault.read("one") as reader:
        assert len(list(reader.frames())) == 150


def test_c72_sessions_are_written_at_once(vault: Vault, root: Path, keys: Keys) -> None:
    """Another process writes one session, this one a second: neither waits, each has its own."""
    with other_process(root, keys, 100) as process, vault.write("two") as writer:
        for number in range(20):
            writer.append([(Kind.MESSAGES, number)])
        process.wait()
        with vault.read("one") as one, vault.read("two") as two:
            assert len(list(one.frames())) == 100
            assert [two.value(frame) for frame in two.frames()] == list(range(20))


def test_c73_a_key_in_a_result_is_in_no_file(work: Path, keys: Keys) -> None:
    """`grep` finds it nowhere below the workspace and the state folder; the handle returns it."""
    secret = "sk-ant-api03-" + "Zx9" * 20
    history = conversation(10)
    history[2]["content"][0]["content"] = f"API_KEY={secret}\n" + "x\n" * 40_000
    converse(work, keys, history)
    command = ["grep", "-rac", secret[:20], str(work.parent)]
    found = subprocess.run(command, capture_output=True, check=False)
    assert b":0\n" in found.stdout
    assert (found.returncode, found.stderr) == (1, b"")
    with Transcript.open(work, "one", keys) as transcript:
        assert secret.encode() in transcript.read(transcript.handles()[0])


def test_c76_keys_come_from_no_fact_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two first uses on one host, by one user, at one place make two keys of 32 bytes."""
    made = []
    for _ in range(2):
        monkeypatch.setenv("COMPACTOR_STATE", str(tmp_path / "state"))
        key = Keys.default()
        assert key.made
        made.append(base64.b64decode((tmp_path / "state/host.key").read_bytes()))
        (tmp_path / "state/host.key").unlink()
    assert [len(key) for key in made] == [32, 32]
    assert made[0] != made[1]


def test_c78_each_record_is_sealed_alone(
    vault: Vault, write: Callable[..., None], folder: Path
) -> None:
    """Equal records have no bytes in common, and one that was changed is the one refused."""
    write(*["the same"] * 5)
    lane = folder / "000001.lane"
    data = lane.read_bytes()
    with vault.read("one") as reader:
        frames = list(reader.frames())
    sealed = [data[frame.offset + 17 : frame.offset + 17 + 104] for frame in frames]
    blocks = [each[at : at + 8] for each in sealed for at in range(0, 104, 8)]
    assert len(set(blocks)) == len(blocks)
    at = frames[2].offset + 60
    lane.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with vault.read("one") as reader:
        for number, frame in enumerate(reader.frames()):
            if number == 2:
                with pytest.raises(Damaged):
                    reader.value(frame)
            else:
                assert reader.value(frame) == "the same"


def name_of_the_blob(vault: Vault) -> str:
    with vault.read("one") as reader:
        (lifted,) = [one for frame in reader.frames() for one in reader.blobs(frame)]
    return lifted.name


def test_c84_a_page_costs_the_memory_of_a_page(vault: Vault, write: Callable[..., None]) -> None:
    """Parts, lines and a walk through 12 MB of content each take less than 1 MiB."""
    line = os.urandom(600).hex() + "\n"
    write("".join(f"{number} {line}" for number in range(10_000)))
    name = name_of_the_blob(vault)
    with vault.read("one") as reader, reader.blob(name) as blob:
        assert blob.size > 12_000_000
        tracemalloc.start()
        try:
            assert len(blob.read(7_000_000, 4_096)) == 4_096
            assert blob.read_lines(9_000, 2).startswith(b"9000 ")
            assert sum(map(len, blob.pages())) == blob.size
            assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
        finally:
            tracemalloc.stop()


def test_c85_the_same_result_again_costs_no_second_copy(work: Path, keys: Keys) -> None:
    """In one message, in a later one, and after a restart."""
    text = os.urandom(40_000).hex()
    history = conversation(1)
    for number in range(10, 14):
        history += exchange(number, text)
    converse(work, keys, history[:7])
    first = size_of(work)
    converse(work, keys, history, start=9)
    assert len(list((work / ".transcripts/s/one/blobs").iterdir())) == 1
    assert size_of(work) - first < len(text) // 4


@pytest.mark.parametrize("handle", ["../../../etc/passwd", "/etc/passwd", "", "out-", "x" * 9_000])
def test_c92_what_is_read_is_named_by_a_handle_and_no_path(
    work: Path, keys: Keys, handle: str
) -> None:
    """Whatever else is asked for is unknown to the session, and is no part of a path."""
    converse(work, keys, conversation(12))
    with Transcript.open(work, "one", keys) as transcript:
        assert transcript.handles()
        with pytest.raises(UnknownHandle):
            transcript.read(handle)


def test_c92_the_place_of_a_vault_can_be_chosen(
    work: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `COMPACTOR_HOME` nothing is written into the workspace, and all is found again."""
    monkeypatch.setenv("COMPACTOR_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    history = conversation(3)
    converse(work, keys, history)
    assert list(work.iterdir()) == []
    with Transcript.open(work, "one", keys) as transcript:
        assert transcript.messages() == history


def test_c93_a_file_that_is_gone_is_a_clear_answer(work: Path, keys: Keys) -> None:
    """A typed error with the handle, from the transcript; the audit names the missing file."""
    converse(work, keys, conversation(4, 90_000))
    for blob in (work / ".transcripts/s/one/blobs").iterdir():
        blob.unlink()
    with Transcript.open(work, "one", keys) as transcript:
        for handle in transcript.handles():
            with pytest.raises(Damaged, match="cannot be read any more") as caught:
                transcript.read(handle)
            assert caught.value.where == handle
    findings = verify(vault_of(work, keys), "one").findings
    assert len([each for each in findings if "missing" in each.what and each.blob]) == 4


def test_f26_what_the_vault_did_not_write_stays(work: Path, keys: Keys, lane: Path) -> None:
    """Writing, resuming, reading and auditing remove no file of anybody else."""
    history = conversation(12)
    converse(work, keys, history[:9])
    strange = [lane.parents[2] / "notes.txt", lane.with_name("x.lane"), lane.with_name("a.json")]
    strange += [lane.parent / "blobs" / "README", lane.parents[1] / "backup"]
    for path in strange:
        path.write_text("not ours")
        path.chmod(0o600)
    converse(work, keys, history, start=11)
    assert verify(vault_of(work, keys), "one").verdict == "whole"
    assert [path.read_text() for path in strange] == ["not ours"] * len(strange)


def test_f52_one_line_of_two_megabytes_is_read_in_pieces(
    vault: Vault, write: Callable[..., None]
) -> None:
    """A line is cut behind a given size, and pieces of bytes put together are the content."""
    text = os.urandom(1_000_000).hex()
    write(text)
    name = name_of_the_blob(vault)
    with vault.read("one") as reader, reader.blob(name) as blob:
        assert (blob.size, blob.lines) == (2_000_000, 1)
        assert blob.read_lines(0, 1, at_most=16_000) == text[:16_000].encode()
        pieces = [blob.read(at, 300_000) for at in range(0, blob.size, 300_000)]
        assert b"".join(pieces) == text.encode()
        assert blob.read(blob.size, 300_000) == b""


def test_f61_a_structured_value_is_exact_and_its_text_has_lines(
    vault: Vault, write: Callable[..., None], read: Callable[..., list[object]]
) -> None:
    """Long texts inside it are stored as texts, with their own line numbers."""
    lines = [f"line {number}\r" for number in range(5_000)]
    value = {"stdout": "\n".join(lines), "code": 1.0, "parts": [{"text": "\u2028short"}, None]}
    write(value)
    assert repr(read()) == repr([value])
    name = name_of_the_blob(vault)
    with vault.read("one") as reader, reader.blob(name) as blob:
        assert blob.lines == 5_000
        assert blob.read_lines(4_321, 2) == b"line 4321\r\nline 4322\r\n"


def test_f65_a_folder_that_leads_out_is_neither_read_nor_written(
    work: Path, keys: Keys, tmp_path: Path
) -> None:
    """A session whose folder was replaced by a link: every door is shut, and nothing is there."""
    history = conversation(3)
    converse(work, keys, history)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    folder = work / ".transcripts/s/one"
    folder.rename(folder.with_name("old"))
    folder.symlink_to(outside)
    with pytest.raises(PermissionError):
        Transcript.open(work, "one", keys)
    with pytest.raises(PermissionError):
        Compactor.open(work, "one", policy=POLICY, keys=keys)
    assert verify(vault_of(work, keys), "one").verdict == "unreadable"
    assert list(outside.iterdir()) == []


def test_f68_a_wrong_key_changes_no_byte(work: Path, keys: Keys) -> None:
    """A typed error for the writer and the reader, and a verdict of its own."""
    converse(work, keys, conversation(12))
    wrong = Keys(bytes(32), keys.state)
    before = {path: path.read_bytes() for path in work.parent.rglob("*") if path.is_file()}
    with pytest.raises(WrongKey):
        Compactor.open(work, "one", policy=POLICY, keys=wrong)
    with pytest.raises(WrongKey):
        Transcript.open(work, "one", wrong)
    assert verify(vault_of(work, wrong), "one").verdict == "wrong key"
    assert {p: p.read_bytes() for p in work.parent.rglob("*") if p.is_file()} == before


def spoil(work: Path, keys: Keys, lane: Path, number: int) -> Place:
    """Change a byte of the payload of the record of messages of this number."""
    with vault_of(work, keys).read("one") as reader:
        frames = [frame for frame in reader.frames() if frame.kind is Kind.MESSAGES]
    data = bytearray(lane.read_bytes())
    data[frames[number].offset + 99] ^= 1
    lane.write_bytes(data)
    return frames[number].place


def test_f68_one_corrupt_record_blocks_no_other(work: Path, keys: Keys, lane: Path) -> None:
    """Each record but that one opens, and the session goes on as before."""
    history = conversation(12)
    converse(work, keys, history)
    place = spoil(work, keys, lane, 2)
    converse(work, keys, [*history, *exchange(77, "next")], start=27)
    refused = []
    with vault_of(work, keys).read("one") as reader:
        for frame in reader.frames():
            try:
                reader.value(frame)
            except Damaged:
                refused.append(frame.place)
        assert not reader.skipped
    assert refused == [place]


def test_f68_nothing_is_hidden_behind_a_record_that_does_not_open(
    work: Path, keys: Keys, lane: Path
) -> None:
    """What a resumed session newly leaves out reads back: the history at hand has it still."""
    history = conversation(14)
    converse(work, keys, history[:7])
    spoil(work, keys, lane, 1)
    converse(work, keys, history, start=9)
    with Transcript.open(work, "one", keys) as transcript:
        originals = [transcript.read(handle).decode() for handle in transcript.handles()]
    assert history[2]["content"][0]["content"] in originals
