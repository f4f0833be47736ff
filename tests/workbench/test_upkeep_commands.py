"""mainstem topic seal, compact and verify."""

import os
import signal
import subprocess
import sys

import pytest

from tests.workbench.conftest import rows

HOLDER = """
import os, signal
import mainstem
from mainstem.file_locks import UPKEEP
topic = mainstem.open("shop").topic("customers")
with topic.backend.store.partitions[0].lock.held(UPKEEP):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def customers(stem):
    """A topic that keeps the latest record per key, with a key that changed and one that was deleted."""
    topic = stem.create_topic("customers", schema="id STRING, zip STRING", key="id", keep="latest per key")
    topic.append([{"id": "a", "zip": "1"}, {"id": "b", "zip": "2"}])
    topic.append([{"id": "a", "zip": "3"}])
    return topic


def test_seal_makes_parquet_files(cli, orders, place):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])

    assert cli("topic", "seal", "orders") == (0, "sealed 2 segments of orders\n", "")
    assert cli("topic", "seal", "orders") == (0, "nothing to seal in orders\n", "")
    assert len(list(place.glob("shop/topics/orders/*/*.parquet"))) == 2
    assert len(rows(orders)) == 10


def test_compact_keeps_the_latest_of_each_key(cli, customers):
    customers.seal()

    said = cli("topic", "compact", "customers")

    assert said.status == 0
    assert said.out.startswith("customers: of 3 records 2 are left, 1 had a later one and 0 told of a deletion")
    assert rows(customers) == [{"id": "a", "zip": "3"}, {"id": "b", "zip": "2"}]


def test_compact_tells_a_program(cli, customers):
    customers.seal()

    facts = cli("topic", "compact", "customers", "--json").json

    assert (facts["topic"], facts["records_before"], facts["records_after"], facts["removed"]) == ("customers", 3, 2, 1)


def test_compact_drops_what_is_too_much(cli, stem, place):
    topic = stem.create_topic("short", schema="n INT, pad STRING", archive="old", keep="10 KiB")
    for n in range(4):
        topic.append([{"n": n, "pad": "x" * 5000}])
        topic.seal()
    kept = topic.backend.earliest(0)

    said = cli("topic", "compact", "short")
    again = cli("topic", "compact", "short", "--json").json

    assert said.status == 0
    assert said.out.startswith("short: dropped ")
    assert said.out.endswith(" of them archived\n")
    assert topic.backend.earliest(0) > kept
    assert again == {"topic": "short", "segments": 0, "records": 0, "bytes": 0, "archived": 0, "clock_jump": None}
    assert cli("topic", "compact", "short").out == "short: nothing is too old or too much\n"


def test_compact_has_nothing_to_do_where_every_record_is_kept(cli, orders):
    assert cli("topic", "compact", "orders").error == [
        'mainstem.Invalid: topic "orders" keeps every record',
        "Detail: There is nothing to take out.",
        'Hint: Alter it first, for instance: mainstem topic alter orders --keep "7 days"',
    ]


@pytest.mark.parametrize(("verb", "said"), [("seal", "sealed 1 segment of customers"), ("compact", "customers: of ")])
def test_upkeep_takes_over_from_a_stopped_process(cli, customers, verb, said):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER])
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        refused = cli("topic", verb, "customers")
        taken = cli("topic", verb, "customers", "--take-over")
        ended = holder.wait(timeout=60)
    finally:
        holder.kill()
        holder.wait()

    assert refused.error[1].startswith(f"Detail: Process {holder.pid} (")
    assert taken.status == 0
    assert taken.err.startswith(f'took over "customers" partition 0; ended the stopped process {holder.pid} (')
    assert taken.out.startswith(said)
    assert ended == -signal.SIGKILL


# Verify


def test_verify_says_what_is_sound(cli, orders, customers):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])
    orders.seal()

    said = cli("topic", "verify")
    facts = cli("topic", "verify", "orders", "--json").json

    assert said.status == 0
    heading, _, first, second = said.out.splitlines()
    assert heading.split() == ["topic", "sound", "records", "size", "sealed", "not", "sealed"]
    assert first.split()[:3] == ["customers", "yes", "3"]
    assert second.split()[:3] == ["orders", "yes", "10"]
    assert [(it["topic"], it["sound"], it["records"], it["problems"]) for it in facts] == [("orders", True, 10, [])]


def test_verify_of_a_home_without_topics(cli, stem):
    assert cli("topic", "verify") == (0, "no topics yet\n", "")


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(("form", "lost"), [("parquet", "0 to 102"), ("blocks", "3 to 102")])
def test_verify_ends_with_1_and_names_the_range_that_is_not(cli, stem, orders, customers, place, form, lost):
    customers.append([{"id": str(n), "zip": "x"} for n in range(100)])
    if form == "parquet":
        customers.seal()
    damaged = next(place.glob(f"shop/topics/customers/0/*.{form}"))
    stem.close()
    flip_a_bit(damaged)

    said = cli("topic", "verify")
    facts = cli("topic", "verify", "--json")

    assert (said.status, facts.status) == (1, 1)
    [problem] = facts.json[0]["problems"]
    assert [(it["topic"], it["sound"]) for it in facts.json] == [("customers", False), ("orders", True)]
    assert (problem["partition"], problem["file"]) == (0, str(damaged))
    lines = said.out.splitlines()
    assert lines[2].split()[:2] == ["customers", "NO"]
    assert lines[-2].startswith(f"customers, partition 0, offsets {lost}: ")
    assert " is damaged" in lines[-2]
    assert lines[-1] == f"    {damaged}"
