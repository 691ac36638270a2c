"""A second reader, written from FORMAT.md and sharing no code with the first.

`golden_v1.json` is a vault as the first release of format 1 wrote it: it must open for ever.
"""

import base64
import hashlib
import hmac
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.cobblestone import Cobblestone256Decryptor
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from compactor.storage import Keys, Kind, Vault

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HOST_KEY = bytes(range(32))
GOLDEN = Path(__file__).with_name("golden_v1.json")
VALUES: list[tuple[Kind, Any]] = [
    (Kind.OPEN, {"host": "golden", "n": 1}),
    (
        Kind.MESSAGES,
        [{"role": "user", "content": "short ü 😀 \u2028"}, -0.0, 2**70, "\ud83d\ude00"],
    ),
    (Kind.MESSAGES, {"content": [{"text": "line\n" * 30_000}, "tail"]}),
    (Kind.SET, {"many": ["word"] * 60_000, "wide": "\ud800"}),
    (Kind.REQUEST, {"at": 3, "text": "the same words, " * 20}),
    (Kind.REVERT, None),
    (Kind.CLOSE, {}),
]


class SecondReader:
    """Reads one session of a vault whose files are all whole."""

    def __init__(self, vault: Path, state: Path, session: str) -> None:
        text = json.loads((vault / "STORE.json").read_text())["store_id"].upper()
        self.store = base64.b32decode(text + "=" * (-len(text) % 8))
        self.session = session
        self.folder = vault / "s" / session
        slot = (state / "slots" / text.lower() / f"{session}.slot").read_bytes()
        assert slot[:12] == b"CPTRSLOT\x01\x01\0\0"
        assert zlib.crc32(slot[:116]) == int.from_bytes(slot[116:], "big")
        wrapping = self.derive(HOST_KEY, b"slot")
        self.key = self.open(wrapping, b"slot", slot[:12], slot[12:116])

    def context(self, kind: bytes, position: bytes) -> bytes:
        fields = (kind, self.store, self.session.encode(), position)
        return b"compactor/1\0" + b"".join(struct.pack(">I", len(f)) + f for f in fields)

    def derive(self, key: bytes, purpose: bytes) -> bytes:
        return HKDF(SHA256(), 32, None, self.context(b"key", purpose)).derive(key)

    def open(self, key: bytes, kind: bytes, position: bytes, sealed: bytes) -> bytes:
        decryptor = Cobblestone256Decryptor(key, self.context(kind, position))
        return decryptor.update(sealed) + decryptor.finalize()

    def records(self) -> Iterator[tuple[int, Any]]:
        for number, path in enumerate(sorted(self.folder.glob("*.lane")), 1):
            data = path.read_bytes()
            header = data[:64]
            assert header == data[64:128]
            assert header[:12] == b"CPTRLANE\x01\x01\0\0"
            assert header[12:32] == struct.pack(">I", number) + self.store
            check = hmac.digest(self.derive(self.key, b"check"), header[:48], "sha256")[:12]
            assert header[48:] == check + struct.pack(">I", zlib.crc32(header[:60]))
            before, offset, count = header, 128, 0
            while offset < len(data):
                length, kind, seq, checksum = struct.unpack_from(">IBQI", data, offset)
                frame = data[offset : offset + 17 + length]
                count += 1
                assert (seq, checksum) == (count, zlib.crc32(frame[:13]))
                position = header + frame[4:13]
                text = self.open(self.derive(self.key, b"lane"), b"lane", position, frame[17:])
                assert text[:32] == hashlib.sha256(before).digest()
                yield kind, self.value(text[32], text[33:])
                before, offset = frame, offset + len(frame)

    def value(self, flags: int, text: bytes) -> Any:
        if flags & 1:
            text = zstd.decompress(text)
        value = json.loads(text.decode("utf-8", "surrogatepass"))
        if not flags & 2:
            return value
        holder = [value[0]]
        for path, name, form in value[1]:
            content = self.blob(name).decode("utf-8", "surrogatepass")
            place: Any = holder
            steps = [0, *path]
            for step in steps[:-1]:
                place = place[step]
            assert place[steps[-1]] is None
            place[steps[-1]] = content if form == "text" else json.loads(content)
        return holder[0]

    def blob(self, name: str) -> bytes:
        data = (self.folder / "blobs" / f"{name}.blob").read_bytes()
        digest = base64.b32decode(name.upper())
        zero = bytes(5)
        assert data[:64] == b"CPTRBLOB\x01\x01\x01" + zero + self.store + digest + bytes(12)
        pack = self.open(self.derive(self.key, b"blob"), b"blob", data[:64], data[64:])
        magic, count, _, table, size, lines = struct.unpack(">8sIIQQQ", pack[-40:])
        assert magic == b"CPTREND\0"
        content = b""
        for row in range(count):
            offset, packed, raw, line = struct.unpack_from(">QIIQ", pack, table + 24 * row)
            assert line == content.count(b"\n")
            content += zstd.decompress(pack[offset : offset + packed])
            assert len(content) == row * 65_536 + raw
        assert (len(content), content.count(b"\n") + (content[-1:] != b"\n")) == (size, lines)
        assert hmac.digest(self.derive(self.key, b"name"), content, "sha256")[:20] == digest
        return content


def make_golden(top: Path) -> None:
    """Write the golden vault below `top`: two lanes, both forms of blobs."""
    vault = Vault.create(top / "vault", Keys(HOST_KEY, top / "state"))
    for part in (VALUES[:4], VALUES[4:]):
        with vault.write("golden.1") as writer:
            writer.append(part)
            writer.sync()


def unpack_golden(top: Path) -> None:
    top.chmod(0o700)
    for name, text in json.loads(GOLDEN.read_text()).items():
        path = top / name
        for folder in reversed(path.relative_to(top).parents):
            (top / folder).mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(text))


def test_the_second_reader_reads_what_is_written_now(tmp_path: Path) -> None:
    """FORMAT.md says what the code does."""
    make_golden(tmp_path)
    records = list(SecondReader(tmp_path / "vault", tmp_path / "state", "golden.1").records())
    assert repr(records) == repr([(int(kind), value) for kind, value in VALUES])


def test_a_vault_of_the_first_release_opens(tmp_path: Path) -> None:
    """With both readers; and a writer goes on in it."""
    unpack_golden(tmp_path)
    records = list(SecondReader(tmp_path / "vault", tmp_path / "state", "golden.1").records())
    vault = Vault.open(tmp_path / "vault", Keys(HOST_KEY, tmp_path / "state"))
    with vault.read("golden.1") as reader:
        frames = list(reader.frames())
        assert all(reader.follows(frame) for frame in frames)
        assert records == [(int(frame.kind), reader.value(frame)) for frame in frames]
    assert repr(records) == repr([(int(kind), value) for kind, value in VALUES])
    with vault.write("golden.1") as writer:
        assert writer.append([(Kind.OPEN, {})])[0].lane == 3
