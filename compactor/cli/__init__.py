"""The command line: data to stdout, all else to stderr, exit codes that tell.

Exit codes: 0 done and proven, 1 a proof failed, 2 the call or its input was wrong, 3 the vault
refused.
"""

import sys

import click

from compactor.errors import CompactorError
from compactor.sources import SourceError
from compactor.storage import StorageError

from .replay import replay

FAILED, WRONG, REFUSED = 1, 2, 3


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="transcript-compactor", prog_name="compactor")
def _group() -> None:
    """Context compaction that can be undone."""


_group.add_command(replay)


def main() -> None:
    """Run the command line; what goes wrong becomes `error:` and `hint:` lines and an exit code."""
    try:
        _group(prog_name="compactor")
    except (CompactorError, SourceError) as error:
        _fail(error, WRONG)
    except (StorageError, OSError) as error:
        _fail(error, REFUSED)


def _fail(error: Exception, code: int) -> None:
    click.echo(f"error: {error}", err=True)
    if hint := getattr(error, "hint", None):
        click.echo(f"hint: {hint}", err=True)
    sys.exit(code)
