"""Two minutes in a shop: events go into the log, the six flows of `examples/demo_shop.py` process them, and one run is killed.

    python -m examples.demo [--seconds 120] [--rate 2] [--home data/demo_shop] [--port 8765]

The console shows it live; its address is printed at once. The time is counted from the first result; with 0 seconds it goes
on until Ctrl-C. At half time the run is killed in the middle of its work, and started again. In the end DuckDB computes every
result anew, from the log alone. The home is kept for the command line; the next demo replaces it.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mainstem
from examples.demo_events import DemoEvents
from examples.demo_shop import TOPICS, make_topics
from mainstem import Backoff, Mainstem

PROGRAM = Path(__file__).with_name("demo_shop.py")
MARK = "made_by_the_demo"
# How long the flows may take to catch up in the end.
SECONDS_TO_CATCH_UP = 180.0

# Each result as it is, and as DuckDB finds it in the log.
MADE = {
    "revenue": 'SELECT "window".start AS at, store, orders, revenue FROM revenue',
    "delivered": "SELECT order_id, amount, method, courier FROM delivered",
    "cities": "SELECT city, orders, revenue FROM cities",
    "visits": 'SELECT customer, "window".start AS at, pages FROM visits',
    "best_articles": "SELECT article, orders, revenue FROM best_articles",
    "mails": "SELECT address, text FROM mails",
}
RECOMPUTED = {
    "revenue": """SELECT time_bucket(INTERVAL 1 minute, placed_at) AS at, store, count(*) AS orders, sum(amount) AS revenue
        FROM orders GROUP BY ALL""",
    "delivered": """SELECT order_id, amount, method, courier
        FROM orders JOIN payments USING (order_id) JOIN deliveries USING (order_id)""",
    "cities": """SELECT city, count(*) AS orders, sum(amount) AS revenue FROM orders ASOF JOIN customers
        ON orders.customer = customers.customer AND placed_at >= moved_at GROUP BY ALL""",
    "visits": """SELECT customer, min(clicked_at) AS at, count(*) AS pages FROM (
        SELECT *, sum(first::INT) OVER (PARTITION BY customer ORDER BY clicked_at) AS visit FROM (
        SELECT *, coalesce(clicked_at - lag(clicked_at) OVER (PARTITION BY customer ORDER BY clicked_at)
        >= INTERVAL 1 minute, true) AS first FROM clicks)) GROUP BY customer, visit""",
    "best_articles": """SELECT article, count(*) AS orders, sum(amount) AS revenue FROM orders
        GROUP BY ALL ORDER BY revenue DESC, article LIMIT 3""",
    "mails": "SELECT mail AS address, 'Thank you for ' || order_id AS text FROM payments",
}


class Shop:
    """Appends the events of the shop, from ten minutes ago on, and sends its mails: two threads."""

    def __init__(self, stem: Mainstem, rate: int) -> None:
        self.stem, self.rate = stem, rate
        self.now = datetime.now(UTC)
        self.events = DemoEvents(self.now - timedelta(minutes=10), online=self.now + timedelta(seconds=60))
        self.rows = 0
        self.closed, self.sent = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._sell, self._send)]

    def open(self) -> None:
        begin = self.now - timedelta(minutes=10)
        self._append(self.events.customers())
        for minute in range(10):
            seconds = [self.events.second(begin + timedelta(seconds=60 * minute + n), self.rate) for n in range(1, 61)]
            self._append({topic: [row for one in seconds for row in one[topic]] for topic in seconds[0]})
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """No more orders; the producer declares that nothing earlier follows, so that every window is complete."""
        self.closed.set()
        self.threads[0].join()
        teller = self.stem.producer("shop")
        for topic in TOPICS:
            teller.declare_watermark(self.stem.topic(topic), self.now + timedelta(minutes=15))

    def _append(self, rows: dict[str, list[dict]]) -> None:
        with self.stem.transaction() as transaction:
            for topic, some in rows.items():
                if some:
                    transaction.append(topic, some)
        self.rows += sum(len(some) for some in rows.values())

    def _sell(self) -> None:
        while not self.closed.wait(max(0.0, (self.now + timedelta(seconds=1) - datetime.now(UTC)).total_seconds())):
            self.now += timedelta(seconds=1)
            self._append(self.events.second(self.now, self.rate))

    def _send(self) -> None:
        queue = self.stem.topic("mails").queue("sending", deliveries_max=3, retry=Backoff("1 second"))
        while not self.sent.is_set():
            for message in queue.take(100, wait="1 second"):
                if "@" in message.row["address"]:
                    message.acknowledge()
                else:
                    message.release(error=f"there is no mail box {message.row['address']}")


class Run:
    """The process that runs the flows: started, killed, started again. Ctrl-C is for the demo alone."""

    def __init__(self, home: str) -> None:
        self.command = [sys.executable, "-m", "mainstem.workbench.cli.main", "--home", home, "run", str(PROGRAM)]
        self.said = Path(home, "run.txt")
        self.start()

    def start(self) -> None:
        with self.said.open("a") as said:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def check(self) -> None:
        if self.process.poll() is not None:
            sys.exit(f"the run ended with status {self.process.returncode}:\n{self.said.read_text()[-2000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


class Story:
    """What has happened so far, told once each."""

    def __init__(self, stem: Mainstem, shop: Shop) -> None:
        self.stem, self.shop = stem, shop
        self.begun = time.monotonic()
        self.told: set[str] = set()

    def tell(self, what: str, text: str) -> None:
        if what not in self.told:
            self.told.add(what)
            print(f"{time.monotonic() - self.begun:5.0f} s  {text}", flush=True)

    def batches(self) -> int:
        """The batches of the revenue so far."""
        if "mainstem.progress" not in self.stem.topics():
            return 0
        asked = "SELECT count(*) AS batches FROM \"mainstem.progress\" WHERE flow = 'revenue' AND rows_out > 0"
        return self.stem.query(asked).column("batches")[0].as_py()

    def look(self) -> None:
        """Late rows and corrections."""
        view = self.stem.view("revenue")
        if not view.exists:
            return
        corrected = (
            "SELECT \"window\".start AS since, revenue FROM revenue WHERE pane.timing = 'late' ORDER BY since LIMIT 1"
        )
        for row in view.query(corrected).to_pylist():
            self.tell(
                "corrected",
                f"Mira is online again: her orders came late. The minute {row['since']:%H:%M} was complete, and was corrected.",
            )
        if "mails.sending.rejected" in self.stem.topics():
            self.tell(
                "rejected", 'a mail could not be delivered three times: it is in the topic "mails.sending.rejected"'
            )


def run(given: argparse.Namespace) -> int:
    home = fresh(given.home)
    with mainstem.open(home) as stem:
        Path(home, MARK).touch()
        make_topics(stem)
        console = start_console(home, given.port)
        shop = Shop(stem, given.rate)
        shop.open()
        print(f'A shop with ten minutes behind it, {shop.rows:,} rows, in "{home}". Spark starts ...', flush=True)
        story, flows = Story(stem, shop), Run(home)
        try:
            with suppress(KeyboardInterrupt):
                live(story, flows, given.seconds)
            print("The shop closes; the flows read what is in the log.", flush=True)
            shop.close()
            return compare(story, flows, home)
        finally:
            shop.closed.set()
            shop.sent.set()
            flows.stop()
            if console is not None:
                console.terminate()
                console.wait()


def live(story: Story, flows: Run, seconds: float) -> None:
    """Until the time is over: the first result, a kill at half time, the first result after it."""

    def until(reached) -> None:
        while not reached():
            flows.check()
            story.look()
            time.sleep(0.2)

    until(lambda: story.batches() > 0)
    story.tell("first", "the first results: the revenue of every minute so far")
    first = time.monotonic()
    until(lambda: seconds and time.monotonic() - first >= seconds / 2)
    before = story.batches()
    flows.kill()
    killed = time.monotonic()
    story.tell("killed", "the run is killed with SIGKILL, in the middle of its work, and started again")
    flows.start()
    until(lambda: story.batches() > before)
    story.tell("back", f"it is back, {time.monotonic() - killed:.0f} s after it was killed, and goes on where it was")
    until(lambda: time.monotonic() - first >= seconds)


def compare(story: Story, flows: Run, home: str) -> int:
    """Whether each result is what DuckDB finds in the log, as soon as the flows have read it."""
    deadline = time.monotonic() + SECONDS_TO_CATCH_UP
    while different := [name for name in MADE if difference(story.stem, name)]:
        if time.monotonic() > deadline:
            break
        flows.check()
        story.look()
        time.sleep(0.5)
    print(f"\n{story.shop.rows:,} rows were appended. The results, beside what DuckDB finds in the log alone:")
    for name in MADE:
        print(f"  {name:<16} {len(made(story.stem, name)):>7,} rows  {'DIFFERENT' if name in different else 'equal'}")
    for name in different:
        print(f"\n{name}, only there or only in the log: {difference(story.stem, name)[:5]}")
    if not different:
        through = [text for what, text in (("back", "a kill"), ("corrected", "late rows")) if what in story.told]
        print(f"Every row was counted once{', through ' if through else ''}{' and '.join(through)}.")
        print(f"\nTry next:\n\n  export MAINSTEM_HOME={home}")
        command = "mainstem" if shutil.which("mainstem") else os.path.relpath(Path(sys.executable).parent / "mainstem")
        for line in ("view read revenue --limit 8", "view read best_articles", "flow describe delivered", "queue list"):
            print(f"  {command} {line}")
    return 1 if different else 0


def made(stem: Mainstem, name: str) -> list[dict]:
    if name == "mails":
        return stem.query(MADE[name]).to_pylist()
    return stem.view(name).query(MADE[name]).to_pylist() if stem.view(name).exists else []


def difference(stem: Mainstem, name: str) -> list[tuple]:
    """The rows that are only in one of both."""
    found, expected = (sorted(tuple(row.values()) for row in rows)
                       for rows in (made(stem, name), stem.query(RECOMPUTED[name]).to_pylist()))  # fmt: skip
    return [] if found == expected else sorted({*found} ^ {*expected}) or [("rows are there more than once",)]


def start_console(home: str, port: int) -> subprocess.Popen | None:
    """Serve the pages, and open them where somebody looks."""
    if port < 0:
        return None
    command = [sys.executable, "-m", "mainstem.workbench.cli.main", "--home", home, "console", "--port", str(port)]
    console = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    address = (console.stdout.readline() if console.stdout else "").split()[-1:]
    if not address:
        sys.exit("the console did not start; with another port: make demo PORT=0")
    print(f"Look at {address[0]}", flush=True)
    if sys.stdout.isatty() and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        webbrowser.open(address[0])
    return console


def fresh(home: str) -> str:
    """An empty home; one that an earlier demo made is removed."""
    path = Path(home)
    if path.exists() and any(path.iterdir()) and not Path(path, MARK).exists():
        sys.exit(f'"{home}" is not a home that the demo made: it would be emptied. Give another one with --home.')
    shutil.rmtree(path, ignore_errors=True)
    return home


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="from the first result; 0 goes on until Ctrl-C")
    parser.add_argument("--rate", type=int, default=2, help="orders a second")
    parser.add_argument("--home", default="data/demo_shop")
    parser.add_argument("--port", type=int, default=8765, help="of the console; 0: any free one, -1: no console")
    try:
        return run(parser.parse_args())
    except mainstem.MainstemError as error:
        sys.exit(f"{error}\n" + "\n".join(getattr(error, "__notes__", [])))


if __name__ == "__main__":
    sys.exit(main())
