"""Text of others made safe before it reaches a terminal."""

import re

# Control characters (C0, DEL, C1) but for tab and line feed, and what changes the direction of text
# or cannot be seen.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def safe(text: str) -> str:
    """Show characters that a terminal would obey by their number, as in a Python string."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
