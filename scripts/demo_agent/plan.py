"""What the human asks and what the agent does, in order.

The agent's words are written here; figures and quotes in them come from the
outputs of this recording.
"""

from demo_agent import plan_audit, plan_fixes, plan_late
from demo_agent.recorder import Session


def play(s: Session) -> None:
    """Play the whole session."""
    first_failure = plan_fixes.orient(s)
    plan_fixes.rounding(s)
    plan_fixes.days(s)
    plan_fixes.ranks_and_stock(s)
    plan_audit.double_charges(s)
    plan_fixes.key_fix(s)
    plan_audit.errors_by_day(s)
    plan_audit.latency_picture(s)
    plan_late.speed(s)
    plan_late.columns(s)
    plan_audit.stock_by_sku(s)
    plan_late.regressions(s)
    plan_late.finish(s, first_failure)
