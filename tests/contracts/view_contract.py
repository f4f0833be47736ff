"""What every view promises, whatever keeps it. A backend passes it whole with one fixture, `open_view`."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mainstem.errors import Conflict, FellOff, Fenced, Invalid, InvalidName, NotYet, SchemaMismatch, ViewNotFound
from mainstem.log_on_spark.flow_run import Batch, FlowRun
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess

OpenView = Callable[..., View]

SCHEMA = pa.schema({"store": pa.string(), "amount": pa.int64()})
RUN = FlowRun("revenue", epoch=1)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])


def rows(**amounts: int | None) -> pa.Table:
    """A row for each store."""
    return pa.table({"store": list(amounts), "amount": pa.array(amounts.values(), pa.int64())}, schema=SCHEMA)


def recorded(*given: tuple[str | None, int | None, int, int, str]) -> pa.Table:
    """Rows with a record: store, amount, partition, offset, change."""
    record = [{"partition": row[2], "offset": row[3], "change": row[4]} for row in given]
    kind = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("change", pa.string())])
    return pa.table(
        {
            "store": pa.array([row[0] for row in given], pa.string()),
            "amount": pa.array([row[1] for row in given], pa.int64()),
            "record": pa.array(record, kind),
        }
    )


def shown(view: View) -> dict[Any, Any]:
    """All rows, amount by store."""
    return dict(zip(*view.to_arrow().to_pydict().values(), strict=True))


def told(table: pa.Table) -> list[tuple[str, str, int]]:
    """Changes as (change, store, amount)."""
    return [(row["record"]["change"], row["store"], row["amount"]) for row in table.to_pylist()]


def replayed(start: dict[str, int], table: pa.Table) -> dict[str, int]:
    """What changes make of rows; each delete must find the row that it deletes."""
    found = dict(start)
    for change, store, amount in told(table):
        if change == "delete":
            assert found.pop(store) == amount
        else:
            assert store not in found
            found[store] = amount
    return found


class ViewContract:
    """A keyed table: written batch by batch, once each, and read by everyone meanwhile."""

    # Being there

    def test_a_view_may_be_named_before_it_is_there_and_then_says_what_to_do(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        assert not view.exists
        for ask in (view.to_arrow, view.describe, view.versions, view.drop, lambda: view.get("Berlin"),
                    lambda: next(view.subscribe())):  # fmt: skip
            with pytest.raises(ViewNotFound, match='view "revenue" does not exist') as missing:
                ask()
            assert missing.value.detail
            assert "flow" in missing.value.hint
        view.writer(RUN, SCHEMA)
        with pytest.raises(ViewNotFound) as missing:
            open_view("revenu").to_arrow()
        assert 'Did you mean "revenue"?' in missing.value.hint

    def test_the_key_may_be_left_out_for_a_view_that_is_there_and_another_is_a_conflict(
        self, open_view: OpenView
    ) -> None:
        open_view("revenue", key=["store"]).writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN))
        assert open_view("revenue").get("Berlin") == {"store": "Berlin", "amount": 1}
        assert open_view("revenue").key == ("store",)
        with pytest.raises(Conflict, match="has the key store") as refused:
            open_view("revenue", key=["amount"])
        assert 'stem.view("revenue")' in refused.value.hint

    def test_two_that_named_it_before_it_was_there_cannot_both_make_it_with_other_keys(
        self, open_view: OpenView
    ) -> None:
        first, second = open_view("revenue", key="store"), open_view("revenue", key="amount")
        first.writer(RUN, SCHEMA)
        with pytest.raises(Conflict, match="has the key store"):
            second.writer(RUN, SCHEMA)

    @pytest.mark.parametrize("name", ["", "../up", "a/b", "mainstem.own", ".hidden"])
    def test_a_name_that_could_be_a_trick_is_refused(self, open_view: OpenView, name: str) -> None:
        with pytest.raises(InvalidName):
            open_view(name, key="store")

    @pytest.mark.parametrize(
        ("key", "schema", "says"),
        [
            (None, SCHEMA, "has no key"),
            ("shop", SCHEMA, "no such column"),
            ("store", pa.schema({"store": pa.map_(pa.string(), pa.int64())}), "which is a map"),
            ("store", pa.schema({"store": pa.string(), "d": pa.duration("s")}), "duration"),
            ("c0", pa.schema({f"c{n}": pa.int64() for n in range(901)}), "901 columns"),
        ],
    )
    def test_rows_that_it_cannot_take_are_refused_before_anything_is_made(
        self, open_view: OpenView, key: str | None, schema: pa.Schema, says: str
    ) -> None:
        view = open_view("revenue", key=key)
        for ask in (lambda: view.accept(schema), lambda: view.writer(RUN, schema)):
            with pytest.raises(Invalid, match=says) as refused:
                ask()
            assert refused.value.detail
            assert refused.value.hint
        assert not view.exists

    def test_other_columns_than_it_has_are_refused_with_what_to_do(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA)
        view.accept(SCHEMA)
        view.accept(pa.schema([SCHEMA.field("amount"), SCHEMA.field("store")]))
        for other in (
            SCHEMA.append(pa.field("note", pa.string())),
            pa.schema({"store": pa.string()}),
            pa.schema({"store": pa.string(), "amount": pa.string()}),
        ):
            with pytest.raises(SchemaMismatch) as refused:
                view.accept(other)
            assert refused.value.hint
        view.accept(SCHEMA.append(pa.field("note", pa.string())), version=2)

    def test_a_dropped_view_is_gone_for_everyone_and_can_be_made_anew(self, open_view: OpenView) -> None:
        view, other = open_view("revenue", key="store"), open_view("revenue")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN))
        assert other.get("Berlin")
        cursor = next(other.subscribe()).cursor
        view.drop()
        assert not other.exists
        with pytest.raises(ViewNotFound):
            other.get("Berlin")
        with pytest.raises(ViewNotFound, match="was dropped while"):
            writer.apply(rows(Berlin=2), Batch(1, RUN))
        open_view("revenue", key="store").writer(RUN, SCHEMA).apply(rows(Lisbon=7), Batch(0, RUN))
        assert shown(other) == {"Lisbon": 7}
        with pytest.raises(ViewNotFound, match="was dropped while"):
            writer.apply(rows(Berlin=2), Batch(1, RUN))
        with pytest.raises(FellOff, match="that was dropped"):
            next(other.subscribe(cursor))

    # Being written

    def test_rows_are_kept_by_key_and_the_last_one_counts(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        written = writer.apply(pa.concat_tables([rows(Berlin=1, Lisbon=2), rows(Berlin=3)]), Batch(0, RUN))
        assert (written.rows, written.rejected, written.changes) == (2, 0, 2)
        assert shown(view) == {"Berlin": 3, "Lisbon": 2}
        writer.apply(rows(Lisbon=5, Osaka=6), Batch(1, RUN))
        assert shown(view) == {"Berlin": 3, "Lisbon": 5, "Osaka": 6}

    def test_where_rows_have_a_record_the_latest_by_partition_and_offset_counts(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        given = recorded(
            ("Berlin", 3, 0, 12, "update"),
            ("Berlin", 1, 0, 10, "insert"),
            ("Lisbon", 8, 1, 4, "insert"),
            ("Berlin", 2, 0, 11, "update"),
        )
        writer.apply(given, Batch(0, RUN))
        assert shown(view) == {"Berlin": 3, "Lisbon": 8}
        # A delete and what came before and after it, in any order.
        writer.apply(
            recorded(
                ("Berlin", None, 0, 20, "delete"),
                ("Lisbon", 9, 1, 31, "insert"),
                ("Lisbon", None, 1, 30, "delete"),
                ("Quito", None, 1, 40, "delete"),
            ),
            Batch(1, RUN),
        )
        assert shown(view) == {"Lisbon": 9}

    def test_rows_that_do_not_fit_are_given_back_with_their_reason_and_the_others_are_kept(
        self, open_view: OpenView
    ) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, pa.schema({"store": pa.string(), "amount": pa.int8()}))
        given = pa.table({"store": ["Berlin", None, "Lisbon", "Osaka"], "amount": [1, 2, 300, 4]})
        written = writer.apply(given, Batch(0, RUN))
        assert (written.rows, written.rejected) == (2, 2)
        assert [(bad.row, bad.reason) for bad in written.rejections] == [
            (1, 'column "store" is null, and is in the key'),
            (2, '300 does not fit column "amount", which is TINYINT'),
        ]
        assert shown(view) == {"Berlin": 1, "Osaka": 4}
        assert view.last_position() == 2

    def test_a_batch_that_it_holds_changes_nothing(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        assert writer.held == -1
        writer.apply(rows(Berlin=1), Batch(0, RUN))
        writer.apply(rows(Berlin=2), Batch(1, RUN))
        again = view.writer(FlowRun("revenue", epoch=2), SCHEMA)
        assert (again.held, again.holds(1), again.holds(2)) == (1, True, False)
        for number in (0, 1):
            assert again.apply(rows(Berlin=9, Quito=9), Batch(number, again.run)).rows == 0
        assert shown(view) == {"Berlin": 2}
        again.apply(rows(Berlin=3), Batch(2, again.run))
        assert shown(view) == {"Berlin": 3}

    def test_an_empty_batch_is_held_too(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(), Batch(4, RUN, {"orders": {0: 9}}))
        assert view.writer(RUN, SCHEMA).holds(4)
        assert view.offsets() == {"orders": {0: 9}}

    def test_an_older_run_is_fenced_as_soon_as_a_newer_one_has_begun(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        older = view.writer(RUN, SCHEMA)
        older.apply(rows(Berlin=1), Batch(0, RUN))
        newer = view.writer(FlowRun("revenue", epoch=2), SCHEMA)
        with pytest.raises(Fenced) as fenced:
            older.apply(rows(Berlin=2), Batch(1, RUN))
        assert (fenced.value.epoch, fenced.value.current_epoch) == (1, 2)
        with pytest.raises(Fenced):
            view.writer(RUN, SCHEMA)
        assert shown(view) == {"Berlin": 1}
        newer.apply(rows(Berlin=3), Batch(1, newer.run))
        assert shown(view) == {"Berlin": 3}

    def test_a_second_flow_is_refused(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA)
        with pytest.raises(Conflict, match='is written by flow "revenue"'):
            view.writer(FlowRun("spending", epoch=1), SCHEMA)

    # Being asked

    def test_a_row_is_found_by_its_key_given_as_value_tuple_or_dict(self, open_view: OpenView) -> None:
        view = open_view("per_window", key=["window", "store"])
        schema = pa.schema([("store", pa.string()), ("n", pa.int64()), ("window", WINDOW)])
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        window = {"start": noon, "end": noon + timedelta(minutes=5)}
        table = pa.Table.from_pylist([{"window": window, "store": "Berlin", "n": 3}], schema=schema)
        view.writer(FlowRun("f", 1), schema).apply(table, Batch(0, FlowRun("f", 1)))
        for key in ((window, "Berlin"), {"store": "Berlin", "window": window}):
            assert view.get(key) == {"store": "Berlin", "n": 3, "window": window}
        assert view.get((window, "Lisbon")) is None
        for key in ("Berlin", (window,), {"store": "Berlin"}, (window, 7), ("Berlin", window)):
            with pytest.raises(Invalid) as refused:
                view.get(key)
            assert refused.value.hint

    def test_sql_sees_all_of_it_as_a_table_of_its_name(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2, Osaka=4), Batch(0, RUN))
        answer = view.query("SELECT sum(amount) AS total FROM revenue WHERE amount > ?", [1])
        assert answer.to_pylist() == [{"total": 6}]
        with pytest.raises(Invalid, match="cannot be run") as refused:
            view.query("SELECT revenues FROM revenue")
        assert "store, amount" in refused.value.hint

    def test_a_read_after_a_token_sees_that_append_or_names_what_is_missing(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN, {"orders": {0: 5, 1: 2}, "returns": {0: 1}}))
        assert view.get("Berlin", after="orders@0:5,1:2;returns@0:1") == {"store": "Berlin", "amount": 1}
        assert view.get("Berlin", after="orders@0:4,2:0") == {"store": "Berlin", "amount": 1}
        with pytest.raises(NotYet) as missing:
            view.get("Berlin", after="orders@0:5,1:3;payments@0:7", wait="0 seconds")
        assert missing.value.missing == {"orders": {1: (2, 3)}, "payments": {0: (0, 7)}}
        assert "orders[1] is applied up to 2, asked for was 3" in missing.value.detail
        assert "payments[0] is applied up to 0, asked for was 7" in missing.value.detail

    def test_a_read_that_waits_is_woken_by_the_commit_of_another_process(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA)
        other = OtherProcess(lambda: nullcontext(open_view("revenue")), _apply_when_told)
        try:
            other.hear()
            other.say()
            found = view.get("Berlin", after="orders@0:9", wait="1 minute")
            assert found == {"store": "Berlin", "amount": 9}
            other.end()
        finally:
            other.close()

    def test_exported_rows_are_a_parquet_file_of_one_moment(self, open_view: OpenView, tmp_path: Any) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        path = view.export(tmp_path / "exports")
        writer.apply(rows(Berlin=9), Batch(1, RUN))
        assert pa.parquet.read_table(path).equals(rows(Berlin=1, Lisbon=2))
        assert view.export(tmp_path / "exports") != path

    # What changes

    def test_changes_lead_from_nothing_to_what_is_there_and_an_update_is_delete_and_insert(
        self, open_view: OpenView
    ) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        # Berlin is as it was: that is no change.
        assert writer.apply(rows(Berlin=1, Lisbon=3), Batch(1, RUN)).changes == 1
        writer.apply(recorded(("Berlin", None, 0, 5, "delete"), ("Quito", None, 0, 6, "delete")), Batch(2, RUN))
        changes = view.changes()
        assert told(changes.rows) == [
            ("insert", "Berlin", 1),
            ("insert", "Lisbon", 2),
            ("delete", "Lisbon", 2),
            ("insert", "Lisbon", 3),
            ("delete", "Berlin", 1),
        ]
        assert replayed({}, changes.rows) == shown(view)
        assert (changes.start, changes.end, view.last_position()) == (0, 4, 4)
        offsets = changes.rows.column("record").combine_chunks().field("offset").to_pylist()
        assert offsets == sorted(set(offsets))

    def test_any_range_of_positions_gives_the_same_changes_again_and_never_half_an_update(
        self, open_view: OpenView
    ) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        for number in range(6):
            writer.apply(rows(Berlin=number, Lisbon=-number), Batch(number, RUN))
        whole = view.changes_between(0, 12, 100)
        assert told(whole.rows)[:4] == [("insert", "Berlin", 0), ("insert", "Lisbon", 0), ("delete", "Berlin", 0),
                                        ("insert", "Berlin", 1)]  # fmt: skip
        position, pieces = 0, []
        while position < 12:
            piece = view.changes_between(position, 12, 1)
            assert piece.end == position + 1
            position = piece.end
            pieces.append(piece.rows)
        assert pa.concat_tables(pieces).equals(whole.rows)
        writer.apply(rows(Berlin=99), Batch(6, RUN))
        assert view.changes_between(0, 12, 100).rows.equals(whole.rows)
        assert view.changes_between(3, 3, 100).rows.num_rows == 0

    def test_a_subscription_gives_all_rows_then_every_change_and_goes_on_from_any_cursor(
        self, open_view: OpenView
    ) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        live = view.subscribe()
        snapshot = next(live)
        assert (snapshot.kind, snapshot.rows.to_pydict()) == ("snapshot", rows(Berlin=1, Lisbon=2).to_pydict())
        writer.apply(rows(Berlin=5), Batch(1, RUN))
        first = next(live)
        assert (first.kind, told(first.rows)) == ("changes", [("delete", "Berlin", 1), ("insert", "Berlin", 5)])
        writer.apply(rows(Quito=6), Batch(2, RUN))
        second = next(live)
        assert told(second.rows) == [("insert", "Quito", 6)]
        live.close()
        (resumed,) = open_view("revenue").subscribe(snapshot.cursor, wait="0 seconds")
        assert told(resumed.rows) == told(first.rows) + told(second.rows)
        (resumed,) = open_view("revenue").subscribe(first.cursor, wait="0 seconds")
        assert (told(resumed.rows), resumed.cursor) == (told(second.rows), second.cursor)
        assert list(view.subscribe(second.cursor, wait="0 seconds")) == []
        for cursor in ("", "17", "x@y", "orders@0:7"):
            with pytest.raises(Invalid, match="is not a cursor"):
                next(view.subscribe(cursor))

    def test_changes_that_are_no_longer_kept_are_named(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store", changes_max=3)
        writer = view.writer(RUN, SCHEMA)
        cursor = next(view.subscribe()).cursor
        for number in range(8):
            writer.apply(rows(Berlin=number), Batch(number, RUN))
        with pytest.raises(FellOff) as lost:
            next(view.subscribe(cursor))
        assert (lost.value.first_lost, lost.value.last_lost) == (1, 5)
        assert "without a cursor" in lost.value.hint
        assert told(view.changes(5).rows)[0] == ("delete", "Berlin", 4)
        assert (view.describe().first_position, view.describe().last_position) == (5, 8)
        # More from now on: what is gone stays so.
        run = FlowRun("revenue", epoch=2)
        writer = open_view("revenue", key="store", changes_max=100).writer(run, SCHEMA)
        for number in range(8, 20):
            writer.apply(rows(Berlin=number), Batch(number, run))
        assert view.changes(5).end == 20

    def test_changes_are_kept_for_a_time_and_the_last_one_always(self, open_view: OpenView, clock: Any) -> None:
        view = open_view("revenue", key="store", changes_age="1 hour")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=1), Batch(0, RUN))
        clock.advance("59 minutes")
        writer.apply(rows(Berlin=2), Batch(1, RUN))
        assert view.changes(0).end == 3
        clock.advance("2 minutes")
        writer.apply(rows(Berlin=3), Batch(2, RUN))
        with pytest.raises(FellOff):
            view.changes(0)
        assert view.changes(2).end == 4
        clock.advance("2 hours")
        writer.apply(rows(Berlin=4), Batch(3, RUN))
        assert told(view.changes(4).rows) == [("delete", "Berlin", 3), ("insert", "Berlin", 4)]
        clock.advance("2 hours")
        writer.apply(rows(Berlin=4), Batch(4, RUN))
        assert view.last_position() == 5

    # Versions

    def test_a_version_is_built_beside_the_live_one_compared_and_put_to_use(self, open_view: OpenView) -> None:
        view, other = open_view("revenue", key="store"), open_view("revenue")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2, Osaka=3), Batch(0, RUN))
        second = FlowRun("revenue", epoch=1, version=2)
        view.writer(second, SCHEMA).apply(rows(Berlin=1, Lisbon=5, Quito=6), Batch(0, second))
        assert shown(other) == {"Berlin": 1, "Lisbon": 2, "Osaka": 3}
        difference = view.difference(1, 2)
        assert (difference.same, difference.changed, difference.added, difference.removed) == (1, 1, 1, 1)
        assert difference.changed_rows == [({"store": "Lisbon", "amount": 2}, {"store": "Lisbon", "amount": 5})]
        assert difference.added_rows == [{"store": "Quito", "amount": 6}]
        assert difference.removed_rows == [{"store": "Osaka", "amount": 3}]
        view.use(2)
        assert shown(other) == {"Berlin": 1, "Lisbon": 5, "Quito": 6}
        assert [(version.number, version.live, version.rows) for version in view.versions()] == [
            (1, False, 3),
            (2, True, 3),
        ]
        view.use(1)
        assert shown(other) == {"Berlin": 1, "Lisbon": 2, "Osaka": 3}
        view.use(1)

    def test_a_difference_shows_the_first_ten_of_each_kind(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(**{f"s{n:02}": n for n in range(25)}), Batch(0, RUN))
        second = FlowRun("revenue", epoch=1, version=2)
        view.writer(second, SCHEMA).apply(rows(**{f"s{n:02}": -1 for n in range(12, 40)}), Batch(0, second))
        found = view.difference(1, 2)
        assert (found.same, found.changed, found.added, found.removed) == (0, 13, 15, 12)
        assert [row["store"] for row in found.removed_rows] == [f"s{n:02}" for n in range(10)]
        assert [new["store"] for _, new in found.changed_rows] == [f"s{n:02}" for n in range(12, 22)]
        assert [row["store"] for row in found.added_rows] == [f"s{n:02}" for n in range(25, 35)]

    def test_who_follows_gets_the_difference_when_another_version_is_used(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        first = view.writer(RUN, SCHEMA)
        first.apply(rows(Berlin=1, Lisbon=2, Osaka=3), Batch(0, RUN))
        start = next(view.subscribe())
        second = FlowRun("revenue", epoch=1, version=2)
        writer = view.writer(second, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=5, Quito=6), Batch(0, second))
        first.apply(rows(Berlin=7), Batch(1, RUN))
        view.use(2)
        writer.apply(rows(Quito=8), Batch(1, second))
        # Written by one who does not know yet; no reader sees it.
        first.apply(rows(Berlin=0, Tunis=0), Batch(2, RUN))
        state = {"Berlin": 1, "Lisbon": 2, "Osaka": 3}
        cursor = start.cursor
        for update in view.subscribe(cursor, wait="0 seconds"):
            state, cursor = replayed(state, update.rows), update.cursor
        assert state == shown(view) == {"Berlin": 1, "Lisbon": 5, "Quito": 8}
        again = view.changes_between(0, view.last_position(), 1000)
        while again.end < view.last_position():
            again = view.changes_between(again.end, view.last_position(), 1000)
        view.use(1)
        for update in view.subscribe(cursor, wait="0 seconds"):
            state = replayed(state, update.rows)
        assert state == shown(view) == {"Berlin": 0, "Lisbon": 2, "Osaka": 3, "Tunis": 0}

    def test_a_version_may_have_other_columns(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        cursor = next(view.subscribe()).cursor
        wider = SCHEMA.append(pa.field("note", pa.string()))
        second = FlowRun("revenue", epoch=1, version=2)
        given = rows(Berlin=1, Lisbon=2).append_column("note", pa.array([None, "new"]))
        view.writer(second, wider).apply(given, Batch(0, second))
        difference = view.difference(1, 2)
        assert (difference.same, difference.changed) == (1, 1)
        view.use(2)
        assert view.schema.names == ["store", "amount", "note"]
        (update,) = view.subscribe(cursor, wait="0 seconds")
        assert [row["note"] for row in update.rows.to_pylist()] == [None, "new"]
        # Another type: what was cannot be shown as a row of what is.
        third = FlowRun("revenue", epoch=1, version=3)
        other = pa.schema({"store": pa.string(), "amount": pa.string()})
        view.writer(third, other).apply(pa.table({"store": ["a"], "amount": ["x"]}), Batch(0, third))
        view.use(3)
        with pytest.raises(FellOff):
            next(view.subscribe(cursor))
        assert shown(view) == {"a": "x"}

    def test_a_version_that_is_not_live_can_be_dropped_and_its_changes_with_it(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN))
        with pytest.raises(Conflict, match="is the live one"):
            view.drop_version(1)
        cursor = next(view.subscribe()).cursor
        made = view.new_version()
        assert made == 2
        for ask in (lambda: view.use(7), lambda: view.drop_version(7), lambda: view.difference(1, 7)):
            with pytest.raises(ViewNotFound, match="has no version 7"):
                ask()
        view.use(made)
        assert shown(view) == {}
        position = view.last_position()
        view.drop_version(1)
        assert [version.number for version in view.versions()] == [2]
        assert view.changes(position).rows.num_rows == 0
        assert told(view.changes(1).rows) == [("delete", "Berlin", 1)]
        with pytest.raises(FellOff):
            view.changes(0)
        assert told(next(view.subscribe(cursor)).rows) == [("delete", "Berlin", 1)]


def _apply_when_told(view: View, line: Line) -> None:
    run = FlowRun("revenue", epoch=2)
    writer = view.writer(run, SCHEMA)
    line.say()
    line.hear()
    writer.apply(rows(Berlin=9), Batch(0, run, {"orders": {0: 9}}))
