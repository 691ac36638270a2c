"""Auditors: a copy of the vault and a private key are enough, and nothing less is."""

import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from compactor.storage import (
    BadName,
    Damaged,
    Keys,
    MissingKey,
    NotStored,
    Recipient,
    SessionBusy,
    StorageError,
    Vault,
    WrongKey,
    files,
    locks,
    recipients,
    slots,
)
from compactor.storage.names import unb32

Write = Callable[..., None]
Introduce = Callable[..., Path]


@pytest.fixture
def introduce(tmp_path: Path, keys: Keys) -> Introduce:
    """Make somebody known to the host; their identity file comes back."""

    def introduce_one(name: str, *, recovery: bool = False) -> Path:
        path = tmp_path / f"{name}.identity"
        public = recipients.parse_public(recipients.new_identity(path, name))
        recipients.add(keys.state, Recipient(name, public, recovery))
        return path

    return introduce_one


@pytest.fixture
def auditor(introduce: Introduce) -> Path:
    """The identity file of alice, whom the host knows."""
    return introduce("alice")


def values(root: Path, keys: Keys, session: str = "one") -> list[object]:
    with Vault.open(root, keys).read(session) as reader:
        return [reader.value(frame) for frame in reader.frames()]


def public_of(identity: Path) -> bytes:
    return recipients.read_identity(identity).public_key().public_bytes_raw()


def test_an_auditor_needs_a_copy_and_a_private_key_and_nothing_else(
    root: Path, write: Write, auditor: Path, tmp_path: Path
) -> None:
    """On another machine: an empty home, no state folder, a vault that cannot be written to."""
    write("secret", "x" * 50_000)
    copy, home = tmp_path / "copy", tmp_path / "home"
    shutil.copytree(root, copy)
    home.mkdir()
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    code = (
        "import sys; from pathlib import Path; from compactor.storage import Keys, Vault\n"
        "vault = Vault.open(Path(sys.argv[1]), Keys.identity(Path(sys.argv[2])))\n"
        "with vault.read('one') as reader:\n"
        "    print([len(reader.value(frame)) for frame in reader.frames()])"
    )
    command = [sys.executable, "-c", code, str(copy), str(auditor)]
    said = subprocess.run(command, env={"HOME": str(home)}, capture_output=True, check=True)
    assert said.stdout == b"[6, 50000]\n"
    assert list(home.iterdir()) == []


def test_the_format_says_what_is_written(
    vault: Vault, root: Path, write: Write, auditor: Path
) -> None:
    """A second reader of recipients.slots, from FORMAT.md alone."""
    write("x")
    data = (root / "s/one/recipients.slots").read_bytes()
    store, private = unb32(vault.id), recipients.read_identity(auditor)
    assert data[:28] == b"CPTRRCPT\x01\x02\0\0" + store
    assert data[28:60] == private.public_key().public_bytes_raw()
    assert data[140:] == struct.pack(">I", zlib.crc32(data[:140]))
    fields = (b"recipient", store, b"one", data[:12])
    info = b"compactor/1\0" + b"".join(struct.pack(">I", len(f)) + f for f in fields)
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    assert len(suite.decrypt(data[60:140], private, info)) == 32


def test_no_auditors_no_file(root: Path, write: Write) -> None:
    """Without recipients nothing is written, and an identity finds no slot."""
    write("x")
    assert not list(root.rglob("recipients*"))


def test_a_stranger_gets_an_error_with_a_hint_and_never_an_empty_session(
    root: Path, write: Write, auditor: Path, tmp_path: Path
) -> None:
    """Neither the auditor of another host nor one without any slots file opens anything."""
    write("x")
    recipients.new_identity(tmp_path / "eve")
    for identity, remove in ((tmp_path / "eve", False), (auditor, True)):
        if remove:
            (root / "s/one/recipients.slots").unlink()
        with pytest.raises(MissingKey) as caught:
            Vault.open(root, Keys.identity(identity)).read("one")
        assert caught.value.hint
        with pytest.raises(MissingKey):
            Vault.open(root, Keys.identity(identity)).write("two")


def test_a_flipped_or_missing_byte_is_noticed(root: Path, write: Write, auditor: Path) -> None:
    """At every position, with every reader; nothing opens wrong."""
    write("x")
    path = root / "s/one/recipients.slots"
    whole, keys = path.read_bytes(), Keys.identity(auditor)
    vault = Vault.open(root, keys)
    bad = [whole[:at] + bytes([byte ^ 1]) + whole[at + 1 :] for at, byte in enumerate(whole)]
    bad += [whole[:size] for size in range(len(whole))] + [whole + b"x", whole * 2, bytes(40_000)]
    for data in bad:
        path.write_bytes(data)
        with pytest.raises(Damaged) as caught:
            vault.read("one")
        assert caught.value.hint
    path.write_bytes(whole)
    assert values(root, keys) == ["x"]


def test_a_forged_row_does_not_open(root: Path, write: Write, auditor: Path) -> None:
    """A right checksum over changed bytes is damage; a wrapped other key is a wrong key."""
    write("x")
    path, keys = root / "s/one/recipients.slots", Keys.identity(auditor)
    whole = path.read_bytes()[:-4]

    def put(body: bytes) -> None:
        path.write_bytes(body + struct.pack(">I", zlib.crc32(body)))

    for at in (60, 100, 139):
        put(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Damaged):
            values(root, keys)
    for body in (whole[:-1], whole[:28] + bytes(111), whole[:8] + b"\x02" + whole[9:]):
        put(body)
        with pytest.raises(Damaged):
            values(root, keys)
    path.unlink()
    with files.Folder.open(root / "s/one") as folder:
        slots.share(folder, whole[12:28], "one", os.urandom(32), add=[public_of(auditor)])
    with pytest.raises(WrongKey):
        values(root, keys)


def test_slots_of_another_session_or_vault_do_not_open(
    root: Path, write: Write, keys: Keys, auditor: Path, tmp_path: Path
) -> None:
    """They were written for the same auditor, and are damage where they stand."""
    write("x")
    write("y", session="two")
    other = Vault.create(tmp_path / "other", keys)
    with other.write("one") as writer:
        writer.append([])
    for source in (root / "s/two", tmp_path / "other/s/one"):
        (root / "s/one/recipients.slots").write_bytes((source / "recipients.slots").read_bytes())
        with pytest.raises(Damaged, match=r"moved|another vault"):
            values(root, Keys.identity(auditor))
    assert values(root, keys) == ["x"]


def test_a_new_auditor_gets_existing_sessions_where_their_key_is(
    vault: Vault, write: Write, keys: Keys, introduce: Introduce
) -> None:
    """Sessions whose key is not here are named; asking again changes nothing."""
    write("x")
    write("y", session="two")
    next(keys.state.rglob("two.slot")).unlink()
    alice, bob = (introduce(name) for name in ("alice", "bob"))
    done = vault.share()
    assert (done.changed, done.unchanged, list(done.refused)) == (["one"], [], ["two"])
    assert isinstance(done.refused["two"], MissingKey)
    before = (vault.root / "s/one/recipients.slots").read_bytes()
    assert vault.share().unchanged == ["one"]
    assert (vault.root / "s/one/recipients.slots").read_bytes() == before
    assert vault.readers("one") == sorted([public_of(alice), public_of(bob)])
    assert (
        values(vault.root, Keys.identity(alice)) == values(vault.root, Keys.identity(bob)) == ["x"]
    )


def test_a_removed_auditor_opens_what_they_could_and_nothing_later(
    vault: Vault, write: Write, keys: Keys, introduce: Introduce
) -> None:
    """`drop` takes the slot out of existing sessions too; others keep theirs."""
    auditor, bob = introduce("alice"), introduce("bob")
    write("x")
    assert recipients.remove(keys.state, "alice").public == public_of(auditor)
    write("y", session="two")
    assert values(vault.root, Keys.identity(auditor)) == ["x"]
    with pytest.raises(MissingKey):
        values(vault.root, Keys.identity(auditor), "two")
    assert values(vault.root, Keys.identity(bob), "two") == ["y"]
    vault.share(drop=frozenset({public_of(auditor)}))
    with pytest.raises(MissingKey):
        values(vault.root, Keys.identity(auditor))
    assert values(vault.root, Keys.identity(bob)) == ["x"]


def test_what_stands_there_before_a_session_is_written_does_not_count(
    vault: Vault, write: Write, keys: Keys, introduce: Introduce
) -> None:
    """Neither slots that somebody planted nor those for an auditor who was removed meanwhile."""
    alice, bob = introduce("alice"), introduce("bob")
    vault.write("one").close()
    recipients.remove(keys.state, "alice")
    with files.Folder.open(vault.root / "s/one") as folder:
        publics = [public_of(alice), public_of(bob)]
        slots.share(folder, unb32(vault.id), "one", bytes(32), add=publics, drop=publics)
    write("x")
    assert vault.readers("one") == [public_of(bob)]
    assert values(vault.root, Keys.identity(bob)) == ["x"]
    recipients.remove(keys.state, "bob")
    write("y", session="two")
    assert not (vault.root / "s/two/recipients.slots").exists()


def test_an_auditor_who_comes_while_a_session_is_made_is_not_lost(
    vault: Vault, write: Write, introduce: Introduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added and shared after the list was read, before the new session's slots are written."""
    introduce("alice")
    share = slots.share
    came: list[Path] = []

    def late(*args: Any, **named: Any) -> bool:
        if not came:
            came.append(introduce("bob"))
            assert vault.share().refused == {}
        return share(*args, **named)

    monkeypatch.setattr("compactor.storage.keys.share", late)
    write("x")
    assert values(vault.root, Keys.identity(came[0])) == ["x"]


def test_an_interrupted_rewrite_leaves_the_old_file_or_the_new(
    vault: Vault, write: Write, introduce: Introduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step fails; the next rewrite removes what was left lying about."""
    auditor = introduce("alice")
    write("x")
    introduce("bob")
    for step in ("write_all", "sync_file", "sync_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(files, step, lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
            assert isinstance(vault.share().refused["one"], NotStored)
        assert values(vault.root, Keys.identity(auditor)) == ["x"]
    left = vault.root / "s/one/recipients.slots.0123.tmp"
    left.touch(0o600)
    (vault.root / "s/one/recipients.slots").unlink()
    assert vault.share().changed == ["one"]
    assert not left.exists()


def test_two_hosts_that_add_at_once_lose_none(
    vault: Vault, write: Write, keys: Keys, introduce: Introduce, tmp_path: Path
) -> None:
    """Twelve forked processes, each with an auditor of its own, over one list and one session."""
    write("x")
    identities = [tmp_path / f"{n}.identity" for n in range(12)]
    children = []
    for n in range(12):
        if (child := os.fork()) == 0:
            try:
                introduce(str(n))
                os._exit(0 if vault.share().refused == {} else 2)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 12
    assert len(recipients.known(keys.state)) == 12
    assert vault.readers("one") == sorted(map(public_of, identities))
    assert all(values(vault.root, Keys.identity(one)) == ["x"] for one in identities)


def test_a_change_waits_for_another_but_not_for_ever(
    vault: Vault, root: Path, write: Write, auditor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is none of the session's writer, who may be at work."""
    write("x")
    (root / "s/one/recipients.slots").unlink()
    monkeypatch.setattr(locks, "CHANGE_WAIT", 0.02)
    with vault.write("one"):
        with (
            files.Folder.open(root / "s/one") as folder,
            locks.alone(folder, "recipients.lock", "it"),
        ):
            assert isinstance(vault.share().refused["one"], SessionBusy)
        assert vault.share().changed == ["one"]
    assert values(root, Keys.identity(auditor)) == ["x"]


def test_all_is_for_the_owner_alone(root: Path, write: Write, keys: Keys, auditor: Path) -> None:
    """0600 under an umask of 0, for the list, the slots, the locks and the identity."""
    old = os.umask(0)
    try:
        write("x")
        recipients.new_identity(auditor.with_name("other"))
        recipients.remove(keys.state, "alice")
    finally:
        os.umask(old)
    paths = [*root.rglob("recipients*"), *keys.state.glob("*[!s]"), auditor.with_name("other")]
    assert {path.name for path in paths} >= {
        *("recipients.slots", "recipients.lock", "keys.lock", "other"),
    }
    assert {path.stat().st_mode & 0o777 for path in [*paths, keys.state / "recipients"]} == {0o600}


def test_the_list_is_text_and_keeps_what_people_write_into_it(
    keys: Keys, auditor: Path, introduce: Introduce
) -> None:
    """One line a recipient; comments stay; the recovery mark is on one."""
    path = keys.state / "recipients"
    key = recipients.spell(recipients.PUBLIC, public_of(auditor))
    assert path.read_text() == f"alice {key}\n"
    path.write_text(f"# ours\n\nalice  {key}\n")
    introduce("bob", recovery=True)
    recipients.add(keys.state, Recipient("alice", public_of(auditor), recovery=True))
    lines = path.read_text().splitlines()
    assert lines[:3] == ["# ours", "", f"alice {key} recovery"]
    assert [(one.name, one.recovery) for one in recipients.known(keys.state)] == [
        ("alice", True),
        ("bob", False),
    ]
    recipients.remove(keys.state, key)
    assert [one.name for one in recipients.known(keys.state)] == ["bob"]


def test_names_and_keys_are_not_taken_twice(keys: Keys, auditor: Path, tmp_path: Path) -> None:
    """Adding the same again is no error; removing who is not there is one."""
    recipients.new_identity(tmp_path / "bob")
    alice, bob = public_of(auditor), public_of(tmp_path / "bob")
    recipients.add(keys.state, Recipient("alice", alice))
    for bad in (Recipient("alice", bob), Recipient("bob", alice)):
        with pytest.raises(BadName):
            recipients.add(keys.state, bad)
    with pytest.raises(BadName):
        recipients.remove(keys.state, "bob")
    assert recipients.known(keys.state) == [Recipient("alice", alice)]


def test_a_damaged_list_stops_new_sessions_and_says_which_line(
    vault: Vault, keys: Keys, auditor: Path
) -> None:
    """No session is made that an auditor could not open unnoticed."""
    assert auditor
    path = keys.state / "recipients"
    line = path.read_text().strip()
    for bad in (line[:-1], line + " what", "alice", line.upper(), "../x " + line.split()[1]):
        path.write_text(f"# first\n{bad}\n")
        with pytest.raises(Damaged, match="line 2"):
            vault.write("new")


def test_a_slip_in_a_key_is_noticed_and_no_key_is_quoted(tmp_path: Path, auditor: Path) -> None:
    """Every changed character; a private key in the place of a public one, and the reverse."""
    public = recipients.spell(recipients.PUBLIC, public_of(auditor))
    private = auditor.read_text().splitlines()[-1]
    assert f"# public key: {public}" in auditor.read_text().splitlines()
    for at in range(len(public)):
        with pytest.raises(WrongKey):
            recipients.parse_public(
                public[:at] + ("a" if public[at] != "a" else "b") + public[at + 1 :]
            )
    for bad in (private, public[:-1], public + "a", "", private.replace("private", "public")):
        with pytest.raises(WrongKey) as caught:
            recipients.parse_public(bad)
        assert not bad or bad not in f"{caught.value} {caught.value.hint}"
    for text in (public, f"{private}\n{private}", "", private[:-1], "\udcff"):
        (tmp_path / "bad").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(WrongKey):
            Keys.identity(tmp_path / "bad")
    with pytest.raises(MissingKey):
        Keys.identity(tmp_path / "none")


def test_a_key_that_lets_nobody_in_is_refused() -> None:
    """A point of low order passes every checksum and would fail when a session is made."""
    with pytest.raises(WrongKey):
        recipients.parse_public(recipients.spell(recipients.PUBLIC, bytes(32)))


def test_an_identity_overwrites_nothing_and_shows_nothing(auditor: Path) -> None:
    """Neither an existing file nor a link's target; the representation holds no key."""
    link = auditor.with_name("link")
    link.symlink_to(auditor.with_name("target"))
    for path in (auditor, link):
        with pytest.raises(NotStored):
            recipients.new_identity(path)
    assert not link.exists()
    secret = recipients.read_identity(auditor).private_bytes_raw()
    shown = repr(Keys.identity(auditor))
    assert repr(secret)[2:-1] not in shown
    assert "hidden" in shown


def test_too_many_recipients_are_refused(
    root: Path, write: Write, vault: Vault, keys: Keys
) -> None:
    """The file has a bound that a reader relies on."""
    write("x")
    publics = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(257)]
    key = keys.session_key
    with files.Folder.open(root / "s/one") as folder:
        session_key = key(unb32(vault.id), "one", folder)
        share = slots.share
        share(folder, unb32(vault.id), "one", session_key, add=publics[1:])
        with pytest.raises(StorageError, match="256"):
            share(folder, unb32(vault.id), "one", session_key, add=publics[:1])
    assert len(vault.readers("one")) == 256
