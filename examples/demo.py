"""A minute in a shop: two processes append orders, a third follows them, a fourth works a queue, and SQL is asked.

    python -m examples.demo [--seconds 60] [--home data/demo]

On a terminal with a live display, otherwise in plain lines. The home stays, to look at with the command line; another
run goes on in it.
"""

import argparse
import multiprocessing
import os
import queue
import random
import shutil
import signal
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

import mainstem

SCHEMA = "order_id string, store string, article string, amount double, mail string, placed_at timestamp"
ARTICLES = {"tea": 4.5, "cup": 12.0, "kettle": 39.0, "honey": 7.25, "tray": 18.0, "spoon": 2.75}
STORES = {"online": ["Berlin", "Paris"], "tills": ["Lisbon", "Vienna"]}
PER_STORE = """
    SELECT store, count(*) AS orders, sum(amount) AS revenue, revenue / sum(revenue) OVER () AS share
    FROM orders GROUP BY store ORDER BY revenue DESC
"""


# The processes


def leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sell(home: str, name: str, stop, told) -> None:
    """Append orders, a few at a time, until it is time to stop."""
    leave_interrupts_to_the_parent()
    with mainstem.open(home) as stem:
        orders = stem.topic("orders")
        # A producer's append can be repeated without being there twice, and an older run of it is refused.
        producer = stem.producer(name)
        sequence = producer.last_sequence(orders) + 1
        chance = random.Random(f"{name} {sequence}")
        count = 0
        told.put(name)
        while not stop.wait(chance.uniform(0.02, 0.12)):
            rows = [make_order(chance, name, f"{name}-{sequence}-{line}") for line in range(chance.randint(1, 4))]
            producer.append(orders, rows, sequence=sequence)
            sequence += 1
            count += len(rows)
        told.put(count)


def make_order(chance: random.Random, name: str, order_id: str) -> dict:
    article = chance.choice(list(ARTICLES))
    # One customer in fifty cannot spell their address.
    mail = f"{chance.choice('abcdefgh')}{chance.randrange(100)}" + ("@example.org" if chance.random() > 0.02 else "")
    return {
        "order_id": order_id,
        "store": chance.choice(STORES[name]),
        "article": article,
        "amount": ARTICLES[article] * chance.randint(1, 5),
        "mail": mail,
        "placed_at": datetime.now(UTC),
    }


def follow(home: str, token: str, seen, told) -> None:
    """Read what comes, as it comes."""
    leave_interrupts_to_the_parent()
    with mainstem.open(home) as stem:
        told.put("follower")
        for batch in stem.topic("orders").follow(start=token):
            at = datetime.now(UTC)
            rows = batch.to_pylist()
            seen.put([(row, (at - row["record"]["appended_at"]).total_seconds()) for row in rows])


def send_mails(home: str, stop, told) -> None:
    """Work the queue: most mails go out, the server fails now and then, and some addresses never work."""
    leave_interrupts_to_the_parent()
    chance = random.Random(11)
    with mainstem.open(home) as stem:
        mails = stem.topic("orders").queue("mails")
        told.put("worker")
        while (taken := mails.take(20, wait="200 milliseconds")) or not stop.is_set():
            sent = []
            for message in taken:
                if "@" not in message.row["mail"]:
                    message.reject(f"no such address: {message.row['mail']}")
                elif chance.random() < 0.04:
                    message.release(error="the mail server is busy")
                else:
                    sent.append(message.receipt)
            mails.acknowledge(sent)


# What is shown


class Shown:
    """What is known so far, and how it looks."""

    def __init__(self, stem: mainstem.Mainstem, home: str, seconds: float) -> None:
        self.stem, self.home, self.seconds = stem, home, seconds
        self.mails = stem.topic("orders").queue("mails")
        self.begun = time.monotonic()
        self.followed = 0
        self.last: list[tuple[dict, float]] = []
        self.delays: list[float] = []
        self.look()

    def follow(self, seen) -> None:
        while True:
            try:
                rows = seen.get_nowait()
            except queue.Empty:
                return
            self.followed += len(rows)
            self.delays += [delay for _, delay in rows]
            self.last = [*self.last, *rows][-6:]

    def look(self) -> None:
        begun = time.perf_counter()
        self.per_store = self.stem.query(PER_STORE).to_pylist()
        self.asked_ms = 1000 * (time.perf_counter() - begun)
        self.described = self.mails.describe()

    @property
    def elapsed(self) -> float:
        return min(time.monotonic() - self.begun, self.seconds)

    @property
    def delay_ms(self) -> float:
        return 1000 * statistics.median(self.delays) if self.delays else 0.0

    def line(self) -> str:
        counts = self.described.counts
        orders = sum(row["orders"] for row in self.per_store)
        revenue = sum(row["revenue"] for row in self.per_store)
        return (
            f"{self.elapsed:4.0f} s  {orders:6} orders, {revenue:10,.2f} revenue | followed {self.followed:6} | mails: "
            f"{counts.get('acknowledged', 0)} sent, {counts.get('released', 0)} tried again, "
            f"{counts.get('rejected', 0)} rejected, {self.described.lag.records} waiting"
        )

    def display(self, orders: int = 6) -> Group:
        stores = Table("store", Column("orders", justify="right"), Column("revenue", justify="right"), "", box=None)
        for row in self.per_store:
            bar = Text("▇" * round(40 * row["share"]), style="cyan")
            stores.add_row(row["store"], f"{row['orders']:,}", f"{row['revenue']:,.2f}", bar)
        right = Column("amount", justify="right"), Column("seen after", justify="right")
        last = Table("order", "store", "article", *right, box=None, padding=(0, 3, 0, 1))
        for row, delay in self.last[-orders:]:
            last.add_row(
                row["order_id"], row["store"], row["article"], f"{row['amount']:.2f}", f"{1000 * delay:.1f} ms"
            )
        counts = self.described.counts
        mails = Table.grid(padding=(0, 2))
        for word, number in [
            ("sent", counts.get("acknowledged", 0)),
            ("tried again", counts.get("released", 0)),
            ("rejected", counts.get("rejected", 0)),
            ("in work", self.described.held),
            ("waiting", self.described.lag.records - self.described.held),
        ]:
            mails.add_row(word, Text(f"{number:,}", justify="right", style="bold"))
        beside = Table.grid(expand=True, padding=(0, 1))
        beside.add_column(ratio=3)
        beside.add_column(ratio=2)
        beside.add_row(
            Panel(stores, title=f"SQL over everything so far, asked in {self.asked_ms:.0f} ms", height=7),
            Panel(mails, title='queue "mails"', height=7),
        )
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(width=16)
        bar.add_column(ratio=1)
        bar.add_row(f"{self.elapsed:.0f} of {self.seconds:.0f} seconds", ProgressBar(self.seconds, self.elapsed))
        title = Text.assemble(("A shop on Mainstem", "bold"), f'   home "{self.home}", 5 processes, no server')
        following = f"{self.followed:,} orders followed, half of them seen within {self.delay_ms:.1f} ms of the append"
        return Group(title, bar, beside, Panel(last, title=following, height=orders + 3))


# The minute


def run(home: str, seconds: float, console: Console) -> int:
    with mainstem.open(home) as stem:
        orders = stem.create_topic("orders", schema=SCHEMA, key="order_id", event_time="placed_at", partitions=4)
        retry = mainstem.Backoff("200 milliseconds", max="1 second")
        orders.queue("mails", lease="30 seconds", deliveries_max=5, retry=retry)
        begin = orders.append([]).token
        context = multiprocessing.get_context("spawn")
        stop, told, seen = context.Event(), context.Queue(), context.Queue()
        follower = context.Process(target=follow, args=[home, begin, seen, told], daemon=True)
        worker = context.Process(target=send_mails, args=[home, stop, told], daemon=True)
        sellers = [context.Process(target=sell, args=[home, name, stop, told], daemon=True) for name in STORES]
        processes = [follower, worker, *sellers]
        print(f'home "{home}", starting {len(processes)} processes', flush=True)
        for process in processes:
            process.start()
        for _ in processes:
            told.get(timeout=60)
        shown = Shown(stem, home, seconds)
        try:
            show(shown, seen, console)
        except KeyboardInterrupt:
            print("stopping early")
        stop.set()
        appended = sum(told.get(timeout=60) for _ in sellers)
        worker.join(60)
        for _ in range(600):
            shown.follow(seen)
            if shown.followed >= appended:
                break
            time.sleep(0.1)
        follower.terminate()
        shown.look()
        return tell(shown, appended, len(orders.to_arrow(start=begin)), console)


def show(shown: Shown, seen, console: Console) -> None:
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    every = 0.25 if live else min(5.0, shown.seconds / 2)
    if live:
        live.start()
    try:
        while shown.elapsed < shown.seconds:
            time.sleep(min(every, shown.seconds - shown.elapsed))
            shown.follow(seen)
            shown.look()
            if live:
                live.update(shown.display(), refresh=True)
            else:
                print(shown.line(), flush=True)
    finally:
        if live:
            live.stop()


def tell(shown: Shown, appended: int, there: int, console: Console) -> int:
    """What was seen, whether it adds up, and what to try next."""
    if console.is_terminal:
        console.print(shown.display(orders=3))
    rejected_topic = shown.mails.rejected_topic
    rejected = []
    if rejected_topic in shown.stem.topics():
        rejected = shown.stem.query(f'SELECT rejection.reason FROM "{rejected_topic}"').column("reason").to_pylist()
    whole = appended == there == shown.followed
    last = f', the last for "{rejected[-1]}"' if rejected else ""
    print(f"""
Two processes appended {appended:,} orders; each was on disk when it was acknowledged.
A third saw {"every one of them" if whole else f"{shown.followed:,} of them, and {there:,} are there"}, half within \
{shown.delay_ms:.1f} ms of the append.
A fourth sent {shown.described.counts.get("acknowledged", 0):,} mails and rejected {len(rejected)}{last}.
The question in SQL took {shown.asked_ms:.0f} ms.

The home is "{shown.home}". Try next:
""")
    command = "mainstem" if shutil.which("mainstem") else os.path.relpath(Path(sys.executable).parent / "mainstem")
    print(f"  export MAINSTEM_HOME={shown.home}")
    for tried in [
        "topic read orders --start earliest --limit 5",
        'query "SELECT article, sum(amount) FROM orders GROUP BY article"',
        "queue describe orders mails",
    ]:
        print(f"  {command} {tried}")
    return 0 if whole else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--home", default="data/demo")
    given = parser.parse_args()
    return run(given.home, given.seconds, Console())


if __name__ == "__main__":
    sys.exit(main())
