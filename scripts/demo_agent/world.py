"""The project that the agent is given: sources from `project/`, generated data, a git history."""

import csv
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from hashlib import sha256
from pathlib import Path
from zoneinfo import ZoneInfo

SOURCES = Path(__file__).parent / "project"
FIRST_DAY = date(2026, 3, 22)
DAYS = 14
ORDERS_A_DAY = 110
CANCELLED_SHARE = 0.07
TWICE_SHARE = 0.5  # of the releases
TIMEOUT_SHARE = 0.06  # of the first charges
DOUBLE_SHARE = 0.22  # of the charges that timed out
REFUND_SHARE = 0.3  # of the double charges
OUTAGE = 30  # errors of one kind on one day
SEARCH_OUTAGE_DAYS, LABEL_OUTAGE_DAYS = {6, 7}, {9}
PRICES = {
    "BOWL-01": "2.50",
    "CHAIR-02": "89.90",
    "CLOCK-03": "34.50",
    "HOOK-04": "0.50",
    "LAMP-05": "37.90",
    "MIRROR-06": "54.50",
    "RUG-07": "119.00",
    "SHELF-08": "17.50",
    "STOOL-09": "42.30",
    "TABLE-10": "249.50",
    "TRAY-11": "12.50",
    "VASE-12": "7.70",
}


@dataclass
class Data:
    """What is generated, before it is written."""

    events: dict[date, list[tuple[datetime, str]]] = field(default_factory=dict)
    orders: list[list[object]] = field(default_factory=list)
    refunds: list[list[object]] = field(default_factory=list)
    finance: Counter[date] = field(default_factory=Counter)


def key_for(order: str, cents: int, attempt: int) -> str:
    """Return the idempotency key as the project's own retry.py makes it."""
    return sha256(f"{order}:{cents}:{attempt}".encode()).hexdigest()[:12]


def stamp(when: datetime) -> str:
    """Return an instant as the logs and tables write it."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def cents(net: str, quantity: int) -> int:
    """Return the gross amount of a line, rounded half up as finance does."""
    amount = Decimal(net) * quantity * Decimal("1.19") * 100
    return int(amount.quantize(Decimal(1), ROUND_HALF_UP))


class Generator:
    """Two weeks of a small shop, the same for every recording."""

    def __init__(self) -> None:
        """Start with a fixed seed."""
        self.random = random.Random(20260322)  # noqa: S311 - reproducible, not secret
        self.data = Data()

    def log(self, when: datetime, level: str, component: str, pairs: str) -> None:
        """Add one event."""
        request = f"{self.random.getrandbits(24):06x}"
        line = f"{stamp(when)} {level:5s} {component} req={request} {pairs}"
        self.data.events.setdefault(when.date(), []).append((when, line))

    def later(self, when: datetime, low: float, high: float) -> datetime:
        """Return an instant some seconds later, on the same UTC day."""
        then = when + timedelta(seconds=self.random.uniform(low, high))
        return min(then, datetime.combine(when.date(), then.max.time(), UTC))

    def ms(self, middle: int) -> int:
        """Return a plausible response time."""
        return max(3, int(self.random.lognormvariate(0, 0.55) * middle))

    def order(self, number: int, placed: datetime) -> None:
        """Add one order with all its events."""
        name = f"ORD-{number}"
        total = 0
        skus = self.random.sample(sorted(PRICES), self.random.choice((1, 1, 2, 3)))
        quantities = [self.random.choice((1, 1, 1, 2, 3)) for _ in skus]
        for sku, quantity in zip(skus, quantities, strict=True):
            net = PRICES[sku]
            total += cents(net, quantity)
            self.data.orders.append([name, stamp(placed), sku, quantity, net])
            self.data.finance[placed.astimezone(ZoneInfo("Europe/Berlin")).date()] += cents(
                net, quantity
            )
        self.log(
            placed,
            "INFO",
            "checkout",
            f"order={name} lines={len(skus)} cents={total} ms={self.ms(80)}",
        )
        when = self.later(placed, 0.2, 2)
        for sku, quantity in zip(skus, quantities, strict=True):
            self.log(
                when, "INFO", "inventory", f"event=reserve order={name} sku={sku} qty={quantity}"
            )
        when = self.pay(name, total, self.later(when, 0.5, 3))
        cancelled = self.random.random() < CANCELLED_SHARE
        event = "release" if cancelled else "ship"
        when = self.later(when, 60, 4000)
        for sku, quantity in zip(skus, quantities, strict=True):
            for _ in range(2 if cancelled and self.random.random() < TWICE_SHARE else 1):
                pairs = f"event={event} order={name} sku={sku} qty={quantity}"
                self.log(when, "INFO", "inventory", pairs)
                when = self.later(when, 0.1, 5)
        if cancelled:
            self.data.refunds.append([name, stamp(when), total, "cancelled"])
        else:
            pairs = f"order={name} parcel=P{number * 7919 % 1000003:06d} ms={self.ms(140)}"
            self.log(when, "INFO", "shipping", pairs)

    def pay(self, name: str, total: int, when: datetime) -> datetime:
        """Add the payment events of an order; some first attempts time out."""
        attempt = 0
        if self.random.random() < TIMEOUT_SHARE:
            key = key_for(name, total, 0)
            self.log(
                when,
                "ERROR",
                "payment",
                f"order={name} gateway=northpay code=TIMEOUT attempt=0 key={key} cents={total} "
                'ms=3000 msg="gateway did not answer within 3000 ms"',
            )
            if self.random.random() < DOUBLE_SHARE:
                self.log(
                    self.later(when, 1, 20),
                    "INFO",
                    "payment",
                    f"event=webhook order={name} gateway=northpay key={key} cents={total} "
                    "status=captured",
                )
                if self.random.random() < REFUND_SHARE:
                    self.data.refunds.append([name, stamp(when), total, "charged twice"])
            attempt = 1
            when = self.later(when, 3.5, 4)
        self.log(
            when,
            "INFO",
            "payment",
            f"event=capture order={name} gateway=northpay key={key_for(name, total, attempt)} "
            f"cents={total} ms={self.ms(420)} status=captured",
        )
        return when

    def noise(self, day: date) -> None:
        """Add searches and the errors of the day."""
        start = datetime.combine(day, datetime.min.time(), UTC)
        offset = (day - FIRST_DAY).days
        words = ("lamp", "rug red", "shelf oak", "mirror round", "chair", "clock wall", "tray")
        for _ in range(620):
            when = start + timedelta(seconds=self.random.uniform(0, 86399))
            query = self.random.choice(words)
            hits = self.random.randrange(60)
            self.log(when, "INFO", "search", f'query="{query}" hits={hits} ms={self.ms(35)}')
        errors = [
            (
                "search",
                "INDEX",
                46 if offset in SEARCH_OUTAGE_DAYS else 4,
                "index shard 3 is not ready",
            ),
            (
                "shipping",
                "LABEL",
                38 if offset in LABEL_OUTAGE_DAYS else 3,
                "label printer 2 is offline, job kept",
            ),
            ("payment", "DECLINED", 9 + offset % 4, "card declined by the issuer"),
            (
                "inventory",
                "STOCKOUT",
                5 + offset % 3,
                "fewer pieces on the shelf than in the books",
            ),
        ]
        for component, code, count, message in errors:
            for number in range(count):
                seconds = self.random.uniform(0, 86399)
                if count > OUTAGE:  # an outage has a beginning and an end
                    seconds = 3600 * 13 + number * 47 + self.random.uniform(0, 30)
                sku = self.random.choice(sorted(PRICES))
                self.log(
                    start + timedelta(seconds=seconds),
                    "ERROR",
                    component,
                    f'code={code} sku={sku} ms={self.ms(90)} msg="{message}"',
                )

    def run(self) -> Data:
        """Generate all days."""
        number = 100200
        for offset in range(DAYS):
            day = FIRST_DAY + timedelta(days=offset)
            start = datetime.combine(day, datetime.min.time(), UTC)
            for seconds in sorted(self.random.uniform(0, 86000) for _ in range(ORDERS_A_DAY)):
                number += 1
                self.order(number, start + timedelta(milliseconds=int(seconds * 1000)))
            self.noise(day)
        return self.data


def table(path: Path, header: list[str], rows: list[list[object]]) -> None:
    """Write a CSV table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def build(root: Path) -> None:
    """Write the project into an empty folder."""
    for source in sorted(SOURCES.rglob("*.txt")):
        target = root / source.relative_to(SOURCES).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    (root / ".gitignore").write_text("data/\n__pycache__/\n.pytest_cache/\n")
    data = Generator().run()
    logs = root / "data" / "logs"
    logs.mkdir(parents=True)
    for day, events in sorted(data.events.items()):
        lines = [line for _, line in sorted(events)]
        (logs / f"app-{day}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table(root / "data/orders.csv", ["order", "placed", "sku", "qty", "net"], data.orders)
    table(root / "data/refunds.csv", ["order", "when", "cents", "reason"], data.refunds)
    finance: list[list[object]] = [[str(day), cents] for day, cents in sorted(data.finance.items())]
    table(root / "data/finance.csv", ["day", "total_cents"], finance)
