"""What kind of statement a sentence is, by the words that give it away.

Every pattern is one alternation of literal words with at most one bounded gap, so that a long line
costs no more than a scan of it.
"""

import re
from typing import Final


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(alternatives) + r")\b", re.IGNORECASE)


# "don't know", "don't see": the human's knowledge, no order.
_KNOWING = r"(?:know|think|understand|remember|recall|see|get|have|seem|work|mind|care|believe)\b"

ORDERS: Final = _words(
    r"must(?:n['\u2019]t)?",
    r"never",
    r"always",
    rf"do(?:es)? not (?!{_KNOWING})",
    rf"don['\u2019]t (?!{_KNOWING})",
    r"may not",
    r"shall(?: not)?",
    r"not allowed",
    r"under no circumstances",
    r"forbidden",
    r"prohibited",
    r"mandatory",
    r"off[- ]limits",
    r"at (?:most|least)",
    r"no (?:more|less|fewer|later|earlier) than",
    r"only (?:use|touch|change|edit|run|allow|the|in|on|with|from|for|\w+ (?:\w+ )?may)",
    r"(?:use|touch|change|edit|run|write|read|may|must|should) (?:\w+ )?only",
    r"nicht (?!wahr)",
    r"niemals|immer|muss|müssen|darf|dürfen|keine?[nmrs]?|höchstens|mindestens|verboten",
    r"jamais|toujours|doit|doivent|interdit|au (?:plus|moins)|uniquement|n['\u2019]utilisez?",
    r"nunca|siempre|debes?|deben|prohibido|como (?:máximo|mínimo)|no (?:uses|toques|hagas|borres)",
)
_CHINESE: Final = re.compile(
    "必须|不要|不得|禁止|始终|总是|只能|务必|避免|请勿|最多|至少|不能|不可|必ず|しないで"
)
# At the start of a sentence they order, further on they tell.
_OPENING: Final = re.compile(
    r"(?:^|[.!;] )(?:please |bitte )?"
    r"(?:only|no|keep|avoid|ensure|make sure|stick to|refrain|stop|report|"
    r"vermeide|évitez?|evita)\b",
    re.IGNORECASE,
)
WISHES: Final = _words(
    r"prefers?|preferred|preferably",
    r"(?:would|['\u2019]d) (?:rather|like (?!you)|prefer)",
    r"wants\b",
    r"i want (?!you to|to)",
    r"should(?:n['\u2019]t)?",
    r"avoid",
    r"(?:is|are|be) required",
    r"needs? (?:\w+ )?(?:approval|review|confirmation|consent|to (?:be|stay))",
    r"make sure|ensure|stick to|refrain",
    r"without (?:my|explicit|prior|asking|approval|permission|consent|breaking|changing|touching|"
    r"adding|using)",
    r"until (?:i|we|you|the user|\w+ (?:\w+ )?(?:review|approve|confirm)s?)",
    r"from now on",
    r"(?:budget|deadline|ceiling|cap|limit)\b.{0,60}(?:\d|dollars|euros|pounds)",
    r"(?:keep|stay)\b.{1,40}\b(?:under|below|above|over|within|away|out of)",
    r"time ?zone",
    r"(?:answers|responses|replies|tone)\b.{0,60}\b(?:terse|short|brief|playful|formal|style|english|"
    r"units|light|warm|plain|detailed)",
    r"(?:times|timestamps?|clocks)\b.{0,40}\b(?:utc|gmt|time)",
    r"leave .{1,60} (?:alone|untouched|as (?:it )?is)",
    r"use .{1,60} (?:not|instead of|rather than)",
    r"bevorzug\w*|vermeide\w*|bitte nicht|statt",
    r"préf[èé]re\w*|évitez?|de préférence",
    r"prefiero|prefiere|evita",
)
CHANGES: Final = _words(
    r"now",
    r"from now on",
    r"changed|moved|switched|rotated|rotation|renamed|rebased|replaced|postponed",
    r"update",
    r"new",
    r"no longer|any ?more",
    r"rather",
    r"instead",
    r"actually",
    r"ab jetzt|désormais|ahora|a partir de ahora",
)
DECIDES: Final = _words(
    r"decided|decision",
    r"we['\u2019]ll (?:use|go|keep|stay)",
    r"(?:going|went|go|stick(?:ing)?|stay(?:ing)?) with",
    r"chose|chosen|opted",
    r"agreed|settled",
    r"instead of|rather than",
    r"entschieden|décidé|decidido",
)
FINDS: Final = _words(
    r"root cause|the (?:cause|culprit|reason|problem|bug|issue) (?:is|was)",
    r"turns out|it turned out",
    r"(?:found|confirmed|verified|discovered|established|learned) that",
    r"caused by|because",
    r"(?:fixed|solved|resolved) (?:by|it|the)",
    r"comes from|stems from",
    r"the fix (?:is|was)",
)
LEFT: Final = _words(
    r"next steps?",
    r"still (?:to do|to be done|needs?|missing|open|have to|has to)",
    r"(?:remaining|left|yet) to (?:do|be)",
    r"todo|to do",
    r"open question|awaiting",
    r"not (?:yet )?(?:done|finished|implemented) yet",
    r"noch (?:offen|zu tun)",
)
NEXT: Final = _words(r"next (?:step|up)")
INTENDS: Final = re.compile(
    r"(?:now|next|then|first|ok(?:ay)?|great|good|so)?[,:.!]? ?"
    r"(?:(?:now|next),? )?"
    r"(?:i['\u2019]ll|i will|i['\u2019]m going to|i am going to|let me|let['\u2019]s|"
    r"now (?:add|update|create|run|fix|check|write|commit|push|look|test)|"
    r"next up|next step|i need to|i should|time to)\b",
    re.IGNORECASE,
)
ASKS: Final = re.compile(
    r"(?:ok(?:ay)?[,.]? |so |now |then |and |also |next[,:]? |great[,.!]? |thanks[,.!]? )*"
    r"(?:please|can you|could you|would you|will you|"
    r"i (?:want|need|would like|['\u2019]d like)|we need|"
    r"let['\u2019]s|help me|fix|add|implement|write|create|build|make|change|update(?!:)|"
    r"refactor|rename|remove|"
    r"delete|move|port|migrate|review|check|find|look|investigate|debug|explain|run|set up|"
    r"install|upgrade|improve|optimi[sz]e|convert|replace|continue with|finish|clean|"
    r"do|try|use|show|give|prepare|split|merge|analy[sz]e|"
    r"(?:test|document|design|support|reduce|start) (?:the|it|this|that|these|all|with|by|how|a)|"
    r"bitte|kannst du|peux-tu|puedes)\b",
    re.IGNORECASE,
)
NEGATIVE: Final = _words(r"never|not|no|avoid|without|forbidden|prohibited", r"\w+n['\u2019]t")
LIMITS: Final = _words(r"most|least|more|less|than|exceed|above|below|over|under|limit|cap|max|min")


def is_order(text: str) -> bool:
    """Whether it says what must or must not be."""
    return bool(ORDERS.search(text) or _OPENING.search(text) or _CHINESE.search(text))


def is_binding(text: str) -> bool:
    """Whether it says what must, must not or should be."""
    return is_order(text) or WISHES.search(text) is not None
