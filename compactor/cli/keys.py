"""`compactor keys`: the host key and its backup, auditors, rotation."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import orjson

from compactor.storage import BadName, Keys, Recipient, Vault, WrongKey, recipients, rotate
from compactor.storage.keys import count_slots, is_rotating, read_key, state_folder
from compactor.transcript import vault_root

_BACKUP = "the whole state folder: the host key alone opens nothing without the slots in it"
_CODES = """\
\b
Exit codes:
  0  done
  1  done, but some sessions were left as they are; stderr says which and why
  2  the call was wrong: no public key, a name that is taken, nobody of that name
  3  the state folder or a vault refused, or a key is missing, wrong or damaged
"""
_SOURCES = {
    "host.key": "the file host.key (the default)",
    "COMPACTOR_KEY": "the environment variable COMPACTOR_KEY",
    "COMPACTOR_KEY_FILE": "the file that COMPACTOR_KEY_FILE names",
}

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_name = click.option("--name", metavar="NAME", help="What to call the auditor.")
_workspaces = click.option(
    "--workspace",
    "workspaces",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A workspace with transcripts, or a vault's own folder; may be repeated (default: "
    "this folder, if it has transcripts).",
)


def _epilog(*examples: str) -> str:
    return (
        "\b\nExample:\n" + "".join(f"  compactor keys {one}\n" for one in examples) + "\n" + _CODES
    )


@click.group(epilog=_CODES)
def keys() -> None:
    """Look after the host key and the auditors.

    Each session has a key of its own. It is wrapped under the host key, in the state folder, and
    for each auditor, in the vault: with their private key a copy of the vault is enough. Key bytes
    are shown by nothing but `export`.
    """


@keys.command(epilog=_epilog("show"))
@_json
def show(*, as_json: bool) -> None:
    """Show where the host key comes from and what depends on it."""
    held = Keys.default(make=False)
    fingerprint = held.fingerprint
    vaults, slots = count_slots(held.state)
    known = recipients.known(held.state)
    recovery = next((one for one in known if one.recovery), None)
    data = {
        "source": held.source,
        "fingerprint": fingerprint,
        "state": str(held.state),
        "vaults": vaults,
        "slots": slots,
        "rotating": is_rotating(held.state),
        "auditors": len(known),
        "recovery": _row(recovery) if recovery else None,
        "backup": _BACKUP,
    }
    if as_json:
        _print(data)
        return
    click.echo(f"host key     from {_SOURCES[held.source]}")
    click.echo(f"fingerprint  {fingerprint}")
    click.echo(f"state        {held.state}")
    click.echo(f"slots        {slots} sessions in {vaults} vaults")
    click.echo(f"auditors     {len(known)}")
    click.echo(f"recovery     {f'{recovery.name} {recovery.key}' if recovery else 'nobody'}")
    click.echo(f"backup       {_BACKUP}")
    if data["rotating"]:
        _hint("a rotation was interrupted; compactor keys rotate ends it")
    if recovery is None:
        _hint(
            "a recovery recipient opens every session if the host key is lost: "
            "compactor keys new-auditor FILE, then add-auditor PUBLIC-KEY --recovery"
        )


@keys.command("new-auditor", epilog=_epilog("new-auditor alice.identity --name alice"))
@click.argument("file", type=click.Path(path_type=Path))
@_name
@_json
def new_auditor(*, file: Path, name: str | None, as_json: bool) -> None:
    """Make a key pair: the private key in a new FILE (0600), the public key to stdout."""
    public = recipients.new_identity(file, recipients.check_recipient(name) if name else "")
    if as_json:
        _print({"identity": str(file), "public_key": public})
    else:
        click.echo(public)
    _hint(
        f"where the sessions are: compactor keys add-auditor {public}"
        + (f" --name {name}" if name else "")
    )


@keys.command("add-auditor", epilog=_epilog("add-auditor compactor-public-... --name alice"))
@click.argument("public_key", metavar="PUBLIC-KEY")
@_name
@click.option("--recovery", is_flag=True, help="Mark as the recovery recipient; there is one.")
@_workspaces
@_json
def add_auditor(
    *,
    public_key: str,
    name: str | None,
    recovery: bool,
    workspaces: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Let PUBLIC-KEY open all sessions to come, and those of the workspaces.

    A session gets a slot for every auditor known on this host, if its key is here. Adding somebody
    again does the same for more workspaces.
    """
    public = _public(public_key)
    state = state_folder()
    same = next((one.name for one in recipients.known(state) if one.public == public), None)
    default = same or f"auditor-{public_key.removeprefix(recipients.PUBLIC)[:8]}"
    new = Recipient(recipients.check_recipient(name or default), public, recovery)
    vaults = _vaults(workspaces)
    recipients.add(state, new)
    _share(vaults, _row(new), frozenset(), as_json=as_json)


@keys.command("remove-auditor", epilog=_epilog("remove-auditor alice --existing"))
@click.argument("name_or_key", metavar="NAME-OR-KEY")
@click.option("--existing", is_flag=True, help="Take the slots out of existing sessions, too.")
@_workspaces
@_json
def remove_auditor(
    *, name_or_key: str, existing: bool, workspaces: tuple[Path, ...], as_json: bool
) -> None:
    """Keep NAME-OR-KEY out of all sessions to come.

    What they could open so far, they may have copied: --existing takes their slots out of the
    sessions of the workspaces, but not out of copies, and not from memory.
    """
    if workspaces and not existing:
        message = "--workspace needs --existing: without it only sessions to come are concerned"
        raise click.UsageError(message)
    vaults = _vaults(workspaces) if existing else []
    try:
        gone = recipients.remove(state_folder(), name_or_key)
    except BadName:
        # Who was removed before is known by the key only; their slots may still be there.
        if not (existing and name_or_key.startswith(recipients.PUBLIC)):
            raise
        gone = Recipient("", _public(name_or_key))
    _hint(
        "whoever has a copy of a vault with the old slots can still read it"
        if existing
        else "existing sessions still open for them; --existing takes their slots out"
    )
    _share(vaults, _row(gone), frozenset({gone.public}), as_json=as_json)


@keys.command("list", epilog=_epilog("list --workspace . --json"))
@_workspaces
@_json
def list_(*, workspaces: tuple[Path, ...], as_json: bool) -> None:
    """List the auditors, and how many sessions of the workspaces each one can open."""
    known = {one.public: one for one in recipients.known(state_folder())}
    vaults = _vaults(workspaces)
    opens = Counter(
        public for vault in vaults for name in vault.sessions() for public in vault.readers(name)
    )
    strangers = [Recipient("", public) for public in sorted(opens.keys() - known.keys())]
    rows = [
        _row(one) | ({"sessions": opens[one.public]} if vaults else {})
        for one in (*known.values(), *strangers)
    ]
    if as_json:
        _print({"auditors": rows})
        return
    for row in rows:
        words = [row["name"] or "(not known here)", row["public_key"]]
        words += ["recovery"] if row["recovery"] else []
        words += [f"{row['sessions']} sessions"] if vaults else []
        click.echo("  ".join(words))


@keys.command(epilog=_epilog("export /media/stick/host.key", "export - | gpg -e -r me > host.gpg"))
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--force", is_flag=True, help="Write to the terminal, if FILE is - and that is one.")
def export(*, file: Path, force: bool) -> None:
    """Write the host key to a new FILE (0600), or to stdout (-).

    It opens sessions together with their slots in the state folder: keep a copy of that, too, or
    set a recovery recipient, whose key needs nothing else. COMPACTOR_KEY_FILE can name the file;
    nothing is ever overwritten.
    """
    data = Keys.default(make=False).export()
    if str(file) != "-":
        recipients.write_private(file, data)
        click.echo(f"the host key is in {file}; keep it where the vaults are not", err=True)
    elif sys.stdout.isatty() and not force:
        message = "stdout is a terminal: name a file, or use --force to show the key"
        raise click.UsageError(message)
    else:
        click.echo(data, nl=False)


@keys.command("rotate", epilog=_epilog("rotate", "rotate --from old-host.key"))
@click.option(
    "--from",
    "old",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Make no key: wrap what the old key in FILE opens under the present one.",
)
@_json
def rotate_(*, old: Path | None, as_json: bool) -> None:
    """Make a new host key and wrap all local slots under it.

    May be interrupted: every session still opens, and the next call goes on. Session keys stay, so
    an old copy of the state folder still opens the vaults: keep out whoever has one by new
    sessions. A key from the environment is rotated by setting a new one, then --from.
    """
    held = Keys.default(make=False)
    if old is not None:
        done = held.rewrap(read_key(old))
    elif held.source != "host.key":
        message = f"the host key is in {held.source}: set a new one there, then use --from OLD-KEY"
        raise click.UsageError(message)
    else:
        done = rotate(held.state)
    fingerprint = Keys.default(make=False).fingerprint
    if as_json:
        _print({"fingerprint": fingerprint, "wrapped": done.wrapped, "left": list(done.left)})
    else:
        click.echo(f"{done.wrapped} slots are under the host key {fingerprint} now")
    for session in done.left:
        click.echo(f"warning: session {session}: damaged, or under a third key", err=True)
    _hint(f"back up {_BACKUP}")
    sys.exit(1 if done.left else 0)


def _vaults(workspaces: tuple[Path, ...]) -> list[Vault]:
    """Open the vaults that are meant: those named, or that of this folder if it has one."""
    roots = [vault_root(one) for one in workspaces or (Path(),)]
    if not workspaces and not (roots[0] / "STORE.json").exists():
        return []
    held = Keys.default(make=False)
    return [Vault.open(root, held) for root in roots]


def _public(text: str) -> bytes:
    try:
        return recipients.parse_public(text)
    except WrongKey as error:
        raise BadName(str(error), hint=error.hint) from None


def _share(
    vaults: list[Vault], auditor: dict[str, Any], drop: frozenset[bytes], *, as_json: bool
) -> None:
    """Bring the slots of the sessions to what this host knows, and report."""
    rows, failed = [], False
    for vault in vaults:
        done = vault.share(drop=drop)
        for session, error in done.refused.items():
            failed = True
            click.echo(f"warning: session {session}: {error}", err=True)
        rows.append(
            {
                "vault": str(vault.root),
                "changed": done.changed,
                "unchanged": done.unchanged,
                "refused": sorted(done.refused),
            }
        )
    if as_json:
        _print({"auditor": auditor, "vaults": rows})
    else:
        click.echo("  ".join(filter(None, (auditor["name"], auditor["public_key"]))))
        for row in rows:
            click.echo(
                f"{row['vault']}: slots of {len(row['changed'])} sessions changed, "
                f"{len(row['unchanged'])} were right, {len(row['refused'])} could not be changed"
            )
    sys.exit(1 if failed else 0)


def _row(one: Recipient) -> dict[str, Any]:
    return {"name": one.name, "public_key": one.key, "recovery": one.recovery}


def _print(data: dict[str, Any]) -> None:
    click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2))


def _hint(text: str) -> None:
    click.echo(f"hint: {text}", err=True)
