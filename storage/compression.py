"""zstd with bounds: what a few bytes can expand to is decided before they do."""

import sys

from .errors import Damaged

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 3
_WINDOW_LOG = 21  # 2 MiB: nothing written here needs more, and a reader allocates no more
_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}


class Compressor:
    """Makes independent frames that state their content's size. Reuse halves the cost."""

    def __init__(self) -> None:
        """Allocate the working memory once."""
        self._zstd = zstd.ZstdCompressor(level=LEVEL)

    def frame(self, data: bytes | memoryview) -> bytes:
        """Compress `data` (bytes) into one complete frame."""
        return self._zstd.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def expand(frame: bytes, *, at_most: int, where: str) -> bytes:
    """Expand exactly one frame that states its size, which is `at_most` bytes.

    Raises `Damaged`, naming `where`, for anything else; never makes more than it stated.
    """
    try:
        size = zstd.get_frame_info(frame).decompressed_size
        if size is not None and size <= at_most:
            decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
            data = decompressor.decompress(frame, max_length=size + 1)
            if decompressor.eof and len(data) == size and not decompressor.unused_data:
                return data
    except zstd.ZstdError:
        pass
    message = f"{where} holds a compressed frame that is not as it was written"
    raise Damaged(message, where=where)
