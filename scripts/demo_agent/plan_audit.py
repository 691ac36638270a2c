"""The long parts of the job: order by order, day by day, SKU by SKU."""

import re

from demo_agent.plan_common import written
from demo_agent.recorder import Session
from demo_agent.tools import bash, edit, grep, read, write

ROUTINE = 30  # more errors of one kind on one day are an incident
DAYS = [f"2026-03-{day}" for day in range(22, 32)] + [f"2026-04-0{day}" for day in range(1, 5)]


def count(things: list[str], name: str) -> str:
    """Return a number with its noun."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def double_charges(s: Session) -> None:
    """Find them, then follow each through the logs."""
    s.human(
        "Now something that worries me more: support says that some customers were charged twice. "
        "Which orders, how, and who has his money back? Check every suspicious order by hand in "
        "the logs and keep a list in notes/double-charges.md."
    )
    timeouts = s.one(
        "A charge whose answer never came is the usual cause. All timeouts of the payment gateway:",
        grep("code=TIMEOUT", "data/logs"),
    )
    webhooks = s.one(
        f"{len(timeouts.lines)} timeouts. If the gateway charged all the same it says so later, in "
        "a webhook event.",
        bash("grep -h 'event=webhook' data/logs/*.log", "Late captures"),
    )
    orders = sorted(set(re.findall(r"ORD-\d+", webhooks.text)))
    s.do(
        f"{len(orders)} orders have a late capture. I follow each of them, starting the notes now.",
        write(
            "notes/double-charges.md",
            "# Orders charged twice\n\nEach was followed by hand in data/logs.\n\n"
            "| order | first key | second key | cents | refunded |\n|---|---|---|---|---|\n",
        ),
        read("data/refunds.csv"),
    )
    row = "|---|---|---|---|---|\n"
    open_orders = []
    said = ""
    for order in orders:
        trail, table, refund = s.do(
            said,
            bash(f"grep -h '{order} ' data/logs/*.log", f"All events of {order}"),
            bash(f"grep '{order},' data/orders.csv", f"Order lines of {order}"),
            bash(f"grep '{order},' data/refunds.csv || echo 'no refund'", f"Refunds of {order}"),
        )
        captured = re.findall(r"key=(\w+) cents=(\d+).*status=captured", trail.text)
        first = next((key for key, _ in captured), "?")
        second = captured[-1][0]
        back = "charged twice" in refund.text
        if not back:
            open_orders.append(order)
        new = f"| {order} | {first} | {second} | {captured[0][1]} | {'yes' if back else 'no'} |\n"
        money = "refunded" if back else "not refunded"
        s.one(
            f"{order}: {count(table.lines, 'order line')}, {count(trail.lines, 'event')}, captured "
            f"under `{first}` and `{second}`, {captured[0][1]} cents each, {money}.",
            edit("notes/double-charges.md", row, row + new),
        )
        row = new
        said = ""
    s.say(
        f"{len(orders)} orders were charged twice; {len(orders) - len(open_orders)} were refunded, "
        f"{len(open_orders)} were not: {', '.join(open_orders)}. The list is in "
        "notes/double-charges.md. The cause is `key_for` in `orderdesk/retry.py`: the attempt is "
        "part of the idempotency key, so the gateway takes the second attempt for a new charge."
    )
    s.human(
        "Thank you. I need that as a CSV too. I said do not write to data/. Correction: you may "
        "write to data/derived/, nothing else below data/. Write a small script for it so that we "
        "can run it again."
    )
    s.one("", write("tools/double_charges.py", written("double_charges.py")))
    made = s.do(
        "",
        bash("python tools/double_charges.py", "Run the script"),
        bash("cat data/derived/double-charges.csv", "Show the table"),
    )[1]
    unpaid = sum(line.endswith(",no") for line in made.lines)
    s.one(
        "",
        bash(
            "git add -A && git commit -qm 'List double charges' && git log --oneline",
            "Commit the script and the notes",
        ),
    )
    s.say(
        f"`tools/double_charges.py` writes data/derived/double-charges.csv: {len(made.lines) - 1} "
        f"orders, {unpaid} not refunded, the same as my list by hand "
        f"({'yes' if unpaid == len(open_orders) else 'no'}, I compared)."
    )


def errors_by_day(s: Session) -> None:
    """Read the errors of each day."""
    s.human(
        "Next: please read the errors of all 14 days, one day after the other, and tell me what is "
        "routine and what was an incident. Notes to notes/errors.md as you go. Don't summarise "
        "from the counts alone, look at the lines."
    )
    s.one("", write("notes/errors.md", "# Errors by day\n"))
    incidents = []
    end = "# Errors by day\n"
    previous = ""
    for day in DAYS:
        log = f"data/logs/app-{day}.log"
        counts, levels = s.do(
            previous,
            bash(f"python -m orderdesk.cli errors --day {day}", f"Errors of {day} by code"),
            bash(f"cut -d' ' -f2 {log} | sort | uniq -c", f"Levels of {day}"),
        )
        top, component, code = counts.lines[0].split()
        lines = s.one(
            f"{day}: {sum(int(line.split()[0]) for line in counts.lines)} errors in "
            f"{sum(int(line.split()[0]) for line in levels.lines)} lines, most of them {component} "
            f"{code} ({top}). The lines themselves:",
            bash(f"grep ' ERROR ' {log}", f"Error lines of {day}"),
        )
        of_code = [line for line in lines.lines if f"code={code}" in line]
        began, ended = of_code[0][11:19], of_code[-1][11:19]
        slow = s.one(
            f"The first {code} is at {began}, the last at {ended}. Were requests slow as well?",
            bash(
                f"grep -o ' [a-z]* req=.* ms=[0-9]*' {log} | sed 's/.* ms=//' | sort -n | "
                f"uniq -c | tail -5; grep -E ' ms=[0-9]{{4,}}' {log} | head -30",
                f"Slowest requests of {day}",
            ),
        )
        outage = int(top) > ROUTINE
        if outage:
            incidents.append(f"{day} {component} {code} ({top} errors, {began} to {ended} UTC)")
            around = s.one(
                f"{top} {code} errors between {began} and {ended} are no routine. What else "
                "happened then?",
                bash(
                    f"grep -n -A260 -m1 'code={code}' {log} | head -200", "Around the first error"
                ),
            )
            others = sum(" INFO " in line for line in around.lines)
            previous = (
                f"{others} of {len(around.lines)} lines around it are ordinary traffic, so the "
                f"rest of the shop went on while {component} failed. Next day."
            )
        else:
            previous = ""
        slowest = max(int(line.split()[-1]) for line in slow.lines[:5])
        kind = "**incident**" if outage else "routine"
        new = (
            f"\n## {day}\n\n{kind}: {', '.join(' '.join(c.split()) for c in counts.lines)}. "
            f"First {code} {began}, last {ended}; slowest request "
            f"{slowest} ms.\n"
        )
        s.one("", edit("notes/errors.md", end, end + new))
        end = new
    worst = s.one(
        "All incidents in one listing, to be sure that I did not miss a second one on some day:",
        bash(
            "grep -h -E 'code=(INDEX|LABEL|TIMEOUT|STOCKOUT|DECLINED)' data/logs/*.log",
            "All error lines",
        ),
    )
    s.do(
        f"{len(worst.lines)} error lines in two weeks; nothing new in them.",
        bash("git add -A && git commit -qm 'Notes on errors' && git log --oneline", "Commit"),
        read("notes/errors.md"),
    )
    s.say(
        f"{len(incidents)} incidents: {'; '.join(incidents)}. Everything else is routine: declined "
        "cards, single timeouts of northpay, now and then a stock difference. Details by day are "
        "in notes/errors.md."
    )


def latency_picture(s: Session) -> None:
    """Draw the response times and look at them."""
    s.human(
        "Can you show me the response times of all days over the hour of the day, as a picture? "
        "Put it into notes/. And say what the p99 of payment really is."
    )
    table = s.one("", bash("python -m orderdesk.cli latency", "Percentiles by component"))
    payment = next(line for line in table.lines if line.startswith("payment"))
    s.one("", write("tools/scatter.py", written("scatter.py")))
    s.one("", bash("python tools/scatter.py", "Draw without arguments, to see the usage"))
    s.one(
        "It needs a day pattern and a target; `*` stands for all days.",
        bash(
            "python tools/scatter.py '*' notes/latency.png && wc -c notes/latency.png",
            "Draw all days",
        ),
    )
    s.one("", read("notes/latency.png"))
    flat = s.one(
        "The red band on top, at 3000 ms, is payment and nothing else: requests that ran into the "
        "timeout. How many, and what is p99 without them?",
        bash(
            "python - <<'EOF'\n"
            "from pathlib import Path\n"
            "from orderdesk import store\n"
            "from orderdesk.latency import percentile\n"
            "times = [(int(r.fields['ms']), r.fields.get('code')) "
            "for r in store.records(Path('data')) "
            "if r.component == 'payment' and 'ms' in r.fields]\n"
            "good = [ms for ms, code in times if code != 'TIMEOUT']\n"
            "print(len(times) - len(good), 'timeouts in', len(times), 'requests')\n"
            "print('p99 of answered requests:', percentile(good, 0.99), 'ms')\n"
            "EOF",
            "Separate timeouts from answers",
        ),
    )
    s.one(
        "",
        bash("git add -A && git commit -qm 'Draw response times' && git log --oneline", "Commit"),
    )
    s.say(
        f"notes/latency.png shows it. By the table it is `{' '.join(payment.split())}`, but that "
        f"p99 is the timeout itself; {flat.lines[-1]} ({flat.lines[0]})."
    )


def stock_by_sku(s: Session) -> None:
    """Explain the open reservations of every SKU."""
    s.human(
        "The warehouse wants to know whether our open reservations are real now. For each SKU: "
        "count reserve, release and ship events, and find a release that was sent twice as an "
        "example. Add it to notes/stock.md."
    )
    stock = s.one("", bash("python -m orderdesk.cli stock", "Open reservations"))
    skus = [line.split()[0] for line in stock.lines]
    end = "# Open reservations by SKU\n\n"
    s.one(f"{len(skus)} SKUs.", write("notes/stock.md", end))
    for sku in skus:
        counts, twice = s.do(
            "",
            bash(
                f"grep -h 'event=.*sku={sku} ' data/logs/*.log | grep -o 'event=[a-z]*' | sort | "
                "uniq -c",
                f"Events of {sku}",
            ),
            bash(
                f"grep -h 'event=release.*sku={sku} ' data/logs/*.log | grep -o 'order=[^ ]*' | "
                "sort | uniq -d",
                f"Releases of {sku} that were sent twice",
            ),
        )
        example = (re.findall(r"ORD-\d+", twice.text) or ["none"])[0]
        told = ", ".join(line.strip().replace("event=", "") for line in counts.lines)
        trail = s.one(
            f"{sku}: {told}; {count(twice.lines, 'release')} sent twice, {example} among them.",
            bash(
                f"grep -h '{example} ' data/logs/*.log; grep -h 'event=release.*sku={sku} ' "
                "data/logs/*.log",
                f"Trail of {example}, and all releases of {sku}",
            ),
        )
        new = (
            f"- {sku}: {told}; {count(twice.lines, 'release')} sent twice, for example {example} "
            f"({trail.text.count(example)} lines)\n"
        )
        s.one("", edit("notes/stock.md", end, end + new))
        end = new
    still = [line.split() for line in stock.lines if line.split()[1] != "0"]
    s.one("", bash("git add -A && git commit -qm 'Notes on stock' && git log --oneline", "Commit"))
    s.say(
        f"notes/stock.md has all {len(skus)} SKUs. "
        + (
            f"Still open: {', '.join(f'{sku} {count}' for sku, count in still)}."
            if still
            else "Every reservation of the two weeks was shipped or released, so zero is the truth."
        )
    )
