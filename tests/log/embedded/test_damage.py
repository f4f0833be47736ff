"""One damaged file costs the records in it and nothing else, and what it costs is said exactly."""

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import mainstem
from mainstem.errors import Corrupt, CorruptBlock, CorruptHome, MainstemError
from mainstem.log.embedded.write.block import HEADER_BYTES, MAGIC
from mainstem.workbench.cli.main import run

RECORDS = 20
ALL = set(range(RECORDS))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A home: two partitions of 20 records, 0 to 9 in two sealed files, 10 to 14 in closed blocks, the rest being appended."""
    home = tmp_path_factory.mktemp("damage") / "home"
    with mainstem.open(home, upkeep="manual") as stem:
        stem.create_topic("other", schema="n BIGINT").append([{"n": 1}])
        orders = stem.create_topic("orders", schema="n BIGINT", partitions=2)
        for part in range(4):
            for number in range(5 * part, 5 * part + 5):
                for partition in (0, 1):
                    orders.append([{"n": number}], partition=partition)
            if part < 2:
                orders.seal()
            elif part == 2:
                for partition in orders.backend.store.partitions:
                    partition.roll()
    return home


def file_of(home, part):
    """A file of partition 0, or of the topic."""
    folder = Path(home) / "topics" / "orders"
    at = {"sealed": ("*.parquet", 0), "closed": ("*.blocks", 0), "active": ("*.blocks", 1), "index": ("*.index", 0)}
    if part in at:
        pattern, number = at[part]
        return sorted((folder / "0").glob(pattern))[number]
    return folder / part if part in ("heads", "topic.json") else folder / "0" / part


def blocks_in(data):
    """Where blocks begin in a segment; the first is its state, then one for each append."""
    return [match.start() for match in re.finditer(MAGIC, bytes(data))]


def damage(path, how, block=3):
    """Of blocks, how="flipped" is a bit of the payload of one, how="header" a bit of its header."""
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "short":
        path.write_bytes(data[:-1])
    else:
        at = len(data) // 2 if path.suffix in (".parquet", ".index") else 0
        if path.suffix == ".blocks":
            at = blocks_in(data)[block] + (10 if how == "header" else HEADER_BYTES + 10)
        data[at] ^= 1
        path.write_bytes(data)


@pytest.fixture
def damaged(sound, tmp_path):
    def of(part, how):
        home = tmp_path / "home"
        shutil.copytree(sound, home)
        damage(file_of(home, part), how)
        return home

    return of


def readable(orders, partition=0, end=RECORDS):
    """The offsets that can be read one by one; and what is said of the others."""
    moment = orders.backend.moment()
    found, ranges = set(), set()
    for offset in range(end):
        try:
            (batch,) = moment.read(partition, offset, offset + 1, None)
            found |= set(batch.column("n").to_pylist())
        except Corrupt as error:
            ranges.add((getattr(error, "first_offset", None), getattr(error, "last_offset", None)))
    return found, ranges


def span(first, last):
    return set(range(first, last + 1))


# File, how, the offsets that are lost, and which range the errors and the verification name.
CASES = [
    *[("sealed", how, span(0, 4), (0, 4)) for how in ("short", "flipped", "missing")],
    *[("manifest", how, span(0, 14), (None, None)) for how in ("short", "flipped", "missing")],
    ("closed", "short", span(14, 14), (14, 14)),
    ("closed", "flipped", span(12, 12), (12, 12)),
    ("closed", "header", span(12, 12), (12, 12)),
    ("closed", "missing", span(10, 14), (10, 14)),
    ("active", "short", span(19, 19), (19, 19)),
    ("active", "flipped", span(17, 17), (17, 17)),
    ("active", "header", span(17, 17), (17, 17)),
    ("active", "missing", span(15, 19), (15, 19)),
]


@pytest.mark.parametrize(("part", "how", "lost", "named"), CASES)
def test_damage_costs_the_records_in_it_and_nothing_else(damaged, part, how, lost, named):
    home = damaged(part, how)
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        assert readable(orders) == (ALL - lost, {named})
        assert readable(orders, 1) == (ALL, set())
        # Never silently: who reads over it is told.
        with pytest.raises(Corrupt):
            orders.to_arrow()
        assert {(it.partition, it.first_offset, it.last_offset) for it in orders.verify().problems} == {(0, *named)}
        assert orders.append([{"n": RECORDS}], partition=1).offsets == {1: (RECORDS, RECORDS + 1)}


@pytest.mark.parametrize(("part", "how", "lost", "named"), CASES)
def test_a_damaged_partition_that_is_taken_over_goes_on_behind_the_damage(damaged, part, how, lost, named):
    home = damaged(part, how)
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        orders.take_over()
        assert orders.append([{"n": RECORDS}], partition=0).offsets == {0: (RECORDS, RECORDS + 1)}
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        # Where only the manifest is damaged, what is no longer appended to may have been sealed.
        more = span(0, 19) if part == "manifest" else lost
        assert readable(orders, 0, RECORDS + 1) == (span(0, RECORDS) - more, {named})
        # Nor is it sealed away: the other partition is sealed, and this one is told of.
        if part in ("closed", "active"):
            with pytest.raises(CorruptBlock):
                orders.seal()
        assert readable(orders, 0, RECORDS + 1) == (span(0, RECORDS) - more, {named})
        assert {(it.partition, it.first_offset, it.last_offset) for it in orders.verify().problems} == {(0, *named)}


@pytest.mark.parametrize("how", ["short", "flipped", "missing"])
@pytest.mark.parametrize("part", ["heads", "index"])
def test_what_can_be_made_again_costs_nothing(damaged, part, how):
    home = damaged(part, how) if (part, how) != ("index", "short") else damaged(part, "missing")
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        assert readable(orders) == (ALL, set())
        assert orders.append([{"n": RECORDS}], partition=0).offsets == {0: (RECORDS, RECORDS + 1)}


@pytest.mark.parametrize(("part", "how"), [("topic.json", "flipped"), ("topic.json", "missing"), ("tail", "missing")])
def test_a_topic_that_cannot_be_opened_is_said_to_be_damaged_not_deleted(damaged, part, how):
    home = damaged(part, how)
    with mainstem.open(home, upkeep="manual") as stem:
        with pytest.raises(CorruptHome) as raised:
            stem.topic("orders")
        assert raised.value.path.endswith(part)
        assert stem.topic("other").to_arrow().num_rows == 1


@pytest.mark.parametrize("what", ["sealed", "manifest", "active", "topic.json"])
def test_a_damaged_topic_is_listed_with_its_damage(damaged, capsys, what):
    home = damaged(what, "flipped" if what == "topic.json" else "short")
    assert run(["topic", "list", "--home", str(home)]) == 0
    listed = capsys.readouterr().out
    assert "other" in listed
    assert "orders" in listed
    assert "damage" in listed
    assert run(["topic", "list", "--json", "--home", str(home)]) == 0
    assert run(["topic", "describe", "orders", "--home", str(home)]) == int(what == "topic.json")


@pytest.mark.parametrize("records", [0, 2])
@pytest.mark.parametrize("transaction", [False, True])
def test_a_partition_whose_only_segment_is_missing_is_named_by_everyone(tmp_path, transaction, records):
    home = tmp_path / "home"
    rows = [{"n": number} for number in range(records)]
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n BIGINT", partitions=2)
        orders.append([{"n": 9}], partition=1)
        if transaction and records:
            with stem.transaction() as change:
                # In turns: one to each partition.
                for row in rows:
                    change.append(orders, [row])
        elif records:
            orders.append(rows, partition=0)
    [path] = (home / "topics/orders/0").glob("*.blocks")
    path.unlink()
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        assert [problem.file for problem in orders.verify().problems] == [str(path)]
        report = stem.copy_to(tmp_path / "copy")
        assert [problem.file for problem in report.problems] == [str(path).replace("home", "copy")]
        queue = orders.queue("packing")
        at = datetime(2020, 1, 1, tzinfo=UTC)
        uses = [lambda: orders.append([{"n": 1}], partition=0), orders.seal]
        if records:
            uses += [orders.to_arrow, lambda: stem.query("SELECT n FROM orders"), lambda: orders.to_arrow(start=at)]
            uses += [lambda: queue.take(9), queue.lag]
        for use in uses:
            with pytest.raises(CorruptBlock) as raised:
                use()
            assert raised.value.path == str(path)
    assert run(["home", "verify", "--home", str(home)]) == 1


@pytest.mark.parametrize(
    ("ledger", "uses"),
    [
        ("ledgers/transactions", ["read", "producer", "transaction", "take_over"]),
        ("ledgers/producers", ["producer", "take_over"]),
        ("topics/orders/groups/packing", ["group", "take_over"]),
        ("topics/orders/queues/mailing", ["queue", "take_over"]),
    ],
)
def test_a_ledger_without_its_tail_is_named_and_a_copy_of_the_home_is_whole(tmp_path, ledger, uses):
    def every_use(stem):
        orders = stem.topic("orders")

        def transaction():
            with stem.transaction() as change:
                change.append(orders, [{"n": 2}])

        return {
            "read": orders.to_arrow,
            "append": lambda: orders.append([{"n": 1}]),
            "producer": lambda: stem.producer("till").append(orders, [{"n": 3}], sequence=1),
            "transaction": transaction,
            "group": lambda: orders.join_group("packing").leave(),
            "queue": lambda: orders.queue("mailing").take(),
            "take_over": stem.take_over,
        }

    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        stem.create_topic("orders", schema="n BIGINT")
        for use in every_use(stem).values():
            use()
    path = tmp_path / "home" / ledger / "0/tail"
    path.unlink()
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        for name, use in every_use(stem).items():
            if name not in uses:
                use()
                continue
            with pytest.raises(CorruptHome) as raised:
                use()
            assert raised.value.path == str(path)
        stem.copy_to(tmp_path / "copy")
    with mainstem.open(tmp_path / "copy", upkeep="manual") as stem:
        for use in every_use(stem).values():
            use()


# Of the other topic: nothing, less, as much in as many bytes, and more.
@pytest.mark.parametrize("appends", [[], [1], [2], [2, 1], [2, 2], [3, 2], [2, 2, 1]])
def test_the_heads_of_another_topic_hides_nothing_and_nothing_is_overwritten(tmp_path, appends):
    home = tmp_path / "home"
    with mainstem.open(home, upkeep="manual") as stem:
        for name, counts in (("orders", [2, 2]), ("refunds", appends)):
            topic = stem.create_topic(name, schema="n BIGINT")
            for count in counts:
                topic.append([{"n": number} for number in range(count)])
    path = file_of(home, "heads")
    shutil.copy(home / "topics/refunds/heads", path)
    [segment] = (home / "topics/orders/0").glob("*.blocks")
    written = segment.read_bytes()
    with mainstem.open(home, upkeep="manual") as stem:
        with pytest.raises(Corrupt) as raised:
            stem.topic("orders").append([{"n": 9}])
        # Beyond the end of the segment, the segment may as well have been cut.
        assert raised.value.path == str(segment if sum(appends) > 4 else path)
        assert segment.read_bytes() == written
        assert not stem.topic("refunds").verify().problems
    assert run(["home", "verify", "--home", str(home)]) == 1
    # As the hint says.
    path.unlink()
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        assert orders.to_arrow().column("n").to_pylist() == [0, 1, 0, 1]
        assert orders.append([{"n": 9}]).offsets == {0: (4, 5)}
        assert not orders.verify().problems


@pytest.mark.parametrize("kinds", [("groups", "queues"), ("queues", "groups")])
def test_the_files_of_another_ledger_are_named(tmp_path, kinds):
    home = tmp_path / "home"
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n BIGINT")
        orders.append([{"n": 1}])
        orders.join_group("mailing").leave()
        orders.queue("mailing").take()
    there, other = (home / "topics/orders" / kind / "mailing" for kind in kinds)
    shutil.rmtree(there)
    shutil.copytree(other, there)
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        with pytest.raises(CorruptHome, match="has an entry that is inconsistent") as raised:
            orders.join_group("mailing") if kinds[0] == "groups" else orders.queue("mailing")
        assert raised.value.path.startswith(str(there / "0"))
        assert orders.to_arrow().num_rows == 1


# The second is read from the buffers of the first two, if nobody looks whether they fit.
@pytest.mark.parametrize("schema", ["k STRING, n STRING", "n BIGINT, k STRING", "k BIGINT, n BIGINT"])
def test_settings_with_other_columns_than_the_records_are_named(tmp_path, schema):
    homes = {"k STRING, n BIGINT": tmp_path / "home", schema: tmp_path / "other"}
    for columns, home in homes.items():
        with mainstem.open(home, upkeep="manual") as stem:
            stem.create_topic("orders", schema=columns)
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        stem.topic("orders").append([{"k": "abc", "n": 1 << 60}, {"k": "x", "n": 3}])
    path = file_of(tmp_path / "home", "topic.json")
    shutil.copy(file_of(tmp_path / "other", "topic.json"), path)
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        orders = stem.topic("orders")
        for use in (orders.to_arrow, lambda: stem.query("SELECT n FROM orders"), orders.seal):
            with pytest.raises(CorruptHome, match="does not have the columns of the records") as raised:
                use()
            assert raised.value.path == str(path)


def test_a_closed_segment_that_was_cut_where_a_block_ends_is_not_passed_over(damaged):
    home = damaged("closed", "short")
    path = file_of(home, "closed")
    path.write_bytes(path.read_bytes()[: blocks_in(path.read_bytes())[-1]])
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        assert readable(orders) == (ALL - {14}, {(14, 14)})
        with pytest.raises(CorruptBlock):
            orders.seal()
        assert [(it.first_offset, it.last_offset) for it in orders.verify().problems] == [(14, 14)]


def test_every_damage_is_verified_not_only_the_first(damaged):
    home = damaged("sealed", "short")
    damage(file_of(home, "closed"), "flipped")
    damage(file_of(home, "active"), "flipped")
    with mainstem.open(home, upkeep="manual") as stem:
        problems = stem.topic("orders").verify().problems
    assert [(it.first_offset, it.last_offset) for it in problems] == [(0, 4), (12, 12), (17, 17)]


def test_behind_a_damaged_header_a_partition_with_transactions_is_known_up_to_it(tmp_path):
    with mainstem.open(tmp_path / "with", upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n BIGINT")
        for number in range(3):
            with stem.transaction() as transaction:
                transaction.append(orders, [{"n": number}])
    (path,) = (tmp_path / "with" / "topics" / "orders" / "0").glob("*.blocks")
    damage(path, "header", block=-1)
    with mainstem.open(tmp_path / "with", upkeep="manual") as stem:
        orders = stem.topic("orders")
        moment = orders.backend.moment()
        assert [row for batch in moment.read(0, 0, 4, None) for row in batch.column("n").to_pylist()] == [0, 1]
        # The last marker is damaged: whether the last record counts is not known.
        with pytest.raises(CorruptBlock):
            list(moment.read(0, 0, 6, None))
        with pytest.raises(MainstemError):
            orders.to_arrow()


@pytest.mark.parametrize("how", ["short", "header", "missing"])
def test_a_damaged_ledger_of_transactions_costs_the_topics_that_have_some(tmp_path, how):
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        plain = stem.create_topic("plain", schema="n BIGINT")
        plain.append([{"n": 1}])
        with stem.transaction() as transaction:
            transaction.append(stem.create_topic("orders", schema="n BIGINT"), [{"n": 2}])
    (path,) = (tmp_path / "home" / "ledgers" / "transactions" / "0").glob("*.blocks")
    damage(path, how, block=-1)
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        plain = stem.topic("plain")
        assert plain.to_arrow().num_rows == 1
        plain.append([{"n": 3}])
        assert plain.to_arrow().num_rows == 2
        with pytest.raises(Corrupt):
            stem.topic("orders").to_arrow()
        with pytest.raises(Corrupt), stem.transaction() as transaction:
            transaction.append(plain, [{"n": 4}])
        assert plain.verify().sound
