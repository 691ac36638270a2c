"""The agent's tools. Each does what it says in the project folder and returns what came out."""

import os
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHOWN_ROOT = "/project"

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the agent asks for it."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave back; `content` is a text or a list of blocks."""

    content: str | list[Block]
    is_error: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the result ("" for an image)."""
        return self.content if isinstance(self.content, str) else ""

    @property
    def lines(self) -> list[str]:
        """The lines of the text, blank ones left out."""
        return [line for line in self.text.splitlines() if line.strip()]


def bash(command: str, description: str) -> Call:
    """Run a command in the project folder."""
    return Call("Bash", {"command": command, "description": description})


def read(path: str, offset: int | None = None, limit: int | None = None) -> Call:
    """Read a text file with line numbers, or an image."""
    options = {"offset": offset, "limit": limit}
    chosen = {key: value for key, value in options.items() if value is not None}
    return Call("Read", {"file_path": f"{SHOWN_ROOT}/{path}", **chosen})


def grep(pattern: str, path: str = ".", glob: str | None = None) -> Call:
    """Search files for a regular expression."""
    return Call(
        "Grep",
        {"pattern": pattern, "path": path, "output_mode": "content", "-n": True}
        | ({"glob": glob} if glob else {}),
    )


def glob(pattern: str) -> Call:
    """List files by name."""
    return Call("Glob", {"pattern": pattern})


def edit(path: str, old: str, new: str) -> Call:
    """Replace one passage of a file."""
    names = {"old_string": old, "new_string": new}
    return Call("Edit", {"file_path": f"{SHOWN_ROOT}/{path}", **names})


def write(path: str, content: str) -> Call:
    """Write a file."""
    return Call("Write", {"file_path": f"{SHOWN_ROOT}/{path}", "content": content})


class Tools:
    """The tools over one project folder."""

    def __init__(self, root: Path, scratch: Path) -> None:
        """Put `python` and the environment of the commands into a scratch folder."""
        self.root = root
        programs = scratch / "bin"
        programs.mkdir()
        for name in ("python", "python3"):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            program.chmod(0o755)
        who = {"NAME": "Demo", "EMAIL": "demo@example.org", "DATE": "2026-04-05T08:00:00Z"}
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(scratch),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "100",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_{key}": value for key, value in who.items()}
        site = Path(next(path for path in sys.path if path.endswith("site-packages")))
        self.shown = [
            (str(root), SHOWN_ROOT),
            (str(site), "/usr/lib/python3/site-packages"),
            (os.path.realpath(sys.base_prefix), "/usr"),
            (sys.base_prefix, "/usr"),
            (sys.prefix, "/usr"),
            (str(scratch), "/tmp/home"),  # noqa: S108 - a text only
        ]

    def clean(self, text: str) -> str:
        """Replace the folders of the machine that records."""
        for found, shown in self.shown:
            text = text.replace(found, shown)
        return text

    def path(self, shown: str) -> Path:
        """Return the real path of a path as the agent writes it."""
        return self.root / Path(shown).relative_to(SHOWN_ROOT)

    def run(self, call: Call) -> Result:
        """Carry out a call."""
        result: Result = getattr(self, call.name.lower())(
            **{key.lstrip("-"): value for key, value in call.input.items()}
        )
        return result

    def bash(self, command: str, description: str) -> Result:
        """Run a command; a failing one gives an error result with its exit code first."""
        del description
        done = subprocess.run(  # noqa: S603 - the plan's own commands
            ["/bin/bash", "-c", command.replace(SHOWN_ROOT, str(self.root))],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        text = self.clean(done.stdout.decode("utf-8", "replace")).rstrip("\n")
        extra = {"interrupted": False, "isImage": False}
        if done.returncode:
            return Result(f"Exit code {done.returncode}\n{text}".rstrip("\n"), True, extra)  # noqa: FBT003
        return Result(text or "(no output)", extra=extra)

    def read(self, file_path: str, offset: int = 1, limit: int = 2000) -> Result:
        """Read a file as numbered lines, a PNG as an image block."""
        path = self.path(file_path)
        if not path.is_file():
            return Result(f"No such file: {file_path}", is_error=True)
        if path.suffix == ".png":
            data = b64encode(path.read_bytes()).decode()
            source = {"type": "base64", "media_type": "image/png", "data": data}
            return Result([{"type": "image", "source": source}], extra={"type": "image"})
        lines = path.read_text(encoding="utf-8").split("\n")[offset - 1 : offset - 1 + limit]
        text = "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, offset))
        return Result(text, extra={"type": "text", "file": {"filePath": file_path}})

    def grep(
        self,
        pattern: str,
        path: str,
        output_mode: str,
        n: bool,  # noqa: FBT001
        glob: str = "*",
    ) -> Result:
        """Search the files below a path, or one file."""
        del output_mode, n
        start = self.root / path
        files = [start] if start.is_file() else sorted(start.rglob(glob))
        found = [
            f"{file.relative_to(self.root)}:{number}:{line}"
            for file in files
            if file.is_file() and ".git" not in file.parts and "__pycache__" not in file.parts
            for number, line in enumerate(file.read_text("utf-8", "replace").split("\n"), 1)
            if re.search(pattern, line)
        ]
        return Result("\n".join(found) or "No matches")

    def glob(self, pattern: str) -> Result:
        """List the files that match a pattern."""
        names = sorted(f"{SHOWN_ROOT}/{p.relative_to(self.root)}" for p in self.root.glob(pattern))
        return Result("\n".join(names) or "No files")

    def edit(self, file_path: str, old_string: str, new_string: str) -> Result:
        """Replace a passage that must stand in the file exactly once."""
        path = self.path(file_path)
        text = path.read_text(encoding="utf-8")
        if (count := text.count(old_string)) != 1:
            return Result(
                f"old_string stands {count} times in {file_path}, not once", is_error=True
            )
        text = text.replace(old_string, new_string)
        path.write_text(text, encoding="utf-8")
        first = max(1, text[: text.index(new_string)].count("\n") - 2)
        excerpt = text.split("\n")[first - 1 : first + new_string.count("\n") + 6]
        numbered = "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(excerpt, first))
        return Result(f"Edited {file_path}:\n{numbered}", extra={"filePath": file_path})

    def write(self, file_path: str, content: str) -> Result:
        """Write a file, its folder with it."""
        path = self.path(file_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return Result(
            f"Wrote {len(content)} characters to {file_path}", extra={"filePath": file_path}
        )
