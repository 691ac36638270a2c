"""Looking around, then the defects that the test suite shows."""

import re
from collections import Counter

from demo_agent.plan_common import PYTEST, last
from demo_agent.png import bars
from demo_agent.recorder import Session
from demo_agent.tools import bash, edit, glob, grep, read


def orient(s: Session) -> str:
    """Look around and run the tests; the first failing assertion."""
    s.human(
        "The nightly books of orderdesk disagree with finance on every single day, and the test "
        "suite is red. Please find out why and fix it.\n\nRules for the whole job:\n"
        "- never touch the public API of orderdesk/parser.py (Record, ParseError, parse_line, "
        "parse_file): another team imports it\n"
        "- keep Python 3.9 compatibility\n"
        "- do not write to data/\n"
        "- no new dependencies\n"
        "- work on a branch fix/books, not on main"
    )
    log, listing, sizes = s.do(
        "I'll start with the history, the layout and the size of the data.",
        bash("git log --oneline && git status --short --branch", "Show history and state"),
        glob("**/*.py"),
        bash("du -sh data && wc -l data/*.csv data/logs/*.log", "Size of the data"),
    )
    events = sizes.lines[-1].split()[0]
    s.do(
        f"{len(listing.lines)} Python files, {events} lines of data, and one commit "
        f"(`{log.lines[0]}`). A branch first, then the documents.",
        bash("git checkout -b fix/books", "Create the branch"),
        read("README.md"),
        read("docs/logs.md"),
    )
    s.branch = "fix/books"
    s.do(
        "The README says: gross amounts in cents, rounded half up for each order line; business "
        "days in Berlin; timestamps in UTC. Now the sources, from the bottom up.",
        read("orderdesk/parser.py"),
        read("orderdesk/money.py"),
        read("orderdesk/clock.py"),
    )
    s.do(
        "",
        read("orderdesk/latency.py"),
        read("orderdesk/inventory.py"),
        read("orderdesk/retry.py"),
        read("orderdesk/store.py"),
    )
    s.do(
        "`clock.py` uses a fixed offset of one hour and `money.py` uses floats; both look "
        "suspicious. The rest of the package, and the tests.",
        read("orderdesk/report.py"),
        read("orderdesk/cli.py"),
    )
    s.do("", *(read(f"tests/test_{name}.py") for name in ("money", "clock", "latency")))
    s.do("", *(read(f"tests/test_{name}.py") for name in ("inventory", "parser", "books")))
    run = s.one("Now the suite as it stands.", bash(PYTEST, "Run the test suite"))
    failed = [line for line in run.lines if line.startswith("FAILED")]
    first = next(line[1:].strip() for line in run.lines if line.startswith("E  "))
    per_file = Counter(re.findall(r"tests/(test_\w+)\.py", "\n".join(failed)))
    most = ", ".join(f"{count} in {name}" for name, count in per_file.most_common())
    books = s.one(
        f"{last(run.lines)}: {most}. The first assertion that fails is `{first}`. "
        "How far off are the books?",
        bash("python -m orderdesk.cli reconcile", "Compare with finance"),
    )
    rows = [line.split() for line in books.lines if line.startswith("2026")]
    s.one(
        f"{books.lines[-1]}. There are two kinds of difference: up to 2026-03-28 some cents "
        f"({rows[0][3]} on {rows[0][0]}), from 2026-03-29 on whole orders "
        f"({rows[7][3]} on {rows[7][0]}). 29 March is the day on which summer time begins. "
        "I want to see what the raw orders look like.",
        bash("cat data/orders.csv", "Show the order table"),
    )
    orders = s.one(
        "That was more than I needed. Counting instead.",
        bash(
            "tail -n +2 data/orders.csv | cut -d, -f5 | sort | uniq -c | sort -rn",
            "Count lines by net price",
        ),
    )
    top = orders.lines[0].split()
    s.do(
        f"{len(orders.lines)} different net prices; {top[1]} is the most frequent with {top[0]} "
        "lines. Where do amounts and days come from in the code?",
        grep(r"gross_cents|business_day", "orderdesk"),
        grep(r"float\(|round\(", "orderdesk"),
        grep(r"timedelta|timezone", "orderdesk"),
    )
    return first


def rounding(s: Session) -> None:
    """Fix the amounts."""
    probe = s.one(
        "Only `money.py` computes amounts. A direct comparison of the float expression with "
        "decimal arithmetic over every price in the table:",
        bash(
            "python - <<'EOF'\n"
            "import csv\n"
            "from decimal import Decimal, ROUND_HALF_UP\n"
            "from orderdesk.money import gross_cents\n"
            "seen = {(r['net'], int(r['qty'])) for r in csv.DictReader(open('data/orders.csv'))}\n"
            "for net, qty in sorted(seen, key=lambda p: (float(p[0]), p[1])):\n"
            "    exact = Decimal(net) * qty * Decimal('1.19') * 100\n"
            "    want = int(exact.quantize(Decimal(1), ROUND_HALF_UP))\n"
            "    got = gross_cents(net, qty)\n"
            "    print(f'{net:>7} x {qty}  exact {exact:>12}  got {got:>6}  want {want:>6}', "
            "'' if got == want else '<-- wrong')\n"
            "EOF",
            "Compare float and decimal rounding",
        ),
    )
    wrong = [line for line in probe.lines if "wrong" in line]
    s.do(
        f"{len(wrong)} of {len(probe.lines)} combinations are wrong, for example "
        f"`{wrong[0].split('<')[0].strip()}`. Every one of them is an exact half cent that the "
        "float falls short of or that `round` takes to the even neighbour. Decimal fixes both.",
        edit(
            "orderdesk/money.py",
            "VAT = 0.19\n\n\ndef gross_cents(net: str, quantity: int = 1, rate: float = VAT)"
            " -> int:\n",
            'from decimal import ROUND_HALF_UP, Decimal\n\nVAT = Decimal("0.19")\n\n\n'
            "def gross_cents(net: str, quantity: int = 1, rate: Decimal = VAT) -> int:\n",
        ),
        edit(
            "orderdesk/money.py",
            "    return round(float(net) * quantity * (1 + rate) * 100)\n",
            "    exact = Decimal(net) * quantity * (1 + rate) * 100\n"
            "    return int(exact.quantize(Decimal(1), ROUND_HALF_UP))\n",
        ),
    )
    run, books = s.do(
        "",
        bash(f"{PYTEST} tests/test_money.py", "Run the money tests"),
        bash("python -m orderdesk.cli reconcile", "Compare with finance"),
    )
    s.one(
        f"Money: {last(run.lines)}. The books: {books.lines[-1]}; the days before summer time "
        "agree to the cent now. I commit this step alone.",
        bash(
            "git add -A && git commit -qm 'Round amounts half up, in decimal' && git log --oneline",
            "Commit the rounding fix",
        ),
    )
    rows = [line.split() for line in books.lines if line.startswith("2026")]
    s.say(
        "Half of it is done: amounts were computed with binary floats, and exact half cents went "
        f"the wrong way. After the fix {books.lines[-1]}; the largest difference is "
        f"{max((row[3] for row in rows), key=lambda text: abs(float(text)))}. The rest begins on "
        "2026-03-29, so I suspect the fixed UTC offset in `orderdesk/clock.py`. Shall I go on?"
    )


def days(s: Session) -> None:
    """Fix the day on which an order falls."""
    totals = [
        int(line.split(",")[1])
        for line in (s.tools.root / "data/finance.csv").read_text().splitlines()[1:]
    ]
    s.human(
        "Yes, go on. This is the chart that finance sends around (their totals by day); the red "
        "bar is 29 March. They say that our book has more than theirs that day.",
        bars(totals, marked=7),
    )
    log = s.one(
        "The red bar is the eighth, 2026-03-29, and it is lower than in our book, which fits. "
        "Let me look at that day's log.",
        bash("cat data/logs/app-2026-03-29.log", "Show the log of 29 March"),
    )
    late = s.one(
        f"{len(log.lines)} lines; I should have filtered. The orders that matter are those between "
        "22:00 and 23:00 UTC: in summer time that hour is the next day in Berlin.",
        bash(
            "grep -h 'checkout' data/logs/app-2026-03-29.log data/logs/app-2026-03-3*.log "
            "data/logs/app-2026-04-*.log | grep 'T22:'",
            "Orders between 22 and 23 UTC since summer time",
        ),
    )
    first = re.search(r"ORD-\d+", late.text)
    name = first[0] if first else ""
    s.do(
        f"{len(late.lines)} orders since 29 March stand in the wrong day, {name} is the first. "
        "I check that one by hand, and whether the tests' Python knows the zone.",
        bash(
            f"grep '{name}' data/orders.csv; python -c \"from datetime import datetime, timezone; "
            "from zoneinfo import ZoneInfo; print(datetime(2026, 3, 29, 22, 30, "
            "tzinfo=timezone.utc).astimezone(ZoneInfo('Europe/Berlin')))\"",
            "Check one order and the zone",
        ),
        read("orderdesk/timezones.py"),
    )
    s.do(
        "`orderdesk/timezones.py` does not exist, I misremembered; everything is in `clock.py`. "
        "`zoneinfo` is in the standard library since 3.9, so it is allowed.",
        edit(
            "orderdesk/clock.py",
            "from datetime import date, datetime, timedelta, timezone\n\n"
            "BERLIN = timezone(timedelta(hours=1))\n",
            "from datetime import date, datetime\nfrom zoneinfo import ZoneInfo\n\n"
            'BERLIN = ZoneInfo("Europe/Berlin")\n',
        ),
    )
    run, books = s.do(
        "",
        bash(f"{PYTEST} tests/test_clock.py tests/test_books.py", "Run the clock and book tests"),
        bash("python -m orderdesk.cli reconcile", "Compare with finance"),
    )
    failures = [line for line in run.lines if line.startswith("FAILED")]
    why = (failures[0] if failures else "none").removeprefix("FAILED ")
    missing = s.one(
        f"{books.lines[-1]}. One test of these files is left: `{why}`. "
        "I also try the oldest Python that we support.",
        bash("python3.9 -m pytest -q tests", "Run the tests with Python 3.9"),
    )
    s.one(
        f"`{missing.lines[-1].split(': ', 1)[-1]}`: no 3.9 on this machine. I can at least parse "
        "every file with the 3.9 grammar.",
        bash(
            'python -c "import ast, pathlib; [ast.parse(p.read_text(), feature_version=(3, 9)) or '
            "print(p) for p in sorted(pathlib.Path('orderdesk').glob('*.py'))]; print('ok')\"",
            "Parse with the grammar of 3.9",
        ),
    )
    s.one(
        "",
        bash(
            "git commit -qam 'Business days follow summer time' && git log --oneline",
            "Commit the clock fix",
        ),
    )
    s.say(
        f"The books agree now: {books.lines[-1]}. The cause of the large differences was the fixed "
        f"offset of one hour in `clock.py`: {len(late.lines)} orders placed between 22:00 and "
        "23:00 UTC since 29 March were booked a day early."
    )


def ranks_and_stock(s: Session) -> None:
    """Fix percentiles and releases."""
    s.human(
        "Great. Now the other red tests: percentiles and inventory. And please do not change what "
        "a test expects, the tests are right."
    )
    run = s.one(
        "", bash(f"{PYTEST} tests/test_latency.py tests/test_inventory.py", "Run both files")
    )
    reasons = [line.split(" - ", 1)[-1] for line in run.lines if line.startswith("FAILED")]
    s.one(
        f"{last(run.lines)}. Percentiles are one rank too high (`{reasons[0]}`, and for 1.0 the "
        "index runs off the end). Nearest rank is ceil(share * n), counted from one. The float "
        "product may be a hair too large, so I round it before `ceil`.",
        edit(
            "orderdesk/latency.py",
            "    return ordered[int(len(ordered) * share)]\n",
            "    rank = math.ceil(round(len(ordered) * share, 9))\n"
            "    return ordered[max(rank, 1) - 1]\n",
        ),
    )
    s.one(
        "",
        edit(
            "orderdesk/latency.py",
            "from typing import Dict, Iterable",
            "import math\nfrom typing import Dict, Iterable",
        ),
    )
    s.one(
        "Inventory: `release` subtracts even when nothing is open for that order and SKU, so a "
        "release that the queue delivers twice counts twice.",
        edit(
            "orderdesk/inventory.py",
            "        self.open.pop((order, sku), None)\n        self.reserved[sku] -= qty\n",
            "        self.reserved[sku] -= self.open.pop((order, sku), 0)\n",
        ),
    )
    s.one(
        "The parameter is called `quantity`, not `qty`.",
        edit(
            "orderdesk/inventory.py",
            "        self.open.pop((order, sku), None)\n        self.reserved[sku] -= quantity\n",
            "        self.reserved[sku] -= self.open.pop((order, sku), 0)\n",
        ),
    )
    run, stock = s.do(
        "",
        bash(PYTEST, "Run the whole suite"),
        bash("python -m orderdesk.cli stock", "Show open reservations"),
    )
    s.one(
        f"Whole suite: {last(run.lines)}.",
        bash(
            "git commit -qam 'Nearest-rank percentiles, releases count once' && git log --oneline",
            "Commit",
        ),
    )
    s.say(
        f"All green: {last(run.lines)}. Open reservations are {stock.lines[0].split()[-1]} for "
        f"{stock.lines[0].split()[0]} and none is negative any more. No test was changed."
    )


def key_fix(s: Session) -> None:
    """Fix the idempotency key."""
    s.human(
        "Customers will not like that. Fix the cause in retry.py too, please. The signature of "
        "`charge` stays as it is."
    )
    where = s.one("", grep("key_for", "."))
    s.one(
        f"`key_for` is used in {len(where.lines)} places, all in `retry.py`. The key must not "
        "depend on the attempt.",
        edit(
            "orderdesk/retry.py",
            "def key_for(order: str, cents: int, attempt: int) -> str:\n"
            '    """Return the idempotency key of a charge."""\n'
            '    text = f"{order}:{cents}:{attempt}"\n',
            "def key_for(order: str, cents: int) -> str:\n"
            '    """Return the idempotency key of a charge, the same for every attempt."""\n'
            '    text = f"{order}:{cents}"\n',
        ),
    )
    s.one(
        "",
        edit(
            "orderdesk/retry.py",
            "    tried: List[str] = []\n    for attempt, delay in enumerate(DELAYS):\n"
            "        key = key_for(order, cents, attempt)\n        tried.append(key)\n",
            "    key = key_for(order, cents)\n    for delay in DELAYS:\n",
        ),
    )
    s.one(
        "",
        edit("orderdesk/retry.py", "after {len(tried)} attempts", "after {len(DELAYS)} attempts"),
    )
    s.one(
        "",
        edit(
            "orderdesk/retry.py",
            "from typing import Callable, List\n",
            "from typing import Callable\n",
        ),
    )
    probe = s.one(
        "A gateway that times out twice and then answers:",
        bash(
            "python - <<'EOF'\n"
            "from orderdesk.retry import GatewayTimeout, charge\n"
            "seen = []\n"
            "def send(order, cents, key):\n"
            "    seen.append(key)\n"
            "    if len(seen) < 3:\n"
            "        raise GatewayTimeout\n"
            "    return 'receipt'\n"
            "print(charge(send, 'ORD-1', 1190, lambda seconds: print('sleep', seconds)))\n"
            "print(len(seen), 'attempts,', len(set(seen)), 'key:', seen[0])\n"
            "EOF",
            "Try the retry by hand",
        ),
    )
    s.one(
        "",
        bash(
            "git commit -qam 'One idempotency key for all attempts' && git log --oneline",
            "Commit the retry fix",
        ),
    )
    s.say(
        f"Done: `{probe.lines[-1]}`. The signature of `charge` is unchanged; `key_for` lost its "
        "third parameter, nobody else calls it."
    )
