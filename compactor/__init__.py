"""Context compaction that can be undone: what leaves the prompt stays on disk, encrypted.

`Compactor` makes the views of a conversation, `Transcript` reads what was recorded of it, `Policy`
holds every threshold. Errors stand in `compactor.errors` and `compactor.storage`.
"""

from compactor.storage import Keys, StorageError

from .counters import SdkCounter, TokenCounter
from .decisions import Decision, DecisionSet, RangeDecision
from .errors import BadMessage, BadPolicy, CannotFit, Closed, CompactorError, UnknownHandle
from .explain import Explanation
from .policy import (
    ArchivePolicy,
    MaskPolicy,
    PersistPolicy,
    Policy,
    Stage,
    SummaryPolicy,
    ToolRule,
)
from .session import Compactor
from .transcript import Request, Transcript
from .view import Contributor, Stats, View

__all__ = [
    "ArchivePolicy",
    "BadMessage",
    "BadPolicy",
    "CannotFit",
    "Closed",
    "Compactor",
    "CompactorError",
    "Contributor",
    "Decision",
    "DecisionSet",
    "Explanation",
    "Keys",
    "MaskPolicy",
    "PersistPolicy",
    "Policy",
    "RangeDecision",
    "Request",
    "SdkCounter",
    "Stage",
    "Stats",
    "StorageError",
    "SummaryPolicy",
    "TokenCounter",
    "ToolRule",
    "Transcript",
    "UnknownHandle",
    "View",
]
