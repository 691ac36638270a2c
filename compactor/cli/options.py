"""Options that several commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from compactor.storage import Keys
from compactor.transcript import vault_root


def vault_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--vault` and `--identity`; the command gets `root: Path` and `keys: Keys`.

    Nothing is made: where no key is found, opening a session raises `MissingKey`.
    """

    @click.option(
        "--vault",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=".",
        show_default="this folder",
        help="A workspace with transcripts, or the vault's own folder.",
    )
    @click.option(
        "--identity",
        envvar="COMPACTOR_IDENTITY",
        show_envvar=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read with this auditor's private key instead of the host key.",
    )
    @functools.wraps(command)
    def with_vault(*args: Any, vault: Path, identity: Path | None, **rest: Any) -> Any:
        keys = Keys.identity(identity) if identity else Keys.default(make=False)
        return command(*args, root=vault_root(vault), keys=keys, **rest)

    return with_vault
