"""Two minutes in a shop: events go into the log, the six flows of `examples/demo_shop.py` process them, and the run is killed.

    python -m examples.demo [--seconds 120] [--rate 2] [--home data/demo_shop] [--port 8765] [--kafka]

The console shows it live, with the six steps of `examples/demo_walk.py`; its address is printed at once. The time is counted from
the first result; with 0 seconds it goes on until Ctrl-C. "Kill it" on the page kills the run in the middle of its work; if nobody
presses it, the demo does at half time. The run is started again. In the end DuckDB computes every result anew, from the log alone.
The home is kept for the command line; the next demo replaces it. With `--kafka` the log is on a Kafka broker, and the flows run on
a Spark cluster, both of this machine and for this demo alone.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mainstem
from examples.demo_cluster import END_WITH_PARENT, start_kafka, start_spark
from examples.demo_events import DemoEvents
from examples.demo_shop import TOPICS, make_topics
from examples.demo_walk import WALK
from mainstem import Backoff, Mainstem
from mainstem.workbench.access_tokens import AccessTokens

MAINSTEM = [sys.executable, "-c", END_WITH_PARENT, sys.executable, "-m", "mainstem.workbench.cli.main"]
PROGRAM = Path(__file__).with_name("demo_shop.py")
MARK = "made_by_the_demo"
DAY_US = 86_400_000_000
REJECTED = 'SELECT count(*) AS messages FROM "mails.sending.rejected"'
# How long the flows may take to catch up in the end.
SECONDS_TO_CATCH_UP = 180.0
# Mira's phone went off before the demo began. She uploads so long after the first result, and is away for so long at least; at
# most for a little less than the flows that join wait. If nobody could see it yet, her phone goes off again.
SECONDS_TO_UPLOAD = 5
OFFLINE_BEFORE = timedelta(seconds=150)
OFFLINE_MIN = timedelta(seconds=90)
OFFLINE_MAX = timedelta(seconds=230)

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
        self.events = DemoEvents(self.now - timedelta(minutes=10), offline=self.now - OFFLINE_BEFORE)
        # Whether there are results that late orders correct.
        self.watched = False
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
        self.events.online = self.now
        self._append(self.events.second(self.now, 0))
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
            away = self.now - self.events.offline
            if self.events.online is None and away >= (OFFLINE_MIN if self.watched else OFFLINE_MAX):
                self.events.online = self.now
            self._append(self.events.second(self.now, self.rate))
            if self.events.online is not None and not self.watched:
                self.events.offline, self.events.online = self.now + timedelta(seconds=1), None

    def _send(self) -> None:
        queue = self.stem.topic("mails").queue("sending", deliveries_max=3, retry=Backoff("1 second"))
        while not self.sent.is_set():
            for message in queue.take(100, wait="1 second"):
                if "@" in message.row["address"]:
                    message.acknowledge()
                else:
                    message.release(error=f"there is no mail box {message.row['address']}")


class Run:
    """The process that runs the flows. Killed, it is started again. Ctrl-C is for the demo alone."""

    def __init__(self, home: str) -> None:
        self.command = [*MAINSTEM, "--home", home, "run", str(PROGRAM)]
        self.said = Path(home, "run.txt")
        self.killed_at: datetime | None = None
        self.start()

    def start(self) -> None:
        with self.said.open("a") as said:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def look(self) -> None:
        """Start it again if it was killed; if it ended by itself there is nothing to show."""
        if self.process.poll() == -signal.SIGKILL:
            self.killed_at = datetime.now(UTC)
            self.start()
        elif self.process.returncode is not None:
            sys.exit(f"the run ended with status {self.process.returncode}:\n{self.said.read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Console:
    """The process that serves the page. Its address lets in whoever opens it, to look and to kill."""

    def __init__(self, home: str, port: int) -> None:
        walk = Path(home, "walk.json")
        walk.write_text(json.dumps(WALK))
        options = ["--port", str(port), "--actions", "kill", "--walk", str(walk)]
        self.process = subprocess.Popen(
            [*MAINSTEM, "--home", home, "console", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.token = AccessTokens(home).create("act", lasts_us=DAY_US)
        said = (self.process.stdout.readline() if self.process.stdout else "").split()
        if not said:
            sys.exit("the console did not start; with another port: make demo PORT=0")
        self.url = said[-1]
        self.address = f"{self.url}#/?token={self.token}"

    def open(self, home: str) -> None:
        """In the browser, by a file of this user: what a command line says, others can read."""
        page = Path(home, "console", "open.html")
        page.touch(mode=0o600)
        page.write_text(f'<meta http-equiv="refresh" content="0; url={self.address}">')
        webbrowser.open(page.resolve().as_uri())

    def kill(self, flow: str) -> None:
        """What the button does."""
        body = json.dumps({"flow": flow, "confirm": True}).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        # If it cannot be: somebody pressed the button a moment ago.
        with suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(f"{self.url}api/actions/kill", body, headers)).close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


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

    def changed_at(self) -> datetime | None:
        """When the revenue changed last."""
        view = self.stem.view("revenue")
        return view.describe().live.applied_at if view.exists else None

    def look(self) -> None:
        """Late rows and corrections."""
        if "corrected" not in self.told and self.stem.view("revenue").exists:
            corrected = (
                "SELECT \"window\".start AS since, store FROM revenue WHERE pane.timing = 'late' ORDER BY since LIMIT 1"
            )
            for row in self.stem.view("revenue").query(corrected).to_pylist():
                self.tell(
                    "corrected",
                    f"Mira is online again: her orders came late. The minute {row['since']:%H:%M} of {row['store']} was "
                    "complete, and was corrected.",
                )
        if "rejected" not in self.told and any(self.stem.query(REJECTED).column("messages").to_pylist()):
            self.tell(
                "rejected", 'a mail could not be delivered three times: it is in the topic "mails.sending.rejected"'
            )


def run(given: argparse.Namespace) -> int:
    home = fresh(given.home)
    with ExitStack() as ending:
        if given.kafka:
            start_kafka(home, ending)
            start_spark(ending)
        stem = ending.enter_context(mainstem.open(home))
        Path(home, MARK).touch()
        make_topics(stem)
        console = Console(home, given.port)
        ending.callback(console.stop)
        print(f"Look at {console.address}", flush=True)
        if sys.stdout.isatty() and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
            console.open(home)
        shop = Shop(stem, given.rate)
        shop.open()
        print(f'A shop with ten minutes behind it, {shop.rows:,} rows, in "{home}". Spark starts ...', flush=True)
        story, flows = Story(stem, shop), Run(home)
        try:
            with suppress(KeyboardInterrupt):
                live(story, flows, console, given.seconds)
            print("The shop closes; the flows read what is in the log.", flush=True)
            shop.close()
            status = compare(story, flows, "" if given.kafka else home)
        finally:
            shop.closed.set()
            shop.sent.set()
            flows.stop()
        if sys.stdout.isatty():
            print(f"\nThe page stays for your last steps, at {console.url}: Ctrl-C ends it.", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return status


def live(story: Story, flows: Run, console: Console, seconds: float) -> None:
    """Until the time is over, and the run is back: the first result, late orders, a kill."""
    first = time.monotonic()
    asked = False
    while True:
        changed_at = story.changed_at()
        passed = time.monotonic() - first
        if changed_at is None:
            first = time.monotonic()
        else:
            story.tell("first", "the first results: the revenue of every minute so far")
            story.shop.watched = passed >= SECONDS_TO_UPLOAD
            if seconds and passed >= seconds / 2 and not asked and flows.killed_at is None:
                console.kill("revenue")
                asked = True
        flows.look()
        if changed_at is not None and flows.killed_at is not None:
            story.tell("killed", "the run is killed with SIGKILL, in the middle of its work, and started again")
            if changed_at > flows.killed_at:
                after = (changed_at - flows.killed_at).total_seconds()
                story.tell("back", f"it is back, {after:.0f} s after it was killed, and goes on where it was")
        if seconds and passed >= seconds and "back" in story.told:
            return
        story.look()
        time.sleep(0.5)


def compare(story: Story, flows: Run, home: str) -> int:
    """Whether each result is what DuckDB finds in the log, as soon as the flows have read it. `home`, if it outlives the demo."""
    deadline = time.monotonic() + SECONDS_TO_CATCH_UP
    while different := [name for name in MADE if difference(story.stem, name)]:
        if time.monotonic() > deadline:
            break
        flows.look()
        story.look()
        time.sleep(1)
    print(f"\n{story.shop.rows:,} rows were appended. The results, beside what DuckDB finds in the log alone:")
    for name in MADE:
        print(f"  {name:<16} {len(made(story.stem, name)):>7,} rows  {'DIFFERENT' if name in different else 'equal'}")
    for name in different:
        print(f"\n{name}, only there or only in the log: {difference(story.stem, name)[:5]}")
    if not different:
        through = [text for what, text in (("back", "a kill"), ("corrected", "late rows")) if what in story.told]
        print(f"Every row was counted once{', through ' if through else ''}{' and '.join(through)}.")
    if home and not different:
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
    parser.add_argument("--port", type=int, default=8765, help="of the console; 0: any free one")
    parser.add_argument("--kafka", action="store_true", help="the log on a Kafka broker, the flows on a Spark cluster")
    try:
        return run(parser.parse_args())
    except mainstem.MainstemError as error:
        sys.exit(f"{error}\n" + "\n".join(getattr(error, "__notes__", [])))


if __name__ == "__main__":
    sys.exit(main())
