"""The stream of the console: every change once, whatever is cut, killed, added or left out."""

import json
import random
import socket
import threading
from contextlib import closing

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.views.view import View
from tests.waiting import wait_until
from tests.workbench.console_process import ConsoleProcess, running_console

SCHEMA = pa.schema([("store", pa.string()), ("total", pa.int64())])


class Totals:
    """A view that counts up, a batch at a time."""

    def __init__(self, home, name: str = "revenue", **settings) -> None:
        self.view = View(home, name, key=["store"], **settings)
        self.run = FlowRun(name, 1)
        self.writer = self.view.writer(self.run, SCHEMA)
        self.batch = 0

    def apply(self, stores, total: int) -> None:
        rows = pa.table({"store": list(stores), "total": [total] * len(stores)}, schema=SCHEMA)
        self.writer.apply(rows, Batch(self.batch, self.run))
        self.batch += 1


@pytest.fixture
def home(tmp_path):
    with mainstem.open(tmp_path / "shop", upkeep="manual") as stem:
        stem.create_topic("orders", schema="order_id BIGINT", partitions=2)
    return str(tmp_path / "shop")


class Follower:
    """A page that follows a view: its table, and every position that it was told of."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.positions: list[int] = []
        self.left_out = 0
        self.last = ""

    def take(self, event) -> None:
        if event.kind == "snapshot":
            self.rows = {row["store"]: row["total"] for row in event.data["rows"]}
            self.positions = [int(event.data["cursor"].partition("@")[2])]
        elif event.kind == "changes":
            assert int(event.data["after"]) == self.positions[-1]
            for change in event.data["changes"]:
                self._apply(change)
            self.left_out += event.data["coalesced"]
            self.positions.append(int(event.data["position"]))
        else:
            raise AssertionError(event)
        self.last = event.id

    def _apply(self, change) -> None:
        store = change["key"][0]
        held = self.rows.get(store)
        assert (None if change["before"] is None else change["before"]["total"]) == held
        if change["row"] is None:
            del self.rows[store]
        else:
            self.rows[store] = change["row"]["total"]


def follow_with_cuts(home: str, *, changes: int, cuts: int, seed: int) -> Follower:
    """A page that follows while changes are made, and is cut again and again: half of the times the server is killed."""
    chance = random.Random(seed)
    totals = Totals(home)
    stores = [f"s{number}" for number in range(40)]
    totals.apply(stores, 0)
    rounds = changes // len(stores)
    cut_after = sorted(chance.sample(range(1, rounds), cuts))
    follower = Follower()
    console = ConsoleProcess(home)
    try:
        stream = console.stream("view:revenue")
        follower.take(stream.next("snapshot"))
        for number in range(1, rounds + 1):
            totals.apply(stores, number)
            if number in cut_after:
                for _ in range(chance.randrange(3)):
                    # One message may have had everything.
                    if follower.positions[-1] < totals.view.last_position():
                        follower.take(stream.next())
                stream.cut()
                if cut_after.index(number) % 2:
                    console.kill()
                    console = ConsoleProcess(home)
                stream = console.stream("view:revenue", last=follower.last)
        end = totals.view.last_position()
        while follower.positions[-1] < end:
            follower.take(stream.next())
        stream.cut()
        assert console.end() == ""
    finally:
        if console.process.poll() is None:
            console.kill()
    assert follower.rows == dict.fromkeys(stores, str(rounds))
    assert follower.positions[0] == len(stores)
    assert end == (rounds + 1) * len(stores)
    return follower


def test_a_page_that_is_cut_ten_times_has_every_change_once(home):
    follower = follow_with_cuts(home, changes=10_000, cuts=10, seed=7)
    assert follower.positions == sorted(set(follower.positions))


@pytest.mark.long
def test_a_page_that_is_cut_a_hundred_times_has_every_change_once(home):
    follow_with_cuts(home, changes=10_000, cuts=100, seed=8)


def test_subjects_may_be_added_and_left_out_and_a_page_may_come_back_to_another_process(home):
    first, second = Totals(home), Totals(home, "other")
    first.apply(["a"], 1)
    second.apply(["x"], 1)
    with running_console(home) as console:
        stream = console.stream("view:revenue")
        assert stream.next("snapshot").data["rows"] == [{"store": "a", "total": "1"}]
        last = stream.last
        stream.cut()
    first.apply(["a"], 2)
    second.apply(["x"], 2)
    with running_console(home) as console:
        stream = console.stream("view:other", "view:revenue", last=last)
        found = {event.data["subject"]: event for event in (stream.next(), stream.next())}
        assert found["view:revenue"].kind == "changes"
        assert [change["row"]["total"] for change in found["view:revenue"].data["changes"]] == ["2"]
        assert found["view:other"].kind == "snapshot"
        assert set(json.loads(stream.last)) == {"view:other", "view:revenue"}
        left = stream.last
        stream.cut()
        first.apply(["a"], 3)
        second.apply(["x"], 3)
        stream = console.stream("view:other", last=left)
        assert [change["row"]["total"] for change in stream.next("changes").data["changes"]] == ["3"]
        assert set(json.loads(stream.last)) == {"view:other"}
        stream.cut()


def test_every_record_of_a_topic_comes_once_also_after_a_kill(home):
    with mainstem.open(home, upkeep="manual") as stem:
        orders, seen = stem.topic("orders"), []
        console = ConsoleProcess(home)
        try:
            stream = console.stream("topic:orders")
            assert stream.next("snapshot").data["rows"] == []
            for begin in (0, 500, 1000):
                orders.append([{"order_id": number} for number in range(begin, begin + 500)])
                while len(seen) < begin + 500:
                    event = stream.next("rows")
                    assert event.data["sampled"] == 0
                    seen += [int(row["order_id"]) for row in event.data["rows"]]
                last = stream.last
                stream.cut()
                console.kill()
                console = ConsoleProcess(home)
                stream = console.stream("topic:orders", last=last)
            stream.cut()
        finally:
            console.kill()
    assert sorted(seen) == list(range(1500))


def test_who_is_far_behind_gets_the_newest_and_is_told_how_many_were_left_out(home):
    totals = Totals(home)
    totals.apply(["a"], 0)
    with mainstem.open(home, upkeep="manual") as stem, running_console(home) as console:
        stream = console.stream("topic:orders", "view:revenue")
        stream.next("snapshot")
        stream.next("snapshot")
        last = stream.last
        stream.cut()
        stem.topic("orders").append([{"order_id": number} for number in range(20_000)])
        stores = [f"s{number % 50}" for number in range(6_000)]
        for begin in range(0, 6_000, 50):
            totals.apply(stores[begin : begin + 50], begin + 1)
        stream = console.stream("topic:orders", "view:revenue", last=last)
        rows = stream.next("rows").data
        assert 0 < len(rows["rows"]) <= 200
        assert rows["sampled"] + len(rows["rows"]) == 20_000
        assert int(rows["rows"][-1]["order_id"]) == 19_999
        kept, left_out = {}, 0
        while len(kept) < 50 or set(kept.values()) != {"5951"}:
            event = stream.next("changes").data
            left_out += event["coalesced"]
            kept |= {change["key"][0]: change["row"]["total"] for change in event["changes"]}
        assert left_out >= 4_000
        stream.cut()


def test_a_cursor_that_fell_off_is_a_gap_and_then_a_snapshot(home):
    totals = Totals(home, changes_max=10)
    totals.apply(["a"], 0)
    with running_console(home) as console:
        stream = console.stream("view:revenue")
        last = stream.next("snapshot").id
        stream.cut()
        for number in range(1, 60):
            totals.apply(["a", "b"], number)
        with closing(totals.view) as view:
            wait_until(lambda: view.describe().first_position > 1)
        stream = console.stream("view:revenue", last=last)
        gap = stream.next()
        assert gap.kind == "gap"
        assert "no longer keeps its changes" in gap.data["error"]["what"]
        assert json.loads(gap.id) == {} or "view:revenue" in json.loads(gap.id)
        assert stream.next().data["rows"] == [{"store": "a", "total": "59"}, {"store": "b", "total": "59"}]
        stream.cut()


def test_a_topic_that_goes_and_comes_back_while_it_is_watched(home):
    with mainstem.open(home, upkeep="manual") as stem, running_console(home) as console:
        stream = console.stream("topic:orders")
        stream.next("snapshot")
        stem.delete_topic("orders")
        gone = stream.next("gone")
        assert gone.data["error"]["what"] == 'topic "orders" does not exist'
        made = stem.create_topic("orders", schema="order_id BIGINT")
        made.append([{"order_id": 7}])
        assert stream.next("gap").data["subject"] == "topic:orders"
        assert [row["order_id"] for row in stream.next("snapshot").data["rows"]] == ["7"]
        stream.cut()


def test_a_version_that_is_switched_is_a_difference(home):
    totals = Totals(home)
    totals.apply(["a", "b"], 1)
    with running_console(home) as console:
        stream = console.stream("view:revenue")
        follower = Follower()
        follower.take(stream.next("snapshot"))
        run = FlowRun("revenue", 2, totals.view.new_version())
        totals.view.writer(run, SCHEMA).apply(pa.table({"store": ["a"], "total": [5]}, schema=SCHEMA), Batch(0, run))
        totals.view.use(run.version)
        while follower.rows != {"a": "5"}:
            follower.take(stream.next())
        stream.cut()


def test_one_reader_for_many_pages_and_one_that_takes_nothing_harms_none(home):
    totals = Totals(home)
    totals.apply(["a"], 0)
    with running_console(home) as console:
        streams = [console.stream("view:revenue") for _ in range(12)]
        followers = [Follower() for _ in streams]
        for stream, follower in zip(streams, followers, strict=True):
            follower.take(stream.next("snapshot"))

        def make_changes() -> None:
            for number in range(1, 301):
                totals.apply(["a", f"s{number}"], number)

        maker = threading.Thread(target=make_changes)
        maker.start()
        # The first two take nothing.
        for stream, follower in zip(streams[2:], followers[2:], strict=True):
            while follower.rows.get("a") != "300" or len(follower.rows) < 301:
                follower.take(stream.next())
        maker.join()
        for stream, follower in zip(streams[:2], followers[:2], strict=True):
            while follower.rows.get("a") != "300" or len(follower.rows) < 301:
                follower.take(stream.next())
        with open(f"/proc/{console.process.pid}/status") as status:
            threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
        assert threads < 60
        for stream in streams:
            stream.cut()


@pytest.mark.long
def test_who_takes_nothing_for_half_a_minute_is_dropped(home):
    totals = Totals(home)
    totals.apply(["a"], 0)
    with running_console(home) as console, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((console.host, console.port))
        asked = f"GET /api/stream?of=view:revenue HTTP/1.1\r\nHost: {console.host}:{console.port}\r\n\r\n"
        deaf.sendall(asked.encode())
        listening = console.stream("view:revenue")
        follower = Follower()
        follower.take(listening.next("snapshot"))
        port = f":{deaf.getsockname()[1]:04X}"

        def is_connected() -> bool:
            with open(f"/proc/{console.process.pid}/net/tcp") as lines:
                return any(line.split()[2].endswith(port) and line.split()[3] == "01" for line in lines)

        assert is_connected()
        number = 0
        while is_connected():
            number += 1
            totals.apply([f"{'long' * 200} {n}" for n in range(50)], number)
            follower.take(listening.next("changes"))
        assert console.ask("/api/session").status == 200
        listening.cut()


@pytest.mark.parametrize(
    "address",
    [
        "/api/stream",
        "/api/stream?of=nothing",
        "/api/stream?of=view:a%2Fb",
        "/api/stream?of=topic:",
        "/api/stream?of=home&last=7",
        "/api/stream?of=home&last=%7B%22home%22:7%7D",
        "/api/stream?" + "&".join(f"of=view:v{number}" for number in range(33)),
    ],
)
def test_a_stream_that_cannot_be_says_why(console_of_nothing, address):
    found = console_of_nothing.ask(address)
    assert found.status == 400
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


@pytest.fixture(scope="module")
def console_of_nothing(tmp_path_factory):
    home = tmp_path_factory.mktemp("empty") / "home"
    mainstem.open(home, upkeep="manual").close()
    with running_console(home) as console:
        yield console
