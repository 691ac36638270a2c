"""Who may import whom (the data flows one way)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PURE = [
    "messages.py",
    "wire/*.py",
    "index.py",
    "tokens.py",
    "policy.py",
    "policy_checks.py",
    "models.py",
    "describe.py",
    "originals.py",
    "manual.py",
    "refusals.py",
    "foreign.py",
    "decisions.py",
    "stages/*.py",
    "ledger.py",
    "plan.py",
    "render.py",
    "check.py",
    "notes.py",
    "view.py",
]


def imported(path: Path, module: str) -> Iterator[str]:
    """Every dotted name that a file imports; `from a import b` gives `a` and `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] != "compactor":
        parts.insert(0, "compactor")
    return ".".join(part for part in parts if part != "__init__")


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("folder", ["storage", "summarize"])
def test_leaf_folders_import_nothing_of_the_rest(folder: str) -> None:
    """`storage` and `summarize` can be read, tested and reused alone."""
    for path in (ROOT / folder).rglob("*.py"):
        for name in imported(path, module_name(path)):
            if within(name, "compactor", "storage", "summarize"):
                assert within(name, f"compactor.{folder}"), f"{path} imports {name}"


@pytest.mark.parametrize("pattern", PURE)
def test_pure_modules_import_no_shell(pattern: str) -> None:
    """Planning and rendering reach neither the session nor the disk."""
    for path in (ROOT / "compactor").glob(pattern):
        for name in imported(path, module_name(path)):
            forbidden = ("compactor.session", "compactor.storage", "storage")
            assert not within(name, *forbidden), f"{path} imports {name}"


def test_import_stays_light() -> None:
    """`import compactor` loads none of the packages that take half a second or more."""
    code = "import sys, compactor; print(*sorted({'anthropic', 'mcp', 'rich'} & set(sys.modules)))"
    answer = subprocess.run(  # in a process of its own: the test runner may have loaded them
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == ""
