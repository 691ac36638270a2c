"""Ranges: of a sealed message, and of a blob; what was not asked for is not touched."""

import errno
import itertools
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.cobblestone import Cobblestone256Decryptor
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.storage import Damaged, Kind, NotStored, StorageError, Vault, WrongKey, files
from compactor.storage.blobs import FRAME, Blob, open_blob, pack, seal_blob, unpack
from compactor.storage.names import b32
from compactor.storage.ranges import CHUNK, SealedMessage, seal_pieces
from compactor.storage.sealing import SessionKeys, seal, unseal

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KEY, CONTEXT = bytes(range(32)), b"here"
SESSION = SessionKeys.derive(bytes(32), bytes(16), "one")
EDGES = [n * CHUNK + step for n in range(3) for step in (-1, 0, 1) if n or step >= 0]
SPAN = 3 * FRAME


class Source:
    """Bytes that know which of them were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[int] = []

    def __call__(self, size: int, offset: int) -> bytes:
        self.reads.append(size)
        return self.data[offset : offset + size]


def message(sealed: bytes, key: bytes = KEY, context: bytes = CONTEXT) -> SealedMessage:
    return SealedMessage(key, context, Source(sealed), len(sealed), where="it")


def theirs(sealed: bytes, key: bytes, context: bytes) -> bytes:
    decryptor = Cobblestone256Decryptor(key, context)
    return decryptor.update(sealed) + decryptor.finalize()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def named(content: bytes) -> str:
    return b32(SESSION.digest(content))


def blob(content: bytes) -> Blob:
    sealed = seal_blob(SESSION, named(content), content)
    return Blob(SESSION, named(content), Source(sealed), len(sealed))


# The parts of a message.


@pytest.mark.parametrize("size", EDGES)
def test_every_range_around_the_edges_of_chunks(size: int) -> None:
    """Equals the same range of the whole decryption, in any order of reading."""
    sealed = seal(KEY, CONTEXT, os.urandom(size))
    whole = unseal(KEY, CONTEXT, sealed, where="it")
    mine = message(sealed)
    assert mine.size == size
    for start, end in itertools.product([*EDGES, size], repeat=2):
        assert mine.read(max(end - start, 0), start) == whole[start:end]


@given(st.integers(0, 2 * CHUNK + 9), st.integers(0, 3 * CHUNK), st.integers(0, 3 * CHUNK))
@settings(deadline=None)
def test_any_range_of_any_message(size: int, start: int, length: int) -> None:
    """Ends where the message ends."""
    data = (b"%06d" * 6000 % tuple(range(6000)))[:size]
    assert message(seal(KEY, CONTEXT, data)).read(length, start) == data[start : start + length]


@given(st.lists(st.binary(max_size=99) | st.just(bytes(CHUNK)), max_size=5))
@settings(deadline=None, max_examples=50)
def test_sealing_in_pieces_is_sealing(pieces: list[bytes]) -> None:
    """However they are cut."""
    whole = b"".join(pieces)
    assert unseal(KEY, CONTEXT, b"".join(seal_pieces(KEY, CONTEXT, pieces)), where="") == whole


def test_only_the_chunks_of_a_range_are_read() -> None:
    """And the header and the last chunk, once."""
    source = Source(seal(KEY, CONTEXT, bytes(100 * CHUNK)))
    mine = SealedMessage(KEY, CONTEXT, source, len(source.data), where="it")
    mine.read(2, 50 * CHUNK - 1)
    mine.read(CHUNK, 49 * CHUNK)
    assert source.reads == [56, 16, CHUNK + 16, CHUNK + 16]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_changed_chunk_is_never_returned(index: int) -> None:
    """The others are; without the last one nothing is."""
    data = os.urandom(2 * CHUNK + 5)
    sealed = bytearray(seal(KEY, CONTEXT, data))
    sealed[56 + index * (CHUNK + 16)] ^= 1
    if index == 2:
        with pytest.raises(Damaged, match="does not open"):
            message(bytes(sealed))
        return
    mine = message(bytes(sealed))
    assert mine.read(CHUNK, (1 - index) * CHUNK) == data[(1 - index) * CHUNK :][:CHUNK]
    for length, start in ((1, index * CHUNK), (len(data), 0), (2, CHUNK - 1)):
        with pytest.raises(Damaged):
            mine.read(length, start)


def test_a_cut_message_does_not_open() -> None:
    """At any size around the edges of its chunks, be it by less than a tag."""
    sealed = seal(KEY, CONTEXT, os.urandom(2 * CHUNK + 20))
    edges = [0, 24, 56, *(56 + n * (CHUNK + 16) for n in (1, 2)), len(sealed)]
    cuts = {edge + step for edge in edges for step in range(-18, 18)}
    for size in sorted(cut for cut in cuts if 0 <= cut < len(sealed)):
        with pytest.raises(Damaged):
            message(sealed[:size])
    with pytest.raises(Damaged):
        SealedMessage(KEY, CONTEXT, Source(sealed[:-1]), len(sealed), where="it")


def test_another_key_context_or_key_size_does_not_open() -> None:
    """The commitment tells, before a chunk is opened."""
    sealed = seal(KEY, CONTEXT, b"text")
    for key, context in ((KEY[::-1], CONTEXT), (KEY, CONTEXT + b"!")):
        with pytest.raises(Damaged):
            message(sealed, key, context)
    for key in (KEY[:-1], KEY + b"\0", b""):
        with pytest.raises(WrongKey):
            message(sealed, key)
        with pytest.raises(WrongKey):
            next(seal_pieces(key, CONTEXT, []))


# The parts of a blob.

PIECES = st.sampled_from(
    [b"", b"\n", b"line\n", b"\r\n\n", bytes(FRAME - 1), bytes(FRAME), b"\n" * FRAME, b"end"]
)


@given(st.lists(PIECES, max_size=6), st.integers(0, SPAN), st.integers(0, SPAN))
@settings(deadline=None, max_examples=50)
def test_ranges_of_a_blob(pieces: list[bytes], start: int, length: int) -> None:
    """Equal those of the content, up to its end."""
    content = b"".join(pieces)
    it = blob(content)
    assert it.size == len(content)
    assert it.read(start, length) == content[start : start + length]
    assert b"".join(it.pages()) == content


@given(st.lists(PIECES, max_size=6), st.data())
@settings(deadline=None, max_examples=50)
def test_lines_of_a_blob(pieces: list[bytes], data: st.DataObject) -> None:
    """Only a line feed ends a line; a last one without it counts."""
    content = b"".join(pieces)
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    lines = lines if lines[-1] else lines[:-1]
    it = blob(content)
    assert it.lines == len(lines)
    numbers = st.integers(0, len(lines) + 2) | st.integers(0, 9).map(lambda n: len(lines) // 9 * n)
    start, count, most = data.draw(numbers), data.draw(numbers), data.draw(st.integers(0, 99))
    expected = b"".join(lines[start : start + count])
    assert it.read_lines(start, count) == expected
    assert it.read_lines(start, count, at_most=most) == expected[:most]
    assert it.start_of_line(start) == len(b"".join(lines[:start]))


def test_numbers_below_zero_are_refused() -> None:
    """They do not count from the end."""
    it = blob(b"some\ntext\n")
    calls: list[Callable[[], object]] = [
        lambda: it.read(-1, 5),
        lambda: it.read(0, -1),
        lambda: it.read_lines(-1, 1),
        lambda: it.read_lines(0, -1),
        lambda: it.start_of_line(-1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="negative"):
            call()


def test_a_small_part_of_a_large_blob_costs_little() -> None:
    """The header, the end, and the frames that hold it: nothing of the other 20 MB."""
    line = os.urandom(500).hex().encode() + b"\n"
    content = b"".join(b"%d %b" % (n, line[n % 500 :]) for n in range(27_000))
    sealed = seal_blob(SESSION, named(content), content)
    for part in (slice(9_000_000, 9_004_096), slice(0, 1), slice(len(content) - 9, None)):
        source = Source(sealed)
        it = Blob(SESSION, named(content), source, len(sealed))
        length = len(content[part])
        assert it.read(part.start, length) == content[part]
        assert sum(source.reads) < 5 * FRAME
    source = Source(sealed)
    it = Blob(SESSION, named(content), source, len(sealed))
    assert it.read_lines(13_000, 50) == b"".join(content.splitlines(keepends=True)[13_000:13_050])
    assert sum(source.reads) < 8 * FRAME
    assert max(source.reads) < 2 * CHUNK


def forge(content: bytes, *, row: int = 0, **changes: int) -> bytes:
    """Pack `content`, with fields of one row and of the trailer set to other values."""
    packed = bytearray(pack(content))
    table = int.from_bytes(packed[-24:-16], "big")
    fields = {
        "offset": (">Q", table + 24 * row),
        "size": (">I", table + 24 * row + 8),
        "raw": (">I", table + 24 * row + 12),
        "feeds": (">Q", table + 24 * row + 16),
        "frames": (">I", len(packed) - 32),
        "table": (">Q", len(packed) - 24),
        "total": (">Q", len(packed) - 16),
        "lines": (">Q", len(packed) - 8),
    }
    for name, value in changes.items():
        form, at = fields[name]
        struct.pack_into(form, packed, at, value)
    return bytes(packed)


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("field", ["offset", "size", "raw", "feeds"])
@pytest.mark.parametrize("value", [0, 5, FRAME, 2**20, 2**32 - 1])
def test_a_row_that_lies_is_damage(row: int, field: str, value: int) -> None:
    """Even from somebody who holds the key; nothing large is made on its word."""
    content = b"".join(b"%d\n" % n for n in range(30_000))
    truth = pack(content)
    packed = forge(content, row=row, **{field: value})
    if packed == truth:
        return
    with pytest.raises(Damaged):
        unpack(packed, "x")
    it = forged(packed, content)
    with pytest.raises(Damaged):
        it.read(0, it.size)
    assert max(it.source.reads) <= CHUNK + 16


@pytest.mark.parametrize("field", ["frames", "table", "total", "lines"])
@pytest.mark.parametrize("value", [0, 1, 2**20, 2**32 - 1])
def test_a_trailer_that_lies_is_damage(field: str, value: int) -> None:
    """Sizes and counts have to agree before anything is read by them."""
    content = b"".join(b"%d\n" % n for n in range(30_000))
    with pytest.raises(Damaged):
        forged(forge(content, **{field: value}), content).read_lines(0, 2**40)
    for empty in ({"lines": 1}, {"table": 1}, {"total": 1}):
        with pytest.raises(Damaged):
            unpack(forge(b"", **empty), "x")


class Forged(Blob):
    source: Source


def forged(packed: bytes, content: bytes) -> Forged:
    header = seal_blob(SESSION, named(content), b"")[:64]
    source = Source(header + seal(SESSION.blob, SESSION.context(b"blob", header), packed))
    it = Forged(SESSION, named(content), source, len(source.data))
    it.source = source
    return it


@pytest.mark.parametrize("stated", [True, False])
def test_a_bomb_is_refused(*, stated: bool) -> None:
    """A frame that expands to more than the table says, or does not say to what."""
    options: dict[int, int] = {
        zstd.CompressionParameter.content_size_flag: stated,
        zstd.CompressionParameter.compression_level: 3,
    }
    bomb = zstd.compress(bytes(64 * 1024 * 1024), options=options)
    row = struct.pack(">QIIQ", 0, len(bomb), FRAME, 0)
    trailer = struct.pack(">8sIIQQQ", b"CPTREND\0", 1, 0, len(bomb), FRAME, 1)
    with pytest.raises(Damaged):
        forged(bomb + row + trailer, b"x").read(0, 1)


def test_content_of_another_name_is_found_at_the_end() -> None:
    """By whoever reads all of it."""
    it = forged(pack(b"other\n"), b"content")
    assert it.read(0, 9) == b"other\n"
    with pytest.raises(Damaged, match="other content"):
        list(it.pages())


# In a session.


def test_the_blobs_of_a_record_are_known_without_reading_them(
    vault: Vault, write: Callable[..., None], folder: Path
) -> None:
    """With the path to each; read in parts by their names."""
    text, wide = "line\n" * 30_000, "\ud800" * 9000
    write({"content": [{"text": text}, "tail", wide]}, "small", ["word"] * 60_000)
    with vault.read("one") as reader:
        lifted, small, whole = reader.frames()
        one, two = reader.blobs(lifted)
        assert (one.path, one.form) == (("content", 0, "text"), "text")
        assert (two.path, two.form) == (("content", 2), "text")
        assert reader.blobs(small) == []
        (all_of_it,) = reader.blobs(whole)
        assert (all_of_it.path, all_of_it.form) == ((), "json")
        with reader.blob(one.name) as it:
            assert (it.size, it.lines) == (150_000, 30_000)
            assert it.read_lines(20_000, 2) == b"line\nline\n"
            assert b"".join(it.pages()) == text.encode()
        (folder / "blobs" / f"{one.name}.blob").unlink()
        assert reader.blobs(lifted) == [one, two]
        with pytest.raises(Damaged, match="missing"):
            reader.blob(one.name)
        for name in ("", "../../x", "a" * 32 + "/"):
            with pytest.raises(Damaged):
                reader.blob(name)


def test_a_large_string_is_written_as_it_is_sealed(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """In pieces of about a megabyte, and all of it arrives."""
    pieces: list[int] = []
    real = files.write_all

    def watched(fd: int, data: bytes) -> None:
        pieces.append(len(data))
        real(fd, data)

    monkeypatch.setattr(files, "write_all", watched)
    text = os.urandom(3_000_000).hex()
    with vault.write("one") as writer:
        writer.append([(Kind.MESSAGES, text)])
    assert max(pieces) <= 18 * FRAME < sum(pieces)
    with vault.read("one") as reader:
        (frame,) = reader.frames()
        assert reader.value(frame) == text
        data = next((folder / "blobs").iterdir()).read_bytes()
        assert open_blob(reader._keys, reader.blobs(frame)[0].name, data) == text.encode()  # noqa: SLF001


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Neither under the final name nor under a temporary one."""
    count = itertools.count()
    real = files.write_all

    def filling(fd: int, data: bytes) -> None:
        if next(count) == 2:
            raise OSError(errno.ENOSPC, "full")
        real(fd, data)

    text = os.urandom(3_000_000).hex()
    with vault.write("one") as writer:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", filling)
            with pytest.raises(NotStored):
                writer.append([(Kind.MESSAGES, text)])
        assert list((folder / "blobs").iterdir()) == []
        writer.renew()
        writer.append([(Kind.MESSAGES, text)])
        writer.sync()
    with vault.read("one") as reader:
        assert [reader.value(frame) for frame in reader.frames()] == [text]


@pytest.mark.parametrize("size", [0, 63, 64, 135, 136, 200_000])
def test_a_torn_blob_does_not_open(
    vault: Vault, write: Callable[..., None], folder: Path, size: int
) -> None:
    """Whatever part of it is asked for: the end tells."""
    write(os.urandom(200_000).hex())
    (path,) = (folder / "blobs").iterdir()
    os.truncate(path, size)
    with vault.read("one") as reader, pytest.raises(StorageError):
        reader.blob(path.stem)


def test_no_file_stays_open(vault: Vault, write: Callable[..., None]) -> None:
    """Neither one that was closed, of which no more is read, nor one that was forgotten."""
    write(os.urandom(50_000).hex())
    with vault.read("one") as reader:
        (frame,) = reader.frames()
        (one,) = reader.blobs(frame)
        reader.blob(one.name).close()
        before = open_files()
        for _ in range(3):
            reader.blob(one.name).read(0, 1)
            with reader.blob(one.name) as it:
                it.close()
            with reader.blob(one.name), pytest.raises(OSError, match="Bad file"):
                it.read(0, 1)
        assert open_files() == before
