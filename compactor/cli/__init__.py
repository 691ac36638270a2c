"""The command line: data to stdout, all else to stderr, exit codes that tell.

Exit codes: 0 done and proven, 1 a proof failed, 2 the call or its input was wrong, 3 the vault
refused, 130 interrupted; each command's --help lists its own.
"""

import sys
from importlib import import_module

import click

from .terminal import safe

WRONG, REFUSED, INTERRUPTED = 2, 3, 130
_COMMANDS = ("keys", "replay", "undo", "verify")


class _Lazy(click.Group):
    """A group whose commands are imported when they are asked for: the engine takes a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __name__), cmd_name)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="transcript-compactor", prog_name="compactor")
def _group() -> None:
    """Context compaction that can be undone."""


def main() -> None:
    """Run the command line; what goes wrong becomes `error:` and `hint:` lines and an exit code."""
    try:
        done = _group(prog_name="compactor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        click.echo(safe(f"error: {error}"), err=True)
        if hint := getattr(error, "hint", None):
            click.echo(safe(f"hint: {hint}"), err=True)
        sys.exit(code)
    sys.exit(done if isinstance(done, int) else 0)


def _code(error: Exception) -> int | None:
    """Return the exit code of an error that is not a fault of ours."""
    from compactor.errors import CompactorError
    from compactor.sources import SourceError
    from compactor.storage import BadName, StorageError

    if isinstance(error, CompactorError | SourceError | BadName):
        return WRONG
    return REFUSED if isinstance(error, StorageError | OSError) else None
