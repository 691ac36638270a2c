"""The policy of a workspace, from files and the environment.

The last of these to name a setting has the word: the defaults, the user's `policy.toml`,
`[tool.compactor]` in the workspace's `pyproject.toml`, the environment. A preset takes the place
of the defaults, wherever it is named, and the settings of all of them are laid over it. In a file
the settings have their names in `Policy`, those of a stage in a table of its own:

    preset = "frugal"
    window = 100_000

    [mask]
    keep_recent = 4

    [persist.tools]
    Bash = 5_000
    Logs = { limit = 5_000, show = "tail" }
    Notes = "never"
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from .errors import BadPolicy
from .policy import Policy

PRESETS: Mapping[str, Callable[[], Policy]] = {
    "default": Policy,
    "frugal": Policy.frugal,
    "roomy": Policy.roomy,
    "course": Policy.course,
}


def load(workspace: str | Path = ".") -> Policy:
    """Return the policy of a workspace; a file that does not exist says nothing.

    Raises:
        BadPolicy: for a file that cannot be read or is no TOML, and for a setting that is unknown
            or refused. It names the file, or the variable, and the setting, and quotes no other.

    """
    layers = [
        (str(path), _table(path, names))
        for path, names in (
            (user_file(), ()),
            (Path(workspace) / "pyproject.toml", ("tool", "compactor")),
        )
    ]
    variables = _environment()
    set_ = ", ".join(_variable(name) for name in variables)
    layers.append((f"environment ({set_})", variables))
    policy = Policy()
    for source, settings in layers:
        if "preset" in settings:
            policy = _preset(source, settings.pop("preset"))
    for source, settings in layers:
        policy = _laid_over(source, policy, settings)
    if "not_human" in layers[1][1]:
        # Whoever can write there, an agent among them, could have the human's words left out.
        message = "not_human is not taken from a workspace"
        raise _bad(layers[1][0], message, f"Set it in {user_file()}, or pass policy=.")
    return policy


def read(path: Path | None, preset: str | None = None) -> Policy:
    """Return the policy of one file, which may be none; a preset goes before the one it names.

    Raises:
        BadPolicy: as `load`, and for a file that does not exist.

    """
    settings = {} if path is None else _table(path, (), optional=False)
    source = str(path or "preset")
    named = settings.pop("preset", "default")
    return _laid_over(source, _preset(source, preset or named), settings)


def user_file() -> Path:
    """Return where the user's own settings stand: `COMPACTOR_CONFIG`, or the usual folder."""
    named = os.environ.get("COMPACTOR_CONFIG")
    return Path(named or platformdirs.user_config_path("compactor") / "policy.toml")


def _table(path: Path, names: tuple[str, ...], *, optional: bool = True) -> dict[str, Any]:
    import tomllib

    try:
        with path.open("rb") as file:
            table: Any = tomllib.load(file)
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError | NotADirectoryError):
            return {}
        message = f"cannot be read: {error.strerror}"
        raise _bad(path, message, "Make it readable, or move it away.") from None
    except (ValueError, RecursionError) as error:
        # The parser's own words may quote the file; only the place is passed on.
        place = re.search(r"line \d+, column \d+", str(error))
        where = f" at {place[0]}" if place else ""
        raise _bad(path, f"is no TOML{where}", "See https://toml.io.") from None
    for depth, name in enumerate(names, 1):
        table = table.get(name, {})
        if not isinstance(table, dict):
            title = ".".join(names[:depth])
            raise _bad(path, f"{title} must be a table", f"Write [{'.'.join(names)}].")
    return dict(table)


def _environment() -> dict[str, Any]:
    readers: dict[str, tuple[Callable[[str], Any], str]] = {
        "preset": (str, ""),
        "window": (int, "a whole number"),
        "trigger": (float, "a share from 0 to 1"),
        "target": (float, "a share from 0 to 1"),
        "stages": (lambda text: tuple(re.findall(r"[^\s,]+", text)), ""),
    }
    settings = {}
    for name, (reader, rule) in readers.items():
        if text := os.environ.get(_variable(name), "").strip():
            try:
                settings[name] = reader(text)
            except ValueError:
                hint = "Unset it for the setting of the files, or the default."
                raise _bad(_variable(name), f"must be {rule}", hint) from None
    return settings


def _laid_over(source: str, policy: Policy, settings: Mapping[str, Any]) -> Policy:
    try:
        return policy.but(**settings)
    except BadPolicy as error:
        raise _bad(source, str(error).removeprefix("policy: "), error.hint) from None


def _variable(name: str) -> str:
    return f"COMPACTOR_{name.upper()}"


def _preset(source: str, name: object) -> Policy:
    if not isinstance(name, str) or name not in PRESETS:
        raise _bad(
            source, "preset must be the name of one", f"The presets are {', '.join(PRESETS)}."
        )
    return PRESETS[name]()


def _bad(source: str | Path, message: str, hint: str | None) -> BadPolicy:
    return BadPolicy(f"{source}: {message}", hint=hint)
