"""A PNG writer, enough for charts."""

import struct
import zlib
from base64 import b64encode

from demo_agent.tools import Block

WHITE, INK, BLUE, RED = (255, 255, 255), (40, 40, 40), (70, 120, 190), (200, 60, 50)


class Canvas:
    """An RGB picture."""

    def __init__(self, width: int, height: int) -> None:
        """Start with white."""
        self.width, self.height = width, height
        self.rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def box(
        self, left: int, top: int, right: int, bottom: int, color: tuple[int, int, int]
    ) -> None:
        """Fill a rectangle, right and bottom exclusive."""
        for row in self.rows[top:bottom]:
            row[left * 3 : right * 3] = bytes(color) * (right - left)

    def png(self) -> bytes:
        """Return the file."""
        raw = b"".join(b"\0" + bytes(row) for row in self.rows)
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


def bars(values: list[int], marked: int) -> Block:
    """Return an image block with a bar for each value, one of them red."""
    canvas = Canvas(560, 320)
    step = 520 // len(values)
    for number, value in enumerate(values):
        left, height = 20 + number * step, value * 260 // max(values)
        color = RED if number == marked else BLUE
        canvas.box(left, 300 - height, left + step - 8, 300, color)
    canvas.box(16, 300, 550, 302, INK)
    data = b64encode(canvas.png()).decode()
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
