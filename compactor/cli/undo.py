"""`compactor undo`: take back a session's newest compaction."""

from pathlib import Path

import click
import orjson

from compactor.policy import Policy
from compactor.session import Compactor
from compactor.storage import Keys, NoTranscript, Vault

from .options import vault_options

_EPILOG = """\b
Examples:
  compactor undo fix-auth
  compactor undo fix-auth --vault ~/work --json
\b
Exit codes:
  0  done, or there was nothing to take back
  2  the call was wrong
  3  the vault refused: no such session, a writer at work, a key that is missing
"""


@click.command(epilog=_EPILOG)
@click.argument("session")
@vault_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def undo(session: str, root: Path, keys: Keys, as_json: bool) -> None:  # noqa: FBT001 - click's
    """Take back the newest compaction of SESSION.

    Its next request shows again what that one left out; what was shortened when it arrived stays
    so. Compaction then waits until the prompt would not fit the window otherwise. Run it while no
    agent works in the session.
    """
    if not Vault.open(root, keys).exists(session):
        message = f"there is no session {session} in {root}"
        raise NoTranscript(message, where=session)
    with Compactor.open(root, session, policy=Policy(), keys=keys) as opened:
        one = opened.undo()
    if as_json:
        found = None
        if one is not None:
            found = {"at": one.at, "reason": one.reason, "decisions": len(one.decisions)}
        click.echo(orjson.dumps({"session": session, "undone": found}))
    elif one is None:
        click.echo("nothing to take back")
    else:
        noun = "decision" if len(one.decisions) == 1 else "decisions"
        click.echo(f"taken back: {len(one.decisions)} {noun} of message {one.at} ({one.reason})")
