"""What every view promises about its versions: built beside the live one, compared, put to use, dropped."""

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Conflict, FellOff, ViewNotFound
from tests.contracts.view_rows import RUN, SCHEMA, OpenView, replayed, rows, shown, told


class ViewVersionsContract:
    """One version is live; others lie beside it."""

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
        page = view.difference(1, 2, limit=3, skip=11)
        assert (page.same, page.changed, page.added, page.removed) == (0, 13, 15, 12)
        assert [row["store"] for row in page.removed_rows] == ["s11"]
        assert [new["store"] for _, new in page.changed_rows] == ["s23", "s24"]
        assert [row["store"] for row in page.added_rows] == ["s36", "s37", "s38"]

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
