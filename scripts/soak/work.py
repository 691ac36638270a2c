"""What the runs do: a fixed piece of work that says what it was promised, and the check of that.

`python -m soak.work storage|engine FOLDER LOG` does the work in a process of its own.
"""

import hashlib
import json
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from compactor import Compactor, CompactorError, Policy, Transcript, View
from compactor.storage import Keys, Kind, NoTranscript, StorageError, Vault, Writer

KEY: Final = bytes(range(32))
# Compacts early in a window so large that nothing has to be hidden that is not stored.
_POLICY: Final = Policy(
    window=60_000, trigger=0.16, target=0.017, min_gain=0.008, stages=("persist", "mask")
)
_TRIES: Final = 4
_LOG_SIZE: Final = 1 << 20

Message = dict[str, Any]
Fact = list[Any]


class Log:
    """Lines in memory shared with the file: no system call, so that no fault reaches them."""

    def __init__(self, path: Path) -> None:
        """Go on with the log at `path`, or begin one."""
        with path.open("ab") as file:
            file.truncate(_LOG_SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LOG_SIZE)

    def add(self, *fact: Any) -> None:
        """Say something: a word, then what goes with it."""
        line = json.dumps(fact).encode() + b"\n"
        end = self._map.find(b"\0")
        self._map[end : end + len(line)] = line

    def facts(self, word: str) -> list[Fact]:
        """Return what was said with this word, without it."""
        lines = self._map[: self._map.find(b"\0")].splitlines()
        return [fact[1:] for fact in map(json.loads, lines) if fact[0] == word]


def value(number: int) -> list[Any]:
    """Return the value of a number: small, a blob that others may have too, or one as a whole."""
    if number % 7 == 5:  # noqa: PLR2004
        return [number, [f"{number} {i} ".ljust(100, "w") for i in range(3_000)]]
    if number % 3 == 1:
        return [number, {"text": f"text {number // 9}\n" * 5_000}]
    return [number, f"small {number}"]


def prepare(folder: Path) -> None:
    """Lay down a workspace, and a session whose blob a power cut has torn, to be replaced."""
    (folder / "work").mkdir()
    keys = Keys(KEY, folder / "state")
    with Vault.create(folder / "old", keys).write("one") as writer:
        writer.append([(Kind.MESSAGES, value(4))])
        writer.sync()
    for blob in (folder / "old/s/one/blobs").iterdir():
        os.truncate(blob, 200)


def storage(folder: Path, log: Log) -> None:
    """Append and sync values in three lanes of two vaults; after a refusal, write them again."""
    keys = Keys(KEY, folder / "state")
    done = {(name, number) for name, number in log.facts("appended")}
    for name, numbers in (("new", range(10)), ("new", range(10, 16)), ("old", range(4, 8))):
        left = [number for number in numbers if (name, number) not in done]
        if left and (writer := _opened(folder / name, keys)):
            with writer:
                _write(writer, name, left, log)


def _opened(root: Path, keys: Keys) -> Writer | None:
    for _ in range(_TRIES):
        try:
            return Vault.create(root, keys).write("one")
        except StorageError:
            pass
    return None


def _write(writer: Writer, name: str, numbers: Iterable[int], log: Log) -> None:
    pending: list[int] = []
    for number in numbers:
        pending.append(number)
        if not _stored(writer, pending, [number], sync=number % 3 == 2):  # noqa: PLR2004
            return
        log.add("appended", name, number)
        if number % 3 == 2:  # noqa: PLR2004
            log.add("stored", name, pending)
            pending = []
    if _stored(writer, pending, [], sync=True):
        log.add("stored", name, pending)


def _stored(writer: Writer, pending: list[int], new: list[int], *, sync: bool) -> bool:
    """Append (and sync) what is new; after a refusal, all that was not synced yet."""
    for attempt in range(_TRIES):
        try:
            if attempt:
                writer.renew()
            writer.append([(Kind.MESSAGES, value(n)) for n in (pending if attempt else new)])
            if sync:
                writer.sync()
        except StorageError:
            continue
        return True
    return False


def check_storage(folder: Path, log: Log, *, powered: bool) -> Iterator[str]:
    """Go through what was promised; yield what does not hold.

    Where the power stayed on (`powered`), what was appended counts too.
    """
    keys = Keys(KEY, folder / "state")
    for name in ("new", "old"):
        promised = {n for of, ns in log.facts("stored") if of == name for n in ns}
        if powered:
            promised |= {n for of, n in log.facts("appended") if of == name}
        try:
            yield from _check_vault(folder / name, keys, promised, powered=powered)
        except StorageError as error:
            yield from _refused(error, promised)


def _refused(error: StorageError, promised: set[int]) -> Iterator[str]:
    if promised or not isinstance(error, NoTranscript):
        yield f"stuck: {type(error).__name__}: {error}"
    yield from ("lost" for _ in promised)


def _check_vault(root: Path, keys: Keys, promised: set[int], *, powered: bool) -> Iterator[str]:
    found = set()
    with Vault.open(root, keys).read("one") as reader:
        for frame in reader.frames():
            try:
                read = reader.value(frame)
            except StorageError:
                continue
            if read == value(read[0]):
                found.add(read[0])
            else:
                yield f"wrong: record {frame.place}"
        if powered and reader.skipped:
            yield f"wrong: gaps {reader.skipped}"
    yield from ("lost" for _ in promised - found)
    vault = Vault.create(root, keys)
    with vault.write("one") as writer:
        (place,) = writer.append([(Kind.MESSAGES, value(900))])
        writer.sync()
    with vault.read("one") as reader:
        if [reader.value(f) for f in reader.frames() if f.place == place] != [value(900)]:
            yield "stuck: what was written afterwards does not read back"


def history(count: int) -> list[Message]:
    """Return the first `count` messages of the one conversation."""
    made: list[Message] = [{"role": "user", "content": "Fix the login."}]
    for number in range(count // 2 + 1):
        name = f"toolu_{number}"
        size = 40_000 if number % 9 == 4 else 1_500  # noqa: PLR2004
        text = (f"line of output {number}: nothing to see\n" * (size // 30))[:size]
        call = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": name}}
        made.append({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": name, "content": text}
        made.append({"role": "user", "content": [result]})
    return made[:count]


LENGTHS: Final = (3, 11, 21, 25, 27, 29, 31, 37, 41, 45, 49, 51)
_FLUSHES: Final = {11, 29, 41}
_CLOSES: Final = {21, 37, 51}


def engine(folder: Path, log: Log) -> None:
    """Grow a conversation and ask for a view at each length; flush, close and resume on the way."""
    keys = Keys(KEY, folder / "state")
    begun = max([length for (length,) in log.facts("started")], default=0)
    session: Compactor | None = None
    for length in LENGTHS:
        if length < begun:
            continue
        session = session or _session(folder, keys)
        if session is None:
            return
        log.add("started", length)
        view = session.view(history(length))
        log.add("viewed", length, fingerprint(view), notes(view), view.degraded)
        if length in _FLUSHES and _passes(session.flush):
            log.add("flushed", length)
        if length in _CLOSES:
            if _passes(session.close):
                log.add("flushed", length)
            session = None


def _session(folder: Path, keys: Keys) -> Compactor | None:
    for _ in range(_TRIES):
        try:
            return Compactor.open(folder / "work", "one", policy=_POLICY, keys=keys)
        except StorageError:
            pass
    return None


def _passes(act: Callable[[], None]) -> bool:
    try:
        act()
    except StorageError:
        return False
    return True


def fingerprint(view: View) -> str:
    """Return a digest of what is sent."""
    return hashlib.sha256(json.dumps(view.messages).encode()).hexdigest()


def notes(view: View) -> dict[str, int]:
    """Return the handles that stand in a view, each with the position of its message."""
    found = {}
    for position, message in enumerate(view.messages):
        text = json.dumps(message["content"])
        start = text.find("out-")
        if start >= 0 and ("<persisted-output " in text or "[Earlier tool result saved" in text):
            end = start + 4
            while text[end] in "abcdefghijklmnopqrstuvwxyz234567":
                end += 1
            found[text[start:end]] = position
    return found


def check_engine(folder: Path, log: Log, *, powered: bool) -> Iterator[str]:
    """Go through what was promised; yield what does not hold."""
    keys, views = Keys(KEY, folder / "state"), log.facts("viewed")
    promised = {handle: at for _, _, held, _ in views for handle, at in held.items()}
    sure = max([n for (n,) in log.facts("flushed")], default=0)
    if powered:
        sure = max([sure, *(n for n, _, _, degraded in views if degraded is None)])
    if promised or sure:
        yield from _check_originals(folder / "work", keys, promised)
        yield from _check_messages(folder / "work", keys, sure)
    yield from _check_resumed(folder, keys, log, promised)


def _check_originals(work: Path, keys: Keys, promised: dict[str, int]) -> Iterator[str]:
    try:
        with Transcript.open(work, "one", keys=keys) as transcript:
            for handle, at in promised.items():
                try:
                    read = transcript.read(handle)
                except (StorageError, CompactorError):
                    yield "lost"
                else:
                    if read != original(at):
                        yield f"wrong: {handle}"
    except StorageError as error:
        yield f"stuck: {type(error).__name__}: {error}"
        yield from ("lost" for _ in promised)


def original(at: int) -> bytes:
    """Return the bytes of the tool result in the message at a position."""
    content: str = history(at + 1)[at]["content"][0]["content"]
    return content.encode()


def _check_messages(work: Path, keys: Keys, sure: int) -> Iterator[str]:
    found = set()
    try:
        with Vault.open(work / ".transcripts", keys).read("one") as reader:
            for frame in reader.frames():
                if frame.kind is Kind.MESSAGES:
                    try:
                        found |= {json.dumps(each) for each in reader.value(frame)["messages"]}
                    except StorageError:
                        continue
    except StorageError:
        pass  # said already
    yield from ("lost" for each in history(sure) if json.dumps(each) not in found)


def _check_resumed(folder: Path, keys: Keys, log: Log, promised: dict[str, int]) -> Iterator[str]:
    started, views = log.facts("started"), log.facts("viewed")
    length = started[-1][0] if started else LENGTHS[0]
    try:
        with Compactor.open(folder / "work", "one", policy=_POLICY, keys=keys) as session:
            view = session.view(history(length))
            last = views[-1] if len(views) == len(started) and views else None
            if last and last[3] is None and fingerprint(view) != last[1]:
                yield "stuck: the resumed session shows another view"
            for grown in (length, length + 8):
                view = session.view(history(grown))
                yield from _check_view(session, view, history(grown), promised)
        with Transcript.open(folder / "work", "one", keys=keys) as transcript:
            if transcript.messages() != history(length + 8):
                yield "wrong: the messages after the session was resumed"
    except StorageError as error:
        yield f"stuck: {type(error).__name__}: {error}"


def _check_view(
    session: Compactor, view: View, whole: list[Message], promised: dict[str, int]
) -> Iterator[str]:
    if view.degraded is not None:
        yield f"stuck: degraded: {view.degraded}"
    shown = notes(view)
    for handle, at in shown.items():
        if session.read(handle) != original(at):
            yield f"wrong: {handle} in the resumed session"
    if {at for at in promised.values() if at < len(whole)} - {*shown.values()}:
        yield "lost"
    for at, (mine, sent) in enumerate(zip(whole, view.messages, strict=True)):
        if mine != sent and (at not in shown.values() or _skeleton(mine) != _skeleton(sent)):
            yield f"wrong: message {at} of the resumed view"


def _skeleton(message: Message) -> Message:
    blocks = [{**block, "content": None} for block in message["content"]]
    return {**message, "content": blocks}


WORK: Final[dict[str, Callable[[Path, Log], None]]] = {"storage": storage, "engine": engine}


def check(level: str, folder: Path, log: Log, *, powered: bool) -> list[str]:
    """Return all that does not hold: "lost", and "wrong: …", "stuck: …", "untyped: …"."""
    checks = {"storage": check_storage, "engine": check_engine}
    try:
        return list(checks[level](folder, log, powered=powered))
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return [f"untyped: {error!r}"]


def main() -> None:
    """Do the work of a level in a folder."""
    level, folder, log = sys.argv[1:]
    WORK[level](Path(folder), Log(Path(log)))


if __name__ == "__main__":
    main()
