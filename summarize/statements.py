"""A text as statements: short lines, bullets and sentences, and what their labels say of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .state import LONGEST_ITEM

PART: Final = 20_000  # characters that are read of each end of a long text
_SHORT: Final = 240  # up to here a line is one statement: its sentences explain each other
_MOST: Final = 400  # statements of one text

# What a label says of the statement behind it. The first list that knows one of its words wins, so
# that a "goal state" is a state and a "task rule" a rule.
_LABELS: Final = {
    "constraints": (
        "rule rules constraint constraints requirement requirements policy preference preferences "
        "guideline guidelines important warning caution limit limits convention conventions must "
        "never always regel regeln wichtig vorgabe vorgaben anforderung anforderungen achtung "
        "règle règles contrainte contraintes exigence exigences préférence regla reglas "
        "restricción restricciones requisito requisitos preferencia 规则 约束 要求 注意 偏好"
    ),
    "remaining": (
        "state status todo todos task tasks next pending question questions blocker blockers "
        "remaining open aufgabe aufgaben offen tâche tarea 待办 任务"
    ),
    "decisions": "decision decisions decided agreed choice beschluss décision decisión 决定",
    "facts": (
        "fact facts fyi info information context background environment note notes reminder "
        "hinweis fakt fait hecho nota 事实 备注"
    ),
    "goal": "goal goals objective aim ziel objectif objetivo 目标",
}
_KINDS: Final = {word: kind for kind, words in reversed(_LABELS.items()) for word in words.split()}
# Beside the word of the kind they add nothing that the list does not say.
_PLAIN: Final = frozenset(_KINDS) | {"hard", "soft", "user", "general", "the", "my", "key"}

_LABEL: Final = re.compile(
    r"[*_`]{0,3}([^\W\d_][\w '\u2019/-]{0,38})[*_`]{0,3}[:\uff1a][*_`]{0,3}\s*(?=\S)"
)
_BULLET: Final = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING: Final = re.compile(r"#{1,6}\s+(.{1,300})|(.{1,600})[:\uff1a][*_]{0,3}")
_TITLE: Final = 80  # characters before its end in which a leading line says what the list holds
_END: Final = re.compile(
    r"(?<=[.!?])[\"'\u2019\u201d)*_`]{0,3}\s+(?=[^a-z\s])|(?<=[。\uff01\uff1f])"
)
# It means nothing without the sentence before.
_LEANS: Final = re.compile(
    r"(?:it|this|that|these|those|they|otherwise|instead|but|and|or|so|use it)\b", re.IGNORECASE
)
_FENCE: Final = ("```", "~~~")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence or two, in one line, and the field of a state that its label names.

    `leads` marks a line that only leads to the list below it.
    """

    text: str
    kind: str | None = None
    leads: bool = False


def ends(text: str, part: int = PART) -> str:
    """Return a text without the middle that is too long to be read, nor the lines it cuts."""
    if len(text) <= 2 * part:
        return text
    head, tail = text[:part], text[-part:]
    head = head[: head.rfind("\n") + 1] or head + "\n"
    return head + tail[tail.find("\n") + 1 :]


def statements(text: str) -> list[Statement]:
    """Return the statements of a text, in order; fenced code and quotations make none."""
    found: list[Statement] = []
    under: str | None = None  # what the last heading says of what stands below
    is_title = False
    for line, is_bullet in _prose(ends(text)):
        heading = _HEADING.fullmatch(line)
        if heading:
            is_title = heading[1] is not None
            under = _kind(heading[1] or heading[2][-_TITLE:])
            found += [] if is_title else [Statement(line, leads=True)]
        elif line:
            under = under if is_bullet or is_title else None
            found += _of_line(line, under)
        if len(found) >= _MOST:
            break
    return found[:_MOST]


def sentences(text: str) -> list[str]:
    """Return the sentences of a line; one that leans on the sentence before stays with it."""
    made: list[str] = []
    for part in _END.split(text):
        if made and _LEANS.match(part) and len(made[-1]) + len(part) < _SHORT:
            made[-1] = f"{made[-1]} {part}"
        elif part.strip():
            made.append(part.strip())
    return made


def shortened(text: str, chars: int) -> str:
    """Return the whole sentences that fit, else the words that do, with a sign that some miss."""
    text = " ".join(text.split())
    if len(text) <= chars:
        return text
    kept = ""
    for sentence in sentences(text[: chars + 1])[:-1]:
        kept = f"{kept} {sentence}".strip()
    return kept or text[: chars - 1].rsplit(" ", 1)[0] + "…"


def _prose(text: str) -> Iterator[tuple[str, bool]]:
    fence = ""
    for raw in text.splitlines():
        line = raw.strip()
        if fence:
            fence = "" if line.startswith(fence) else fence
        elif line.startswith(_FENCE):
            fence = line[:3]
        elif not line.startswith((">", "|", "<")):
            bullet = _BULLET.match(line)
            yield (line[bullet.end() :] if bullet else line), bullet is not None


def _of_line(line: str, under: str | None) -> list[Statement]:
    label = _LABEL.match(line)
    kind = _kind(label[1]) if label else None
    if label and kind and _PLAIN.issuperset(label[1].lower().split()):
        line = line[label.end() :]
    kind = kind or under
    if len(line) <= _SHORT or (kind and len(line) <= LONGEST_ITEM):
        return [Statement(line, kind)]
    return [Statement(shortened(one, LONGEST_ITEM), kind) for one in sentences(line)]


def _kind(label: str) -> str | None:
    words = re.findall(r"\w+", label.lower())
    kinds = {_KINDS[word] for word in words if word in _KINDS}
    return next((kind for kind in _LABELS if kind in kinds), None)
