"""What a summary must keep before it is taken: whatever made it may have invented something."""

import re
from collections.abc import Iterable, Iterator

from .errors import Rejected
from .state import SessionState
from .summarizer import Summary, SummaryInput

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_HANDLE = re.compile(r"(?<![\w-])(?:out|msgs|img)-(?=[a-z]*[2-7])[a-z2-7]{8,}\b")  # no plain word
_TOKEN = re.compile(r"[\w.+@~%/-]+", re.ASCII)  # other scripts stand next to paths without a space
_ROOTED = re.compile(r"(?:/|~/|\.{1,2}/)[\w.-]+/[\w./+@%-]*\w", re.ASCII)
_FILE = re.compile(  # with an ending that tells a file from `and/or`, `yaml.load` or `v1.2`
    r"[\w.+@~%/-]*\w\.(?:bak|bash|c|cc|cfg|conf|cpp|cs|css|csv|db|diff|env|gif|go|gz|h|hpp|html|ini"
    r"|ipynb|java|jpe?g|jsx?|jsonl?|kt|lock|log|lua|md|patch|pdf|php|pl|png|proto|ps1|pyi?|rb|rs|rst"
    r"|scala|scss|sh|sqlite|sql|svg|swift|tar|tf|toml|tsx?|txt|vue|xml|ya?ml|zig|zip)",
    re.ASCII,
)
_CUT = "…"


def check(summary: Summary, given: SummaryInput) -> None:
    """Refuse a summary that says nothing, is not shorter, or names what nobody has named.

    Names are looked for in decisions, facts, errors and the next step, and have to stand in the
    events, in the previous state or in the focus. Of a path its last part is enough, of a file
    without a folder the name before the ending: a false alarm costs a good summary.

    Raises:
        Rejected: "empty"; "not shorter" for more than `state_chars` characters or more than all
            events have; "unknown path" for a path, file or handle that was made up.

    """
    state = summary.state
    if state.is_empty:
        _reject("empty")
    if state.chars > min(given.state_chars, sum(len(event.text) for event in given.events)):
        _reject("not shorter")
    named = {name for item in _told(state) for name in _names(item)}
    if named and not _are_known(named, given):
        _reject("unknown path")


def _reject(reason: str) -> None:
    raise Rejected(reason)


def _told(state: SessionState) -> Iterator[str]:
    yield from state.decisions
    yield from state.facts
    yield from state.errors
    yield state.next_step


def _names(text: str) -> Iterator[str]:
    """Give the part of each handle, path and file of a text that has to be known."""
    text = _URL.sub(" ", text)
    yield from _HANDLE.findall(text)
    for match in _TOKEN.finditer(text):
        if text[match.end() : match.end() + 1] == _CUT:  # the item ends in the middle of a name
            continue
        token = match[0].rstrip("./-")
        folder, _, name = token.rpartition("/")
        if folder and (_FILE.fullmatch(token) or _ROOTED.fullmatch(token)):
            yield name.lower()
        elif not folder and _FILE.fullmatch(name):
            yield name.rpartition(".")[0].lower()


def _are_known(names: Iterable[str], given: SummaryInput) -> bool:
    """Tell whether each name stands somewhere in what the summary was made from."""
    before = given.previous.encode() if given.previous else {}
    source = [given.focus or "", str(before), *(event.text for event in given.events)]
    source += [event.tool or "" for event in given.events]
    whole = "\n".join(source).lower()
    return all(name in whole for name in names)
