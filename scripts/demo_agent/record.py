"""Record the demo session."""

import argparse
import tempfile
from pathlib import Path

from demo_agent import plan, world
from demo_agent.recorder import Session
from demo_agent.tools import Tools, bash

TARGET = Path(__file__).resolve().parents[1] / "demo-session.jsonl"


def main() -> None:
    """Make the project, play the plan, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        root = scratch / "project"
        root.mkdir()
        world.build(root)
        tools = Tools(root, scratch)
        begin = "git init -q -b main && git add -A && git commit -qm 'The books as they are'"
        tools.run(bash(begin, "Make the first commit"))
        part = scratch / "session.jsonl"
        with part.open("w", encoding="utf-8") as out:
            session = Session(out, tools)
            plan.play(session)
        options.out.write_bytes(part.read_bytes())
    print(f"{options.out}: {session.requests} requests, {options.out.stat().st_size} bytes")
