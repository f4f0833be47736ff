"""What every view promises to the flow that writes it: each batch once, by one run of one flow."""

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Conflict, Fenced
from tests.contracts.view_rows import RUN, SCHEMA, OpenView, recorded, rows, shown


class ViewWritingContract:
    """Written batch by batch."""

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
        assert writer.committed_batch == -1
        writer.apply(rows(Berlin=1), Batch(0, RUN))
        writer.apply(rows(Berlin=2), Batch(1, RUN))
        again = view.writer(FlowRun("revenue", epoch=2), SCHEMA)
        assert (again.committed_batch, again.holds(1), again.holds(2)) == (1, True, False)
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
