"""The product with one thing taken out: the runs must find that something is lost."""

from collections.abc import Iterable
from typing import Any, Final

from compactor.storage import Writer, files

from .runs import Broken


def _nothing(_: int) -> None:
    pass


def no_folder_sync() -> None:
    """Leave out every fsync of a folder."""
    setattr(files, "sync_folder", _nothing)  # noqa: B010 - the type is another one


def no_file_sync() -> None:
    """Leave out every fsync of a blob, a slot and STORE.json."""
    setattr(files, "sync_file", _nothing)  # noqa: B010


def no_lane_sync() -> None:
    """Leave out every fdatasync of a lane."""
    setattr(files, "sync_data", _nothing)  # noqa: B010


def late_sync() -> None:
    """Say that all is stored, and sync it before the next append only."""
    sync, append = Writer.sync, Writer.append
    late: list[Writer] = []

    def later(writer: Writer) -> None:
        late[:] = [writer]

    def appended(writer: Writer, records: Any) -> Any:
        if writer in late:
            late.clear()
            sync(writer)
        return append(writer, records)

    setattr(Writer, "sync", later)  # noqa: B010 - the type is another one
    setattr(Writer, "append", appended)  # noqa: B010


def link_first() -> None:
    """Give a file its durable name before its bytes are durable."""
    publish = files.Folder.publish

    def linked(folder: files.Folder, name: str, pieces: Iterable[bytes], *, durable: bool) -> int:
        fd = publish(folder, name, pieces, durable=False)
        if durable:
            folder.sync()
            files.sync_file(fd)
        return fd

    swapped: Any = linked
    setattr(files.Folder, "publish", swapped)  # noqa: B010 - the type is another one


CONTROLS: Final[dict[str, Broken]] = {
    "no fsync of folders": no_folder_sync,
    "no fsync of files": no_file_sync,
    "no fdatasync of lanes": no_lane_sync,
    "acknowledged before the sync": late_sync,
    "name before bytes": link_first,
}
