"""What pyproject.toml says of packages is what the folders hold."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_listed() -> None:
    """A folder with an `__init__.py` that is not listed would be missing from the wheel."""
    found = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in SETUPTOOLS["package-dir"].items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(SETUPTOOLS["packages"])


@pytest.mark.parametrize("name", ["storage", "summarize"])
def test_links_are_relative_and_point_to_the_folders(name: str) -> None:
    """The links in `compactor/` hold in any clone, wherever it stands."""
    link = ROOT / "compactor" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name


def test_package_data_is_there_and_listed() -> None:
    """Type checkers find `py.typed` in what is installed."""
    assert "py.typed" in SETUPTOOLS["package-data"]["compactor"]
    assert (ROOT / "compactor" / "py.typed").is_file()


def test_requirements_hold_names_versions_and_hashes_only() -> None:
    """Every requirement is pinned with a hash; no option and no address stands there."""
    lines = (ROOT / "scripts" / "requirements.txt").read_text().replace("\\\n", "").splitlines()
    requirements = [line for line in lines if line.strip() and not line.startswith("#")]
    assert len(requirements) > 30
    for line in requirements:
        assert "==" in line.split("--hash", 1)[0]
        assert "--hash=sha256:" in line
    assert "://" not in "".join(lines)
