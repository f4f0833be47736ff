"""What every view promises about its changes: told in order, whole, and kept for a while."""

from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import FellOff, Invalid
from tests.contracts.view_rows import RUN, SCHEMA, OpenView, recorded, replayed, rows, shown, told


class ViewChangesContract:
    """Its changes, and who follows them."""

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
