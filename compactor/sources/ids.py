"""Call ids that the provider takes: `[a-zA-Z0-9_-]`, at most 64, each once."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST = 64


@dataclass(slots=True)
class Names:
    """The ids given out so far in one history."""

    used: set[str] = field(default_factory=set)

    def unique(self, recorded: str) -> str:
        """Return the recorded id where it is legal and new, else a stable stand-in."""
        name = recorded
        if not name or len(name) > _LONGEST or _REFUSED.search(name):
            # The digest keeps ids apart that differ only in what is replaced or cut.
            digest = hashlib.sha256(recorded.encode()).hexdigest()[:12]
            name = f"{_REFUSED.sub('_', recorded)[: _LONGEST - 13]}_{digest}"
        count = 1
        candidate = name
        while candidate in self.used:
            count += 1
            suffix = f"_{count}"
            candidate = name[: _LONGEST - len(suffix)] + suffix
        self.used.add(candidate)
        return candidate
