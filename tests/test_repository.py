"""What the repository holds, and what it must not hold."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROOT_ENTRIES = {
    "compactor",
    "storage",
    "summarize",
    "tests",
    "scripts",
    "README.md",
    "SECURITY.md",
    "pyproject.toml",
    "LICENSE",
}

# Put together, so that this file does not hold what it looks for.
HOSTS = re.compile(
    "|".join(
        re.escape(f"{name}.{top}")
        for name, top in [("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org")]
    )
)
MACHINE_PATHS = re.compile(r"(?<![\w.<>-])/(?:work/|root\b|home/(?!user\b)\w|Users/\w)")


def tracked() -> list[Path]:
    """Paths that git knows, relative to the root; skips where there are none."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    answer = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [Path(name) for name in answer.stdout.decode().split("\0") if name]
    if not paths:
        pytest.skip("nothing is tracked yet")
    return paths


def text_files() -> list[tuple[Path, str]]:
    """Each tracked text file with its content."""
    files = []
    for path in tracked():
        full = ROOT / path
        if full.is_symlink() or not full.is_file():
            continue
        content = full.read_bytes()
        if b"\0" not in content:
            files.append((path, content.decode("utf-8", "replace")))
    return files


def test_root_holds_only_the_agreed_entries() -> None:
    """The root is the first thing that a reader sees; it stays short."""
    names = {path.parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= ROOT_ENTRIES


def test_no_registry_is_named() -> None:
    """Where packages come from is the business of whoever installs them."""
    assert [str(path) for path, text in text_files() if HOSTS.search(text)] == []


def test_no_path_of_a_machine_is_left() -> None:
    """The recorded session speaks of `/project`; nothing else names a folder of its author."""
    found = {str(path): MACHINE_PATHS.search(text) for path, text in text_files()}
    assert {path: match[0] for path, match in found.items() if match} == {}
