"""A minute in a shop: one process makes events, the four flows of `examples/shop.py` process them.

    python -m examples.demo [--seconds 60] [--home data/demo_shop]

With 0 seconds it runs until Ctrl-C. On a terminal with a live display, otherwise in plain lines. The home is kept for
the command line; another run continues in it.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import duckdb
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

import mainstem
from examples.shop import flows, make_topics
from examples.shop_events import feed
from mainstem.flows.runner import RunningFlows
from mainstem.workbench.cli.error_text import show_error
from mainstem.workbench.cli.run_command import RunSignals, handle_signals
from mainstem.workbench.cli.run_display import RunCounts, RunStatus, live_table

# The result of each flow, and the same computed from the log alone.
MADE = {
    "big_orders": "SELECT order_id, amount FROM big_orders ORDER BY ALL",
    "revenue": 'SELECT "window".start AS at, store, orders, revenue FROM revenue ORDER BY ALL',
    "paid_orders": "SELECT order_id, amount, method FROM paid_orders ORDER BY ALL",
    "files.clicks": "SELECT page, count(*) AS clicks FROM clicks GROUP BY ALL ORDER BY ALL",
}
RECOMPUTED = {
    "big_orders": "SELECT order_id, amount FROM orders WHERE amount > 150 ORDER BY ALL",
    "revenue": """
        SELECT time_bucket(INTERVAL 5 minutes, placed_at) AS at, store, count(*) AS orders, sum(amount) AS revenue
        FROM orders GROUP BY ALL ORDER BY ALL
    """,
    "paid_orders": """
        SELECT order_id, amount, method FROM orders JOIN payments USING (order_id)
        WHERE paid_at BETWEEN placed_at AND placed_at + INTERVAL 15 minutes ORDER BY ALL
    """,
    "files.clicks": "SELECT page, count(*) AS clicks FROM clicks GROUP BY ALL ORDER BY ALL",
}
NEWEST = """
    SELECT strftime("window".start, '%H:%M') AS since, store, orders, revenue,
           revenue / max(revenue) OVER () AS share
    FROM revenue WHERE "window" = (SELECT max("window") FROM revenue) ORDER BY store
"""


def keep_shop_busy(home: str, stop, told) -> None:
    """The process that makes the events; reports the number of rows at first, and in all."""
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with mainstem.open(home) as stem:
        count = 0
        for number, appended in enumerate(feed(stem)):
            count += appended
            if number == 0:
                told.put(count)
            if stop.is_set():
                break
        told.put(count)


class Shown:
    """The status of the shop and its flows, and its display."""

    def __init__(self, stem: mainstem.Mainstem, home: str, statuses: RunStatus, seconds: float) -> None:
        self.stem, self.home, self.statuses, self.seconds = stem, home, statuses, seconds
        self.started = time.monotonic()
        # The time is counted from the first batch of each flow: before that there is little to see.
        self.begun: float | None = None
        self.flows = statuses.now()

    def look(self) -> None:
        self.flows = self.statuses.now()
        if self.begun is None and all(it.progress.batch is not None for it in self.flows):
            self.begun = time.monotonic()

    @property
    def elapsed(self) -> float:
        return 0.0 if self.begun is None else time.monotonic() - self.begun

    @property
    def over(self) -> bool:
        return bool(self.seconds) and self.elapsed >= self.seconds

    def line(self) -> str:
        parts = [f"{it.flow} {it.counts.rows_in:,} ({it.lag.records:,} behind)" for it in self.flows]
        return f"{time.monotonic() - self.started:4.0f} s  rows in: {', '.join(parts)}"

    def display(self, console: Console) -> Group:
        title = Text.assemble(("A shop on Mainstem", "bold"), f'   home "{self.home}"')
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(width=18)
        bar.add_column(ratio=1)
        if self.seconds:
            elapsed = min(self.elapsed, self.seconds)
            bar.add_row(f"{elapsed:.0f} of {self.seconds:.0f} seconds", ProgressBar(self.seconds, elapsed))
        else:
            bar.add_row(f"{self.elapsed:.0f} seconds", Text("Ctrl-C ends it", style="dim"))
        beside = Table.grid(expand=True, padding=(0, 1))
        beside.add_column(ratio=3)
        beside.add_column(ratio=2)
        beside.add_row(self._revenue(), self._big_orders())
        return Group(title, bar, "", live_table(self.flows, console), "", beside)

    def _revenue(self) -> Panel:
        stores = Table("store", Column("orders", justify="right"), Column("revenue", justify="right"), "", box=None)
        view, since = self.stem.view("revenue"), ""
        for row in view.query(NEWEST).to_pylist() if view.exists else ():
            since = f" since {row['since']} UTC"
            bar = Text("▇" * round(20 * row["share"]), style="cyan")
            stores.add_row(row["store"], f"{row['orders']:,}", f"{row['revenue']:,.2f}", bar)
        return Panel(stores, title=f'view "revenue"{since}', height=7)

    def _big_orders(self) -> Panel:
        orders = Table("order", "store", Column("amount", justify="right"), box=None)
        if "big_orders" in self.stem.topics():
            newest = "SELECT order_id, store, amount FROM big_orders ORDER BY placed_at DESC LIMIT 4"
            for row in self.stem.query(newest).to_pylist():
                orders.add_row(row["order_id"], row["store"], f"{row['amount']:.2f}")
        return Panel(orders, title='topic "big_orders", newest first', height=7)


def run(home: str, seconds: float, console: Console) -> int:
    with mainstem.open(home) as stem:
        make_topics(stem)
        context = multiprocessing.get_context("spawn")
        stop, told = context.Event(), context.Queue()
        feeder = context.Process(target=keep_shop_busy, args=[home, stop, told], daemon=True)
        feeder.start()
        first = told.get(timeout=120)
        print(f'home "{home}": {f"the last hour of a shop, {first:,} rows" if first else "a shop"}, and a process')
        print("that goes on making orders, payments and clicks. Spark starts ...", flush=True)
        _ = stem.spark
        counts = RunCounts(stem)
        with handle_signals() as signals, stem.start(flows) as running:
            shown = Shown(stem, home, RunStatus(stem, running, counts), seconds)
            show(shown, running, signals, console)
            if signals.wanted is not None:
                print("stopping: the flows read what is in the log; once more Ctrl-C does not wait for it", flush=True)
            stop.set()
            appended = told.get(timeout=60)
            running.wait_until_idle()
            shown.look()
            if console.is_terminal:
                console.print(shown.display(console))
        return tell(stem, appended, home)


def show(shown: Shown, running: RunningFlows, signals: RunSignals, console: Console) -> None:
    """Until the time is over, Ctrl-C, or a flow fails, which is raised."""
    if not console.is_terminal:
        while not shown.over and not signals.wait(min(5.0, shown.seconds or 5.0)):
            running.check()
            shown.look()
            print(shown.line(), flush=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not shown.over and not signals.wait(0.5):
            running.check()
            shown.look()
            live.update(shown.display(console), refresh=True)


def tell(stem: mainstem.Mainstem, appended: int, home: str) -> int:
    """The results, whether they match the log, and what to try next."""
    clicks = stem.files(f"{stem.home}/files/clicks").to_arrow()
    made = {
        "big_orders": stem.query(MADE["big_orders"]),
        "revenue": stem.view("revenue").query(MADE["revenue"]),
        "paid_orders": stem.view("paid_orders").query(MADE["paid_orders"]),
        "files.clicks": duckdb.sql(MADE["files.clicks"]).to_arrow_table(),
    }
    different = [flow for flow, rows in made.items() if rows.to_pylist() != stem.query(RECOMPUTED[flow]).to_pylist()]
    unpaid = stem.query("SELECT count(*) AS orders FROM orders").column("orders")[0].as_py() - len(made["paid_orders"])
    print(f"""
A process appended {appended:,} rows to the topics of the shop; meanwhile four flows made of all that is there:
  topic "big_orders"     {len(made["big_orders"]):,} orders over 150
  view "revenue"         {len(made["revenue"]):,} rows, one for each store and five minutes
  view "paid_orders"     {len(made["paid_orders"]):,} orders with their payment; {unpaid:,} have none yet
  files "clicks"         {len(clicks):,} clicks in Parquet, a folder for each page
""")
    if different:
        print(f"Not what DuckDB finds in the log itself: {', '.join(different)}")
        return 1
    print("Each is what DuckDB finds in the log itself: every row counted once.")
    command = "mainstem" if shutil.which("mainstem") else os.path.relpath(Path(sys.executable).parent / "mainstem")
    countries = "SELECT country, sum(amount) FROM big_orders JOIN customers USING (customer_id) GROUP BY country"
    print(f"""
The home is "{home}". Try next:

  export MAINSTEM_HOME={home}
  {command} view read revenue --limit 8
  {command} query "{countries}"
  {command} view rebuild revenue --program examples/shop.py
""")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="0 goes on until Ctrl-C")
    parser.add_argument("--home", default="data/demo_shop")
    given = parser.parse_args()
    try:
        return run(given.home, given.seconds, Console())
    except mainstem.MainstemError as error:
        show_error(error)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
