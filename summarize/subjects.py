"""What a statement is about: two with the same subject are one, told at different times.

Taking two for one loses what somebody said; taking one for two only keeps an old value. So: values
are masked where they answer ("the port is 8080"), not where they name ("port 8080 is taken", "never
touch a.py"). Other words for the same are recognised in a few domains only, each with the kind of
value that it needs, where the rest of what is said agrees too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .cues import CHANGES, LIMITS, NEGATIVE

GIVES: Final = " ⇒ "  # between a command and what came out of it; the command is the subject

_NUMBER = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty"
    r"|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million)"
)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_VALUES: Final = {
    "url": r"https?://\S+",
    "money": (
        r"[$€£¥]\s?\d[\d.,]*\s?[km]?\b|\b\d[\d.,]*\s?(?:dollars?|euros?|pounds?|usd|eur|gbp)\b"
        rf"|\b{_NUMBER}(?:[ -](?:and )?{_NUMBER}){{0,5}} (?:dollars?|euros?|pounds?)\b"
    ),
    "date": (
        r"\b\d{4}-\d\d-\d\d\b|\b\d\d?[./]\d\d?[./]\d{2,4}\b|\b\d\d-\d\d\b"
        rf"|\b{_MONTH}\.? \d\d?(?:st|nd|rd|th)?\b(?:,? \d{{4}})?|\b\d\d?\.? {_MONTH}\b|\b{_DAY}\b"
    ),
    "place": r"\b[a-z]{2}-(?:north|south|east|west|central)\w{0,8}-\d\b",
    "hash": r"\b(?=[a-f]{0,39}\d)(?=\d{0,39}[a-f])[0-9a-f]{7,40}\b",
    "ref": r"(?<![\w/])[\w.-]{1,60}/[\w./-]{0,120}\w",
    "host": r"\b[\w-]{1,60}\.(?:[\w-]{1,60}\.){0,4}(?:internal|local|com|org|net|io|dev)\b",
    "version": r"\bv?\d{1,6}(?:\.\d{1,6}){1,4}\b",
    "code": r"\b[a-z]{2,20}-\d{2,12}\b",
    "quoted": r"`[^`\n]{1,80}`|\"[^\"\n]{1,80}\"|\u201c[^\u201d\n]{1,80}\u201d",
    "number": r"\b\d[\d,]*\b",
    # Two words, or one that does not open a sentence.
    "name": r"\b(?-i:[A-Z][a-z]{1,30} [A-Z][a-z]{1,30})\b|(?<=[a-z,] )(?-i:[A-Z][A-Za-z]{1,30})\b",
}
_VALUE: Final = re.compile(
    "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _VALUES.items()), re.IGNORECASE
)
_ALWAYS_MASKED: Final = frozenset({"money", "date"})
# In an order these name what it is about.
_NAMING: Final = frozenset({"quoted", "ref", "host", "url", "code", "name", "place", "hash"})
_ANSWERS: Final = re.compile(
    r"\b(?:is|are|was|were|be|has|moved|changed|runs|lives?|belongs|owns|ist|sind|est|es)\b"
    r"|:\s|\s=\s",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(r"[^\W\d_]+")
_ON_CALL: Final = re.compile(r"\bon[- ]call\b", re.IGNORECASE)
_STEM: Final = re.compile(r"(?<=\w{3})(?:ly|s)$")


@dataclass(frozen=True, slots=True)
class _Domain:
    """A subject that people put in many words.

    `words`: they point to the domain, and say nothing more. `kinds`: one of these values has to be
    there (none: the words suffice). `alone`: there is one such thing at a time, so that a new one
    ends the old one even if the rest differs.
    """

    name: str
    words: frozenset[str]
    kinds: frozenset[str] = frozenset()
    alone: bool = False


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _domain(name: str, words: str, kinds: str = "", *, alone: bool = False) -> _Domain:
    return _Domain(name, _set(words), _set(kinds), alone)


_DOMAINS: Final = (
    _domain(
        "spending",
        "budget spend spending expense expenses cost costs cap capped ceiling limit price",
        "money",
    ),
    _domain(
        "date",
        "date deadline due timing ship ships scheduled schedule target lands fixed",
        "date",
    ),
    _domain(
        "name", "codename name named call called calling label designated renamed", "code quoted"
    ),
    _domain("secret", "code password passphrase token key pin", "code quoted hash"),
    _domain("duty", "oncall pager duty escalation shift", "name"),
    _domain("address", "url endpoint address host", "url host"),
    _domain("place", "region zone datacenter", "place"),
    _domain("branch", "branch branched rebased", "ref", alone=True),
    _domain(
        "zone",
        "utc gmt cet pst est pacific eastern timezone clocks timestamp timestamps",
        alone=True,
    ),
    _domain("answers", "answers answer responses replies reply tone", alone=True),
)
# Words that say nothing about what a statement is about.
_EMPTY: Final = _set(
    "a above all always an and any approval are as at base be been being belongs below but by "
    "can change changed changes could current currently did disclose do does done each every "
    "exceed exceeding explicit for from general get got had handling has have he her his hosted "
    "i if in internally into is it its keep least let live lives longer made make may might "
    "more most move moved moves must my never new no not now of old on only onto or our over "
    "overall owner owns pass past per plan please preferred prefers previous project put quick "
    "rather report reported reporting retired reveal rotated rotation running runs set shall "
    "share shared she should show so stay stays stick style switched than that the their them "
    "then these they this those time times to today total under up update use used user users "
    "want wants was we week were will with without works would you your "
)


# "The cause is …" has a new subject every time.
_VAGUE: Final = _EMPTY | _set(
    "cause culprit root problem issue bug error reason fix answer there here one thing first next "
    "last result file test line value change what which where who found in so because turns out"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a statement is about, and whether it tells of a change."""

    key: str
    domains: frozenset[str] = frozenset()
    scope: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    named: bool = False
    changes: bool = False
    alone: bool = False

    def ends(self, older: "Subject") -> bool:
        """Whether this is told in the place of an older statement."""
        if self.key == older.key:
            return True
        if not self.domains or self.domains != older.domains:
            return False
        if self.kinds.isdisjoint(older.kinds) and (self.kinds or older.kinds):
            return self.alone and self.changes and not older.kinds
        mine, theirs = self.scope, older.scope
        if mine == theirs:
            return True
        if self.alone:
            other_name = self.named and older.named and not (mine and theirs)
            return self.changes or other_name or not mine.isdisjoint(theirs)
        nested = mine < theirs or theirs < mine
        return self.changes and nested and bool(mine and theirs)


def subject(text: str) -> Subject:
    """Return what a statement is about."""
    command, arrow, _ = text.partition(GIVES)
    if arrow:
        return Subject(command + GIVES)
    bare, found = _VALUE.sub(" ", text), list(_VALUE.finditer(text))
    kinds = frozenset(one.lastgroup or "" for one in found)
    words = _words_of(text)
    domains = [
        one for one in _DOMAINS if words & one.words and (not one.kinds or one.kinds & kinds)
    ]
    needed = frozenset().union(*(one.kinds for one in domains))
    known = frozenset().union(*(one.words for one in domains))
    return Subject(
        key="".join(_masked(text, found)),
        domains=frozenset(one.name for one in domains),
        scope=frozenset(_STEM.sub("", w) for w in _words_of(bare) - known - _EMPTY if len(w) > 1),
        kinds=kinds & needed,
        named="name" in kinds,
        changes=CHANGES.search(text) is not None,
        alone=bool(domains) and all(one.alone for one in domains),
    )


def has_value(text: str) -> bool:
    """Whether it gives a value where one answers."""
    answers = _ANSWERS.search(text)
    return answers is not None and _VALUE.search(text, answers.end()) is not None


def _words_of(text: str) -> set[str]:
    return {word.lower() for word in _TOKEN.findall(_ON_CALL.sub("oncall", text))}


def _masked(text: str, found: list[re.Match[str]]) -> Iterator[str]:
    """Yield a text in small letters, its changing values as the name of their kind."""
    answers = _ANSWERS.search(text)
    since = answers.end() if answers else 0
    if answers and _words_of(text[: answers.start()]) <= _VAGUE:
        since = len(text)
    negative, limits = NEGATIVE.search(text), LIMITS.search(text)
    at = 0
    for one in found:
        kind = one.lastgroup or ""
        fixed = one.start() < since or (
            (kind in _NAMING and not answers) or (negative and (kind in _NAMING or not limits))
        )
        if kind in _ALWAYS_MASKED or not fixed:
            yield " ".join(text[at : one.start()].lower().split())
            yield f"<{kind}>"
            at = one.end()
    yield " ".join(text[at:].lower().split()).rstrip(".!")
