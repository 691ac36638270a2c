"""The later wishes: speed, a column name, regression tests, a report."""

import re

from demo_agent.plan_common import PYTEST, last, written
from demo_agent.recorder import Session
from demo_agent.tools import bash, edit, grep, read, write

RECORDS = (
    'python -c "from pathlib import Path; from orderdesk import store; '
    "[print(r) for r in store.records(Path('data'))]\""
)


def speed(s: Session) -> None:
    """Make the parser faster behind its public API."""
    s.human(
        "The nightly job takes too long since the shop grew. Reading the logs should be at least "
        "three times as fast. Same rules: public API of parser.py untouched, no new dependencies, "
        "Python 3.9."
    )
    measure = (
        "python - <<'EOF'\n"
        "import time\n"
        "from pathlib import Path\n"
        "from orderdesk import store\n"
        "best = 1e9\n"
        "for _ in range(3):\n"
        "    began = time.perf_counter()\n"
        "    count = sum(1 for _ in store.records(Path('data')))\n"
        "    best = min(best, time.perf_counter() - began)\n"
        "print(f'{count} records in {best:.2f} s, the best of three')\n"
        "EOF"
    )
    compare = (
        f"{RECORDS} > ../after.txt; cmp ../before.txt ../after.txt && echo identical && "
        "rm ../before.txt ../after.txt"
    )
    before = s.one("Measure first.", bash(measure, "Time reading all logs"))
    profile = s.one(
        f"{before.lines[-1]}. Where does it go?",
        bash(
            "python -m cProfile -s tottime -m orderdesk.cli latency | head -60",
            "Profile the latency command",
        ),
    )
    costly = next((line.split()[-1] for line in profile.lines if "shlex" in line), "shlex")
    s.do(
        f"Most of the time is in `{costly}`, which reads one character after another, and then in "
        "`strptime`. Before I change anything I keep the records that the current parser gives, "
        "in a temporary file outside data/.",
        bash(
            f"{RECORDS} > ../before.txt; wc -l < ../before.txt; sha256sum < ../before.txt",
            "Keep the old parser's records",
        ),
        grep("import (parse_line|parse_file|Record|ParseError)|from orderdesk.parser", "."),
        read("orderdesk/parser.py", 29, 12),
    )
    s.one(
        "One regular expression for the lines that the shop writes; everything else goes to the "
        "old code, so that errors and odd lines keep their behaviour.",
        edit(
            "orderdesk/parser.py",
            "def parse_line(line: str) -> Record:\n"
            '    """Return the record of one line; ParseError if it is malformed."""\n',
            written("parse_line.py"),
        ),
    )
    s.one("", edit("orderdesk/parser.py", "import shlex\n", "import re\nimport shlex\n"))
    after, same, run = s.do(
        "",
        bash(measure, "Time reading all logs"),
        bash(compare, "Compare with the old parser's records"),
        bash(PYTEST, "Run the suite"),
    )
    s.one(
        f"Fast ({after.lines[-1]}) and {last(run.lines)}, but not right: `{same.lines[1]}`. The "
        "tests do not see it. The first record that differs:",
        bash("diff ../before.txt ../after.txt | head -4", "Show the first difference"),
    )
    s.one(
        "The last value of every line keeps its line end, because my pattern lets a value contain "
        "a newline. Two characters in the pattern; and a regression test for it later.",
        edit(
            "orderdesk/parser.py",
            """|[^" ]*))*)\\n?'""",
            """|[^" \\n]*))*)\\n?'""",
        ),
    )
    after, same, run = s.do(
        "",
        bash(measure, "Time reading all logs"),
        bash(compare, "Compare with the old parser's records"),
        bash(PYTEST, "Run the suite"),
    )
    s.do(
        f"{after.lines[-1]} (before: {before.lines[-1]}); the records are {same.lines[-1]}; "
        f"{last(run.lines)}. What is left in the profile, and the public names:",
        bash("python -m cProfile -s tottime -m orderdesk.cli latency | head -40", "Profile again"),
        bash(
            'git diff main -- orderdesk/parser.py; python -c "import inspect; from orderdesk '
            "import parser as p; print(inspect.signature(p.parse_line), "
            'inspect.signature(p.parse_file), p.Record.__annotations__)"',
            "Show the change and the public signatures",
        ),
    )
    s.one(
        "",
        bash(
            "git commit -qam 'Parse log lines with one pattern' && git log --oneline",
            "Commit the parser",
        ),
    )
    times = [float(re.findall(r"in ([\d.]+) s", result.text)[0]) for result in (before, after)]
    s.say(
        f"Reading the logs is {times[0] / times[1]:.0f} times as fast ({before.lines[-1]} before, "
        f"{after.lines[-1]} now). All records are {same.lines[-1]} to those of the old parser, and "
        "the four public names have the same signatures."
    )


def columns(s: Session) -> None:
    """Rename a column, then take half of it back."""
    s.human(
        "Small thing: finance is confused by the column name `total` in our reports. Call it "
        "`gross` everywhere, please."
    )
    found = s.one("", grep("total", "."))
    s.do(
        f"{sum('cents' in line for line in found.lines)} of these lines concern amounts in cents. "
        "The column stands in two places: the Markdown book and the header of "
        "`data/derived/double-charges.csv`, which our script writes.",
        edit("orderdesk/report.py", "| sku | pieces | total |", "| sku | pieces | gross |"),
        bash(
            "sed -i 's/total_cents/gross_cents/' tools/double_charges.py && "
            "python tools/double_charges.py && head -3 data/derived/double-charges.csv",
            "Rename the column in the CSV",
        ),
    )
    s.say("The column is called `gross` in the Markdown book and `gross_cents` in the CSV file.")
    s.human(
        "Correction: I was too quick. Keep `total_cents` in the CSV file, a spreadsheet of ours "
        "reads it by name. `gross` only in the Markdown."
    )
    s.do(
        "I take the CSV half back.",
        bash(
            "sed -i 's/gross_cents/total_cents/' tools/double_charges.py && "
            "python tools/double_charges.py && head -3 data/derived/double-charges.csv",
            "Rename the CSV column back",
        ),
        bash("python -m orderdesk.cli report --day 2026-03-29", "Show a book"),
    )
    s.one(
        "",
        bash(
            "git add -A && git commit -qm 'Call the amount gross in the Markdown book' && "
            "git log --oneline",
            "Commit",
        ),
    )
    s.say("`total_cents` again in the CSV, `gross` only in the Markdown book.")


def regressions(s: Session) -> None:
    """Write tests for every defect."""
    s.human(
        "Please add a regression test for each defect, in tests/test_regressions.py, every name "
        "beginning with test_regression_. For the rounding go over all order lines, not only a few."
    )
    s.one("", write("tests/test_regressions.py", written("test_regressions.py")))
    run = s.one(
        "",
        bash(
            "python -m pytest -vv -p no:cacheprovider tests/test_regressions.py",
            "Run the new tests, verbosely",
        ),
    )
    old = s.one(
        f"{last(run.lines)}; a parametrised test over all order lines is a lot of output, the "
        "quiet form is enough from now on. Do the tests fail on the old code, as they should?",
        bash(
            "git stash -q -u -- tests/test_regressions.py; git checkout -q main && "
            "git stash pop -q && python -m pytest -q -p no:cacheprovider tests/test_regressions.py "
            "| grep -v 'no_line_is_off' | grep -E '^(FAILED|ERROR)|failed|passed'",
            "Run the new tests against main",
        ),
    )
    s.one(
        f"{last(old.lines)} there, one for each defect that main has; the line end was only in my "
        "own first version of the parser. Back to the branch, and commit.",
        bash(
            "git checkout -q fix/books && git add -A && git commit -qm 'A test for each defect' && "
            f"git status --short --branch && {PYTEST} | tail -1",
            "Commit on the branch and run everything",
        ),
    )
    s.say(f"`tests/test_regressions.py` is there: {last(run.lines)}.")


def finish(s: Session, first_failure: str) -> None:
    """Answer a question about the beginning, then write the report."""
    s.human(
        "Before you write the final report: what was the very first assertion that failed in your "
        "first test run this morning, word for word? And which rules did I give you?"
    )
    s.say(
        f"The first one was:\n\n    {first_failure}\n\nYour rules: never touch the public API of "
        "orderdesk/parser.py; keep Python 3.9 compatibility; do not write to data/, later "
        "corrected to: only data/derived/ may be written; no new dependencies; work on branch "
        "fix/books; do not change what a test expects; the signature of `charge` stays; "
        "`total_cents` stays in the CSV and `gross` stands only in the Markdown."
    )
    s.human("Right. Final report to notes/report.md please, one page, then show me the diffstat.")
    log, books, double, run = s.do(
        "I collect the figures once more instead of trusting my memory.",
        bash("git log --oneline main..", "Commits on the branch"),
        bash("python -m orderdesk.cli reconcile", "Compare with finance"),
        bash("wc -l < data/derived/double-charges.csv", "Count the double charges"),
        bash(f"{PYTEST} | tail -1", "Run the suite"),
    )
    commits = "\n".join(f"- {line.split(' ', 1)[1]}" for line in reversed(log.lines))
    count = int(double.lines[-1]) - 1
    s.do(
        "",
        write(
            "notes/report.md",
            "# The books of March 2026\n\n"
            f"State: {books.lines[-1]}; tests: {last(run.lines)}.\n\n## What was wrong\n\n"
            "1. Amounts in binary floats; exact half cents went down (`orderdesk/money.py`).\n"
            "2. A fixed offset of one hour instead of Berlin's zone (`orderdesk/clock.py`).\n"
            "3. Percentiles one rank too high (`orderdesk/latency.py`).\n"
            "4. A release delivered twice counted twice (`orderdesk/inventory.py`).\n"
            "5. A new idempotency key for each attempt (`orderdesk/retry.py`): "
            f"{count} orders charged twice.\n\n## Commits\n\n{commits}\n\n## Left to do\n\n"
            "- Refund the open double charges of `data/derived/double-charges.csv`.\n"
            "- Ask northpay why its answers take longer than 3000 ms.\n",
        ),
        bash("git add -A && git commit -qm 'Report' && git diff --stat main", "Commit, diffstat"),
    )
    s.say(
        f"The report is in notes/report.md. {books.lines[-1]}, {last(run.lines)}, {count} double "
        f"charges documented, {len(log.lines) + 1} commits on fix/books."
    )
