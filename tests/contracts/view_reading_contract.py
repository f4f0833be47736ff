"""What every view promises to those who ask: a key, SQL, a token, a file."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Invalid, NotYet
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.view_rows import RUN, SCHEMA, WINDOW, OpenView, rows


class ViewReadingContract:
    """Asked by everyone, while it is written."""

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

    def test_sql_over_a_view_only_reads_and_has_limits(self, open_view: OpenView, tmp_path: Path) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        secret, new = tmp_path / "secret.csv", tmp_path / "new.parquet"
        secret.write_text("a\nhidden\n")
        for sql in (
            "DELETE FROM revenue",
            f"COPY revenue TO '{new}'",
            f"WITH a AS (COPY (SELECT 1) TO '{new}' (use_tmp_file false)) SELECT 1",
            f"ATTACH '{new}' AS other",
            f"SELECT content FROM read_text('{secret}')",
            f"SELECT * FROM '{secret}'",
            "SELECT 1; SELECT 2",
        ):
            with pytest.raises(Invalid):
                view.query(sql)
        assert not new.exists()
        with pytest.raises(Invalid, match="the result has more than 1 rows"):
            view.query("SELECT store FROM revenue", rows_max=1)
        with pytest.raises(Invalid, match="the query took longer than"):
            view.query("SELECT sum(1) FROM range(100000000) a, range(100000000) b", timeout="100 milliseconds")

    def test_a_read_after_a_token_sees_that_append_or_names_what_is_missing(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN, {"orders": {0: 5, 1: 2}, "returns": {0: 1}}))
        assert view.get("Berlin", after="orders@0:5,1:2;returns@0:1") == {"store": "Berlin", "amount": 1}
        assert view.get("Berlin", after="orders@0:4,2:0") == {"store": "Berlin", "amount": 1}
        with pytest.raises(NotYet) as missing:
            view.get("Berlin", after="orders@0:5,1:3;payments@0:7", wait="0 seconds")
        assert missing.value.missing == {"orders": {1: (2, 3)}, "payments": {0: (0, 7)}}
        assert "orders[1] is applied up to 2, required is 3" in missing.value.detail
        assert "payments[0] is applied up to 0, required is 7" in missing.value.detail

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


def _apply_when_told(view: View, line: Line) -> None:
    run = FlowRun("revenue", epoch=2)
    writer = view.writer(run, SCHEMA)
    line.say()
    line.hear()
    writer.apply(rows(Berlin=9), Batch(0, run, {"orders": {0: 9}}))
