"""The stages: each proposes decisions to a draft, none does I/O."""

from collections.abc import Callable, Mapping

from compactor.policy import Stage

from . import archive, mask, persist, summary
from .draft import Draft
from .shelf import Manual, Shelved, Wanted

PLANNERS: Mapping[str, Callable[[Draft], None]] = {
    Stage.PERSIST: persist.plan,
    Stage.MASK: mask.plan,
    Stage.ARCHIVE: archive.plan,
    Stage.SUMMARIZE: summary.plan,
}

__all__ = ["PLANNERS", "Draft", "Manual", "Shelved", "Wanted"]
