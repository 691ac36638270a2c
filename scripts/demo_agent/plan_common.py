"""What the parts of the plan share."""

from pathlib import Path

WRITTEN = Path(__file__).parent / "written"
PYTEST = "python -m pytest -q -p no:cacheprovider"


def last(lines: list[str]) -> str:
    """Return the last line without its ornament."""
    return lines[-1].strip("= ")


def written(name: str) -> str:
    """Return the text of a file that the agent writes."""
    return (WRITTEN / f"{name}.txt").read_text(encoding="utf-8")
