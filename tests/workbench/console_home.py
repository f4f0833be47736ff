"""A shop's home for the tests of the console, made without Spark: seven minutes of orders, flows that ran over them, their
views and panes, a queue with rejected messages, a flow that was killed."""

import random
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock, as_datetime
from mainstem.log.activity import note_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.stem import Mainstem
from mainstem.views.view import View
from tests.workbench.ran_flows import began, did_batch, killed

__all__ = ["STORES", "make_shop", "revenue_batch"]

STORES = ("Berlin", "Lisbon", "Paris", "Vienna")
PRICES = (4.5, 12.0, 39.0, 7.25, 18.0, 2.75)
MINUTES = 7
TOO_LATE = ("o-1", "o-2")
# How long ago the run was killed.
KILLED = timedelta(minutes=2)
MINUTE = timedelta(minutes=1)
DELAY = timedelta(seconds=20)
LATENESS = 5 * MINUTE
TIME = pa.timestamp("us", "UTC")
LATE = "time TIMESTAMP, partition INT, offset BIGINT"
REVENUE = pa.schema(
    [
        ("store", pa.string()),
        ("window", pa.struct([("start", TIME), ("end", TIME)])),
        ("total", pa.float64()),
        ("orders", pa.int64()),
        ("pane", pa.struct([("index", pa.int32()), ("timing", pa.string()), ("final", pa.bool_())])),
    ]
)


@dataclass
class Order:
    """When it was placed, and when it came."""

    order_id: str
    store: str
    amount: float
    placed_at: datetime
    came_at: datetime

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("order_id", "store", "amount", "placed_at")}


@dataclass
class Window:
    """A minute of a store, while panes are computed."""

    total: float = 0.0
    orders: int = 0
    panes: int = 0
    shown: float | None = None
    complete: bool = False


@dataclass
class Revenue:
    """What the flow would emit: early every ten seconds, complete when the watermark passes, corrected after it."""

    windows: dict[tuple[str, datetime], Window] = field(default_factory=lambda: defaultdict(Window))
    highest: datetime | None = None

    def take(self, orders: list[Order]) -> list[dict[str, object]]:
        watermark = None if self.highest is None else self.highest - DELAY
        for order in orders:
            start = order.placed_at.replace(second=0, microsecond=0)
            if watermark is None or watermark < start + MINUTE + LATENESS:
                window = self.windows[order.store, start]
                window.total += order.amount
                window.orders += 1
        self.highest = max([order.placed_at for order in orders] + ([self.highest] if self.highest else []))
        return [row for key in sorted(self.windows) for row in self._pane(key, self.highest - DELAY)]

    def _pane(self, key: tuple[str, datetime], watermark: datetime) -> list[dict[str, object]]:
        window = self.windows[key]
        passed = watermark >= key[1] + MINUTE
        timing = "late" if window.complete else "on_time" if passed else "early"
        if window.shown == window.total and timing != "on_time":
            return []
        window.complete, window.shown, window.panes = window.complete or passed, window.total, window.panes + 1
        return [
            {
                "store": key[0], "window": {"start": key[1], "end": key[1] + MINUTE}, "total": window.total,
                "orders": window.orders, "pane": {"index": window.panes - 1, "timing": timing, "final": False},
            }
        ]  # fmt: skip


def orders_until(now: datetime) -> list[Order]:
    """One in a second and a half, most of them at once; a courier's come three minutes late, and one is beyond all patience."""
    chance = random.Random(77)
    found, placed_at, number = [], now - MINUTES * MINUTE, 8690
    while placed_at < now:
        placed_at += timedelta(seconds=chance.expovariate(1 / 1.5))
        number += chance.randint(1, 4)
        store, amount = chance.choice(STORES), chance.choice(PRICES) * chance.randint(1, 5)
        late = chance.random() < 0.03
        after = chance.expovariate(1 / 1.1) + (chance.uniform(70, 200) if late else 0)
        found.append(Order(f"o-{number}", store, amount, placed_at, placed_at + timedelta(seconds=after)))
    for number, seconds in enumerate((398, 404)):
        placed_at = now - MINUTES * MINUTE + timedelta(seconds=1 + 4 * number)
        found.append(Order(TOO_LATE[number], "Lisbon", 12.0, placed_at, placed_at + timedelta(seconds=seconds)))
    return sorted((order for order in found if order.came_at < now), key=lambda order: order.came_at)


def make_shop(home: Path, now: datetime) -> Mainstem:
    """The home, opened; the flows that run do so in this process."""
    clock = ManualClock(now - MINUTES * MINUTE)
    stem = Mainstem(EmbeddedLog(home, upkeep="manual", clock=clock), home=str(home))
    orders = stem.create_topic(
        "orders", schema="order_id STRING, store STRING, amount DOUBLE, placed_at TIMESTAMP", key="order_id",
        partitions=2, event_time="placed_at",
    )  # fmt: skip
    payments = stem.create_topic("payments", schema="order_id STRING, paid DECIMAL(10,2)", key="order_id", partitions=2)
    stem.create_topic("clicks", schema="visitor BIGINT, page STRING", partitions=2)
    mails = stem.create_topic("mails", schema="order_id STRING, address STRING, text STRING", key="order_id")
    for flow in ("revenue", "deliveries", "mails"):
        note_activity(
            stem.log, "flow", flow, "begun", f'flow "{flow}" began with version 1', version=1, epoch=1, who="shop"
        )
    revenue = began(stem, "revenue", sink="view revenue", sources=("orders",))
    deliveries = began(stem, "deliveries", sink="view deliveries", sources=("orders", "payments"))
    began(stem, "mails", sink="topic mails", sources=("view deliveries",))
    _play(stem, clock, orders, payments, revenue, deliveries, now)
    clicked = stem.topic("clicks")
    clicked.append([{"visitor": 2**60 + n, "page": f"/shop/{n % 7}"} for n in range(200)])
    note_activity(stem.log, "flow", "sessions", "begun", 'flow "sessions" began with version 1', version=1, epoch=1)
    note_activity(stem.log, "flow", "sessions", "killed", "its process died without recording an exit", who="shop")
    sessions = began(stem, "sessions", sink="view sessions", sources=("clicks",))
    did_batch(stem, sessions, 0, {"clicks": {0: 60, 1: 60}}, at=now - 2 * MINUTE)
    killed(stem, sessions)
    _mail(mails)
    return stem


def _play(
    stem: Mainstem,
    clock: ManualClock,
    orders: Topic,
    payments: Topic,
    revenue: FlowRun,
    deliveries: FlowRun,
    now: datetime,
) -> None:
    """Ten seconds at a time: what came is appended when it came, then the flow of windows commits a batch."""
    waiting, computed, number, ends = orders_until(now), Revenue(), 0, {}
    until = now - MINUTES * MINUTE
    while until < now:
        until = min(now, until + timedelta(seconds=10))
        came = [order for order in waiting if order.came_at <= until]
        waiting = waiting[len(came) :]
        # Those of a second and a half in one append: an append is on disk when it returns.
        for _, together in groupby(came, lambda order: order.came_at.timestamp() // 1.5):
            arrived = list(together)
            clock.set(arrived[-1].came_at)
            orders.append([order.row() for order in arrived])
        clock.set(until)
        if now - until == KILLED:
            note_activity(stem.log, "flow", "revenue", "killed", "killed in batch 29, process 48213", who="shop")
            clock.set(until + timedelta(seconds=8))
            note_activity(stem.log, "flow", "revenue", "restarted", "back after 8.0 s, process 48377", who="shop")
            clock.set(until + timedelta(seconds=9))
        if not came:
            continue
        ends = {n: orders.backend.latest(n) for n in range(2)}
        rows = computed.take(came)
        _apply(
            stem,
            clock,
            "revenue",
            ["store", "window"],
            revenue,
            pa.Table.from_pylist(rows, REVENUE),
            number,
            {"orders": ends},
        )
        late = sum(row["pane"]["timing"] == "late" for row in rows)  # type: ignore[index]
        figures = {
            "at": until,
            "rows_in": len(came),
            "rows_out": len(rows),
            "lag_seconds": 0.3 + number % 5 / 10,
            "late": late,
        }
        assert computed.highest is not None
        did_batch(
            stem, revenue, number, {}, more=[{"topic": "orders", "offsets": ends, "delay": 20_000_000}], **figures,
            watermark=computed.highest - DELAY, batch_ms=280 + 9 * (number % 7), phases={"addBatch": 200, "planning": 40},
        )  # fmt: skip
        number += 1
    _keep_too_late(stem, orders)
    known = orders_until(now)
    payments.append([{"order_id": order.order_id, "paid": Decimal(f"{order.amount:.2f}")} for order in known])
    paid = pa.table({"order_id": [order.order_id for order in known], "store": [order.store for order in known]})
    _apply(stem, clock, "deliveries", ["order_id"], deliveries, paid, 0)
    paid_ends = {n: payments.backend.latest(n) for n in range(2)}
    did_batch(stem, deliveries, 0, {"orders": ends, "payments": paid_ends}, at=now, rows_in=2 * len(known))


def _keep_too_late(stem: Mainstem, orders: Topic) -> None:
    """What the flow did not count is in its topic of late rows."""
    late = Topic(stem.log, stem.log.create_topic(TopicSettings.of("revenue.late", schema=LATE)))
    found = [row for row in orders.to_arrow().to_pylist() if row["order_id"] in TOO_LATE]
    late.append(
        [
            {"time": row["placed_at"], "partition": row["record"]["partition"], "offset": row["record"]["offset"]}
            for row in found
        ]
    )


def _apply(
    stem: Mainstem,
    clock: ManualClock,
    name: str,
    key: list[str],
    run: FlowRun,
    rows: pa.Table,
    number: int,
    offsets: dict[str, dict[int, int]] | None = None,
) -> None:
    view = View(stem.home, name, key=key, clock=clock, history="1 day" if name == "revenue" else None)
    view.writer(run, rows.schema).apply(rows, Batch(number, run, offsets or {}))
    view.close()


def revenue_batch(stem: Mainstem, clock: ManualClock, number: int) -> None:
    """One more batch of the flow of windows: it corrects every window of Lisbon, and adds one of a new store."""
    run = FlowRun("revenue", epoch=1, version=1)
    with closing(View(stem.home, "revenue", key=["store", "window"], clock=clock)) as view:
        known = [row for row in view.to_arrow().to_pylist() if row["store"] == "Lisbon"]
    corrected = [{**row, "total": row["total"] + 100, "orders": row["orders"] + 1} for row in known]
    rows = pa.Table.from_pylist([*corrected, {**known[0], "store": "Osaka"}], REVENUE)
    ends = {n: stem.topic("orders").backend.latest(n) for n in range(2)}
    _apply(stem, clock, "revenue", ["store", "window"], run, rows, number, {"orders": ends})
    did_batch(
        stem, run, number, {}, more=[{"topic": "orders", "offsets": ends, "delay": 20_000_000}], at=as_datetime(clock.now()),
        rows_in=40, rows_out=rows.num_rows, lag_seconds=0.0, late=3,
    )  # fmt: skip


def _mail(mails: Topic) -> None:
    mails.append(
        [{"order_id": f"o-{n}", "address": f"anna{n}.example.org", "text": "On its way."} for n in range(9150, 9162)]
    )
    queue = mails.queue("send")
    for message in queue.take(5):
        queue.acknowledge(message.receipt)
    for message in queue.take(3):
        queue.reject(message.receipt, f"{message.row['address']!r} has no @")
    queue.take(2)
