"""The digests that FORMAT.md gives are the digests that the engine makes."""

import json
import re
from pathlib import Path

from compactor.messages import EMPTY_CHAIN, link
from compactor.wire import anthropic

FORMAT = Path(__file__).resolve().parents[1] / "storage" / "FORMAT.md"


def test_the_vectors_of_the_format_hold() -> None:
    """Each message has the digest, and each beginning of the history the chain, as written."""
    found = re.search(r"^```json\n(.*?)^```$", FORMAT.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    lines = [json.loads(line) for line in found[1].splitlines()]
    chain = EMPTY_CHAIN
    for message, digest, linked in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        facts = anthropic.inspect(message, lambda _: False)
        chain = link(chain, facts.digest)
        assert (facts.digest.hex(), chain.hex()) == (digest, linked)
