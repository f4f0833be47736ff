"""Write a small home with a bit of everything, and what must be read from it, for the tests of file formats.

    .venv/bin/python scripts/make_format_fixture.py tests/formats/v2

Run once for each version of the formats, before its release, and never again: the files are what users have. The
version that wrote them is the one installed.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from mainstem import Backoff, Keep, Mainstem, __version__
from mainstem.clock import ManualClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.write.segment_writer import Pending

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.formats.home_facts import facts  # noqa: E402 - the test reads with the same eyes


def fill(stem: Mainstem, clock: ManualClock) -> None:
    fill_orders(stem, clock)
    fill_payments(stem, clock)
    fill_deliveries(stem)
    fill_stock(stem, clock)
    fill_readings(stem, clock)


def fill_orders(stem: Mainstem, clock: ManualClock) -> None:
    """Several partitions and schemas, sealed and not, headers and changes; a group and a queue in the middle of work."""
    orders = stem.create_topic(
        "orders",
        schema="order_id string not null, store string, amount float, lines array<struct<article string, pieces int>>, "
        "placed_at timestamp",
        key="order_id",
        event_time="placed_at",
        partitions=3,
    )

    def order(number: int) -> dict[str, object]:
        placed_at = clock.now() - number * 1_000_000
        lines = [{"article": f"a-{line}", "pieces": line} for line in range(number % 3)]
        return {"order_id": f"o-{number}", "store": "Köln" if number % 2 else None, "amount": number / 4, "lines": lines,
                "placed_at": pa.scalar(placed_at, pa.timestamp("us", "UTC")).as_py()}  # fmt: skip

    for first in range(0, 40, 10):
        orders.append([order(number) for number in range(first, first + 10)])
        clock.advance("1 minute")
    orders.seal()
    orders.alter(schema="order_id string not null, store string, amount double, lines array<struct<article string, "
                 "pieces int>>, placed_at timestamp, note string")  # fmt: skip
    orders.append([{**order(number), "note": "späte Bestellung"} for number in range(40, 50)])
    header = {"key": "trace", "value": b"\x00\xff"}
    orders.append([{**order(7), "record": {"change": "update", "headers": [header]}}])
    orders.delete(["o-3", "o-4"])
    orders.seal()
    clock.advance("1 minute")
    orders.append([order(number) for number in range(50, 60)])

    with orders.join_group("billing") as member:
        member.poll()
        member.commit()
        member.poll()
    emails = orders.queue("emails", deliveries_max=3, retry=Backoff("1 hour"), where="amount >= 1")
    taken = emails.take(6)
    taken[0].acknowledge()
    taken[1].acknowledge()
    taken[2].release(error="the server is busy")
    taken[3].reject("no such address")
    orders.queue("ledger", ordered="by key", expires="1 day")


def fill_payments(stem: Mainstem, clock: ManualClock) -> None:
    """Transactions of every outcome, sealed and not, and a producer."""
    payments = stem.create_topic(
        "payments", schema="order_id string, amount decimal(10, 2), paid boolean", partitions=2
    )
    booked = stem.create_topic("booked", schema="order_id string")
    producer = stem.producer("checkout")
    for number in range(4):
        producer.append(payments, [{"order_id": f"p-{number}", "amount": number, "paid": True}], sequence=number)
    for round_number in range(2):
        with stem.transaction() as transaction:
            transaction.append(payments, [{"order_id": f"t-{round_number}", "paid": False}])
            transaction.append(booked, [{"order_id": f"t-{round_number}"}])
        aborted = stem.transaction()
        aborted.append(payments, [{"order_id": "never seen"}])
        aborted.abort()
        if round_number == 0:
            payments.seal()
    with producer.transaction() as transaction:
        transaction.append(payments, [{"order_id": "p-9"}], sequence=9)
    clock.advance("1 minute")
    leave_open(stem)


def leave_open(stem: Mainstem) -> None:
    """A transaction whose owner is gone before it is decided."""
    child = os.fork()
    if child == 0:
        stem.transaction(timeout="1 day").append("booked", [{"order_id": "left behind"}])
        os._exit(0)
    os.waitpid(child, 0)


def fill_deliveries(stem: Mainstem) -> None:
    """A producer whose last append reached one of three partitions, as a crash may leave it."""
    deliveries = stem.create_topic("deliveries", schema="order_id string", key="order_id", partitions=3)
    producer = stem.producer("loader")
    producer.append(deliveries, [{"order_id": f"d-{number}"} for number in range(10)], sequence=10)
    append = TopicStore.append

    def cut_short(store: TopicStore, blocks: Mapping[int, Pending]) -> None:
        append(store, dict([next(iter(blocks.items()))]))
        raise InterruptedError

    TopicStore.append = cut_short  # type: ignore[method-assign]
    with suppress(InterruptedError):
        producer.append(deliveries, [{"order_id": f"d-{number}"} for number in range(10, 20)], sequence=20)
    TopicStore.append = append  # type: ignore[method-assign]


def fill_stock(stem: Mainstem, clock: ManualClock) -> None:
    """A compacted topic: superseded records and a deleted key are gone, a young tombstone is there."""
    keep = Keep.latest_per_key(tombstones="1 hour")
    stock = stem.create_topic("stock", schema="article string, pieces bigint", key="article", keep=keep)
    for round_number in range(5):
        stock.append([{"article": f"a-{number}", "pieces": round_number * number} for number in range(10)])
    stock.delete(["a-1"])
    stock.seal()
    stock.compact()
    clock.advance("2 hours")
    stock.delete(["a-2"])
    stock.append([{"article": "a-3", "pieces": 1}])
    stock.seal()
    stock.compact()
    stock.append([{"article": "a-4", "pieces": 4}])


def fill_readings(stem: Mainstem, clock: ManualClock) -> None:
    """A topic whose first segments were dropped, with every kind of column and values at their limits."""
    readings = stem.create_topic(
        "readings",
        schema="tiny tinyint, small smallint, whole int, big bigint, single float, double double, yes boolean, "
        "text string, bytes binary, day date, local timestamp_ntz, moment timestamp, "
        "price decimal(38, 4), tags map<string, int>",
    )
    low = {"tiny": -128, "small": -(2**15), "whole": -(2**31), "big": -(2**63), "single": -0.5, "yes": False}
    high = {"tiny": 127, "small": 2**15 - 1, "whole": 2**31 - 1, "big": 2**63 - 1, "double": 1e308, "yes": True,
            "text": "\N{SNOWMAN}\n", "bytes": b"\x00\xff", "tags": {"a": 1, "b": None}}  # fmt: skip
    readings.append([low])
    readings.seal()
    readings.append([low, high])
    readings.seal()
    readings.alter(keep="1 byte")
    readings.drop_expired()
    readings.alter(keep="forever")
    readings.append([high, {}])
    clock.advance(timedelta(seconds=1))
    readings.seal()
    readings.append([low])


def main(folder: Path) -> None:
    if folder.exists():
        sys.exit(f"{folder} is there already; what a version has written is never made again")
    clock = ManualClock()
    home = folder / "home"
    folder.mkdir(parents=True)
    with Mainstem(EmbeddedLog(home, clock=clock)) as stem:
        fill(stem, clock)
    with Mainstem(EmbeddedLog(home, clock=clock)) as stem:
        expected = {"version": __version__, **facts(stem)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    files = [path for path in folder.rglob("*") if path.is_file()]
    print(f"{folder}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
