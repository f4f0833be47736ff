"""What every log promises of appends: taken in every form, checked whole, placed by key, durable, once acknowledged."""

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

from mainstem.errors import Invalid, MainstemError
from mainstem.log.rows.partitioner import key_bytes, partitions_of
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import by_partition, changes, dicts, fill, numbers, places, plain

ORDERS = [
    {"order_id": "o-1", "store": "Berlin", "amount": 9.5, "placed_at": datetime(2026, 1, 1, 12, tzinfo=UTC)},
    {"order_id": "o-2", "store": None, "amount": 3.0, "placed_at": datetime(2026, 1, 1, 12, 0, 1, 250_000, tzinfo=UTC)},
    {"order_id": "o-3", "store": "Köln", "amount": -0.25, "placed_at": datetime(2026, 1, 1, 13, tzinfo=UTC)},
]
SCHEMA = "order_id string, store string, amount double, placed_at timestamp"
TABLE = pa.Table.from_pylist(ORDERS)

FORMS: dict[str, Callable[[], Any]] = {
    "a pyarrow Table": lambda: TABLE,
    "a pyarrow Table in chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "a pyarrow RecordBatch": lambda: TABLE.to_batches()[0],
    "a polars frame": lambda: polars.from_arrow(TABLE),
    "a pandas frame": lambda: pandas.DataFrame(ORDERS),
    "a duckdb relation": lambda: duckdb.from_arrow(TABLE),
    "a list of dicts": lambda: ORDERS,
    "a generator of dicts": lambda: (row for row in ORDERS),
    "columns in another order": lambda: TABLE.select(["amount", "placed_at", "order_id", "store"]),
}


class AppendContract:
    """An append is all there, in its order, for every reader, or it is an error and nothing is there."""

    @promise(Promise.DURABLE)
    @pytest.mark.parametrize("form", FORMS)
    def test_rows_come_in_every_form(self, stem: Mainstem, other: Mainstem, form: str) -> None:
        orders = stem.create_topic("orders", schema=SCHEMA, event_time="placed_at")
        placed = orders.append(FORMS[form]())
        assert (placed.count, placed.appended) == (3, True)
        assert plain(other.topic("orders").to_arrow()) == ORDERS

    @promise(Promise.DURABLE)
    def test_values_of_every_type_come_back_as_they_went_in(self, stem: Mainstem) -> None:
        topic = stem.create_topic(
            "types",
            schema="a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(20, 4), i string, "
            "j binary, k date, l timestamp, m timestamp_ntz, n struct<x: int, y: array<string>>, o array<double>, "
            "p map<string, bigint>",
        )
        row = {
            "a": True, "b": -128, "c": 2**15 - 1, "d": -(2**31), "e": 2**63 - 1, "f": 0.5, "g": 1e300,
            "h": decimal.Decimal("1234567890123456.7891"), "i": "naïve \U0001f40b", "j": b"\0\xff", "k": date(1969, 12, 31),
            "l": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "m": datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - no zone is its point
            "n": {"x": 1, "y": ["a", None, ""]}, "o": [], "p": [("one", 1), ("none", None)],
        }  # fmt: skip
        nothing = dict.fromkeys(row)
        topic.append([row, nothing])
        assert plain(topic.to_arrow()) == [row, nothing]

    @promise(Promise.DURABLE)
    def test_what_is_acknowledged_survives_the_death_of_its_process(
        self, elsewhere: Callable[..., OtherProcess], opener: Callable[[], Mainstem]
    ) -> None:
        writer = elsewhere(_append_for_ever)
        acknowledged = [writer.hear() for _ in range(20)]
        writer.kill()
        acknowledged += writer.last_words()
        with opener() as stem:
            found = numbers(stem.topic("counted").to_arrow())
            assert found[: len(acknowledged)] == acknowledged
            # What was not acknowledged may be there, whole.
            assert found == list(range(len(found)))
            fill(stem.topic("counted"), -1)
            assert numbers(stem.topic("counted").to_arrow())[-1] == -1

    @promise(Promise.DURABLE)
    def test_a_closed_log_gives_the_same_when_it_is_opened_again(
        self, opener: Callable[[], Mainstem], stem: Mainstem, spread: Topic
    ) -> None:
        for number in range(20):
            fill(spread, number, key=f"key-{number % 7}")
        before = dicts(spread.to_arrow())
        stem.close()
        with opener() as again:
            assert dicts(again.topic("spread").to_arrow()) == before

    # Where rows go

    @promise(Promise.ORDERED)
    def test_a_key_has_one_partition_and_its_rows_stay_in_order(self, other: Mainstem, spread: Topic) -> None:
        rows = [{"k": f"key-{number % 5}", "n": number} for number in range(50)]
        for first in range(0, 50, 10):
            spread.append(rows[first : first + 10])
        keys = pa.RecordBatch.from_pylist([{"k": f"key-{number}"} for number in range(5)])
        home = dict(zip(range(5), partitions_of(key_bytes(keys, ("k",)), 4).tolist(), strict=True))
        expected: dict[int, list[int]] = {}
        for number in range(50):
            expected.setdefault(home[number % 5], []).append(number)
        assert by_partition(other.topic("spread").to_arrow()) == expected

    @promise(Promise.ORDERED)
    def test_rows_without_a_key_share_the_partitions(self, stem: Mainstem) -> None:
        topic = stem.create_topic("keyless", schema="n bigint", partitions=3)
        for number in range(12):
            topic.append([{"n": number}, {"n": number}])
        found = by_partition(topic.to_arrow())
        assert [sorted(found), [len(found[number]) for number in found]] == [[0, 1, 2], [8, 8, 8]]
        for held in found.values():
            assert held == sorted(held)

    @promise(Promise.ORDERED)
    def test_a_partition_can_be_chosen(self, spread: Topic) -> None:
        placed = spread.append([{"k": "a", "n": 1}, {"k": "b", "n": 2}], partition=3)
        assert dict(placed.offsets) == {3: (0, 2)}
        assert by_partition(spread.to_arrow()) == {3: [1, 2]}
        with pytest.raises(Invalid, match="has no partition 4"):
            spread.append([{"k": "a", "n": 1}], partition=4)

    @promise(Promise.ORDERED)
    def test_appends_of_several_processes_have_one_order(
        self, elsewhere: Callable[..., OtherProcess], single: Topic, other: Mainstem
    ) -> None:
        writers = [elsewhere(_append_some, name) for name in ("one", "two", "three")]
        for writer in writers:
            writer.hear()
        read = dicts(single.to_arrow())
        assert [row["record"]["offset"] for row in read] == list(range(90))
        for name in ("one", "two", "three"):
            assert [row["n"] for row in read if row["k"] == name] == list(range(30))
        assert dicts(other.topic("single").to_arrow()) == read

    @promise(Promise.DENSE_OFFSETS)
    def test_an_append_says_where_it_lies(self, spread: Topic) -> None:
        spread.append([{"k": "a", "n": 0}], partition=1)
        placed = spread.append([{"k": f"key-{number}", "n": number} for number in range(20)])
        lie = sorted((p, offset) for p, (first, end) in placed.offsets.items() for offset in range(first, end))
        assert sorted(places(spread.to_arrow())) == sorted([(1, 0), *lie])
        assert placed.count == 20
        assert max(row["record"]["appended_at"] for row in dicts(spread.to_arrow())) == placed.appended_at

    @promise(Promise.DENSE_OFFSETS)
    def test_every_offset_is_used_once_and_in_turn(self, spread: Topic, other: Mainstem) -> None:
        for topic in (spread, other.topic("spread")) * 5:
            topic.append([{"k": f"key-{number}", "n": number} for number in range(10)])
        found: dict[int, list[int]] = {}
        for partition, offset in places(spread.to_arrow()):
            found.setdefault(partition, []).append(offset)
        for offsets in found.values():
            assert offsets == list(range(len(offsets)))

    @promise(Promise.DENSE_OFFSETS)
    def test_an_append_of_nothing_takes_no_offset(self, single: Topic) -> None:
        for nothing in ([], TABLE.slice(0, 0).select([]), pa.table({"k": pa.array([], pa.string())})):
            assert single.append(nothing).count == 0
        fill(single, 1)
        assert places(single.to_arrow()) == [(0, 0)]

    # What is refused

    @promise(Promise.DENSE_OFFSETS)
    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ({"k": "a", "n": "seven"}, "n"),
            ({"k": "a", "n": 2**63}, "n"),
            ({"k": "a", "n": 1.5}, "n"),
            ({"k": "a", "m": 1}, "m"),
            ({"k": ["a"], "n": 1}, "k"),
            ("a row", "row 7"),
        ],
    )
    def test_an_append_is_checked_whole_before_anything_is_written(self, spread: Topic, bad: Any, says: str) -> None:
        rows = [{"k": f"key-{number}", "n": number} for number in range(20)]
        with pytest.raises(MainstemError) as refused:
            spread.append([*rows[:7], bad, *rows[7:]])
        assert f'"{says}"' in str(refused.value) or says in str(refused.value)
        assert refused.value.detail
        assert refused.value.hint
        assert len(spread.to_arrow()) == 0
        spread.append(rows)
        assert {offset for _, offset in places(spread.to_arrow())} >= {0}

    @promise(Promise.DENSE_OFFSETS)
    def test_a_row_is_named_that_cannot_be_taken(self, stem: Mainstem) -> None:
        topic = stem.create_topic("strict", schema="k string not null, n bigint", record_bytes_max=1000)
        for bad in ({"k": None, "n": 1}, {"n": 1}, {"k": "x" * 2000, "n": 1}):
            with pytest.raises(MainstemError, match="row 2"):
                topic.append([{"k": "a", "n": 1}, {"k": "b", "n": 2}, bad])
        assert len(topic.to_arrow()) == 0

    # Changes and headers

    @promise(Promise.CHANGES)
    def test_a_deletion_is_a_record_with_nothing_but_its_key(self, stem: Mainstem) -> None:
        orders = stem.create_topic("orders", schema=f"{SCHEMA}, n bigint not null", key="order_id")
        orders.append([{**row, "n": 1} for row in ORDERS])
        orders.delete(["o-2"])
        last = dicts(orders.to_arrow())[-1]
        record = last.pop("record")
        assert last == {"order_id": "o-2", "store": None, "amount": None, "placed_at": None, "n": None}
        assert (record["change"], record["offset"], record["headers"]) == ("delete", 3, None)
        assert changes(orders.to_arrow()) == ["insert"] * 3 + ["delete"]

    @promise(Promise.CHANGES)
    def test_keys_of_several_columns_are_deleted_by_tuple_or_dict(self, stem: Mainstem) -> None:
        topic = stem.create_topic("lines", schema="order_id string, line int, n bigint", key=["order_id", "line"])
        topic.delete([("o-1", 1), {"order_id": "o-1", "line": 2}])
        assert plain(topic.to_arrow()) == [
            {"order_id": "o-1", "line": 1, "n": None},
            {"order_id": "o-1", "line": 2, "n": None},
        ]
        with pytest.raises(MainstemError):
            topic.delete(["o-1"])

    @promise(Promise.CHANGES)
    def test_nothing_can_be_deleted_without_a_key(self, stem: Mainstem) -> None:
        topic = stem.create_topic("keyless", schema="n bigint")
        with pytest.raises(Invalid):
            topic.delete([1])

    @promise(Promise.CHANGES)
    def test_change_and_headers_go_with_their_row(self, single: Topic, other: Mainstem) -> None:
        headers = [{"key": "trace", "value": b"\0\x01"}, {"key": "trace", "value": b""}]
        single.append(
            [
                {"k": "a", "n": 1, "record": {"change": "update", "headers": headers}},
                {"k": "a", "n": 2},
                {"k": "a", "n": 3, "record": {"change": "delete", "headers": []}},
            ]
        )
        fill(single, 4)
        records = [row["record"] for row in dicts(other.topic("single").to_arrow())]
        assert [record["change"] for record in records] == ["update", "insert", "delete", "insert"]
        assert records[0]["headers"] == headers
        assert [record["headers"] or [] for record in records[1:]] == [[], [], []]

    @promise(Promise.CHANGES)
    def test_what_was_read_can_be_appended_elsewhere(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1, 2)
        single.delete(["a"])
        copy = stem.create_topic("copy", schema=single.schema, key="k")
        copy.append(single.to_arrow())
        assert (plain(copy.to_arrow()), changes(copy.to_arrow())) == (
            plain(single.to_arrow()),
            changes(single.to_arrow()),
        )

    @promise(Promise.CHANGES)
    def test_a_change_that_is_none_is_refused(self, single: Topic) -> None:
        with pytest.raises(MainstemError):
            single.append([{"k": "a", "n": 1, "record": {"change": "upsert"}}])
        assert len(single.to_arrow()) == 0

    @promise(Promise.SEEK_BY_TIME)
    def test_append_times_never_go_back(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        clock.set_by(timedelta(days=-2))
        fill(single, 2, 3)
        times = [row["record"]["appended_at"] for row in dicts(single.to_arrow())]
        assert times == sorted(times)
        assert times[2] - times[0] < timedelta(hours=1)


def _append_for_ever(stem: Mainstem, line: Line) -> None:
    topic = stem.create_topic("counted", schema="k string, n bigint", key="k")
    number = 0
    while True:
        fill(topic, number)
        line.say(number)
        number += 1


def _append_some(stem: Mainstem, line: Line, name: str) -> None:
    fill(stem.topic("single"), *range(30), key=name)
    line.say()
