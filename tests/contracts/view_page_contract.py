"""What every view promises to those who read it by pages: each row once, in the order of keys, now and as it was."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Invalid
from mainstem.views.view import View
from tests.contracts.view_rows import RUN, SCHEMA, WINDOW, OpenView, recorded, rows

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ODD_TEXT = [
    "",
    " ",
    "'",
    '"',
    "%",
    "a",
    "A",
    "Zürich",
    "\U0001f980",
    "\uffff",
    "\u202eRTL",
    "a\x00b",
    "a\x00",
    "z" * 300,
]
# A value of a key for each type that it may have.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ODD_TEXT),
    "number": (pa.int64(), [-(2**63), -10, -9, 0, 9, 10, 2**63 - 1]),
    "small": (pa.int8(), [-128, -1, 0, 1, 127]),
    "truth": (pa.bool_(), [False, True]),
    "double": (pa.float64(), [float("-inf"), -1e300, -0.5, 0.0, 2.0, 10.0, float("inf"), float("nan")]),
    "float": (pa.float32(), [-0.5, 0.0, 0.1, 2.0, 10.0, float("nan")]),
    "decimal": (pa.decimal128(38, 2), [Decimal(text) for text in ("-10.00", "-9.50", "0.00", "2.00", f"{10**35}.01")]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\x00\xff", b"a", b"\xff"]),
    "day": (pa.date32(), [date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "hour": (pa.time64("us"), [time(0), time(9, 0, 0, 1), time(23, 59, 59, 999_999)]),
    "moment": (pa.timestamp("us", "UTC"), [NOON + timedelta(microseconds=step) for step in (-1, 0, 1)]),
    "local": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2026, 1, 1)]),  # noqa: DTZ001 - it has no zone
    "window": (WINDOW, [{"start": NOON + timedelta(minutes=step), "end": NOON + timedelta(minutes=step + 2)} for step in range(3)]),
    "list": (pa.list_(pa.int32()), [[], [1], [1, None], [2], [10]]),
    "struct": (pa.struct([("a", pa.string()), ("b", pa.int64())]), [{"a": None, "b": 1}, {"a": "x", "b": None}, {"a": "x", "b": 3}]),
}  # fmt: skip


def read_pages(view: View, limit: int, as_of: Any = None) -> pa.Table:
    """All pages, one after another."""
    pages = [view.page(limit=limit, as_of=as_of)]
    while pages[-1].after is not None:
        assert len(pages[-1].rows) == limit
        pages.append(view.page(after=pages[-1].after, limit=limit, as_of=as_of))
    return pa.concat_tables([page.rows for page in pages])


class ViewPageContract:
    """In the order of keys, as many rows as are asked for."""

    @pytest.mark.parametrize("kind", KEYS)
    def test_pages_are_its_rows_in_order_whatever_the_type_of_its_key(self, open_view: OpenView, kind: str) -> None:
        data_type, values = KEYS[kind]
        view = open_view("paged", key=["part", "value"], history="1 day")
        schema = pa.schema([("n", pa.int64()), ("value", data_type), ("part", pa.string())])
        table = pa.Table.from_pylist(
            [{"n": n, "part": part, "value": value} for n, value in enumerate(values) for part in ("a", "b")], schema
        )
        view.writer(RUN, schema).apply(table, Batch(0, RUN, {"orders": {0: 1}}))
        rows = view.to_arrow()
        assert len(rows) >= len(set(map(str, values))) - kind.count("text") * 2
        for limit in (1, 3, len(rows), len(rows) + 1):
            assert _text(read_pages(view, limit)) == _text(rows)
            assert _text(read_pages(view, limit, "orders@0:1")) == _text(rows)

    def test_a_page_begins_after_a_key_that_need_not_exist(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        assert (len(view.page().rows), view.page().after, view.page().rows.schema) == (0, None, SCHEMA)
        writer.apply(rows(Berlin=1, Lisbon=2, Osaka=3), Batch(0, RUN))
        page = view.page(limit=2)
        assert (page.rows, page.after) == (rows(Berlin=1, Lisbon=2), ("Lisbon",))
        writer.apply(rows(Kyoto=4, Quito=5), Batch(1, RUN))
        for after in ("Lisbon", ("Lisbon",), {"store": "Lisbon"}, "Lisbon\uffff", "M"):
            assert view.page(after=after).rows == rows(Osaka=3, Quito=5)
        assert view.page(after="Quito") == view.page(after="Z")
        assert view.page(limit=5).after is None
        assert view.page(after="", limit=1).rows == rows(Berlin=1)

    def test_what_is_no_key_is_refused(self, open_view: OpenView) -> None:
        view = open_view("revenue", key=["store", "amount"])
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN))
        for after in ("Berlin", ("Berlin",), ("Berlin", "one"), ("Berlin", None), {"store": "Berlin"}, ("\ud800", 1)):
            with pytest.raises(Invalid) as refused:
                view.page(after=after)
            assert refused.value.detail
            assert refused.value.hint
        for limit in (0, -1, "10", 1.5):
            with pytest.raises(Invalid, match="limit"):
                view.page(limit=limit)
        with pytest.raises(Invalid, match='view "revenue" keeps no history'):
            view.page(as_of="orders@0:1")

    def test_it_pages_the_live_version_only(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
        hidden = FlowRun("revenue", epoch=1, version=2)
        view.writer(hidden, SCHEMA).apply(rows(Berlin=9, Cairo=8), Batch(0, hidden))
        assert read_pages(view, 1) == rows(Berlin=1, Lisbon=2)
        view.use(2)
        assert read_pages(view, 1) == rows(Berlin=9, Cairo=8)

    def test_it_pages_what_it_was(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store", history="30 days")
        writer = view.writer(RUN, SCHEMA)
        names = [f"store-{number:02}" for number in range(12)]
        # Each batch inserts, updates and deletes; what was deleted comes back some batches later.
        for number in range(10):
            given = [
                (name, number, 0, place, "delete" if (place + number) % 3 == 0 else "insert")
                for place, name in enumerate(names)
                if (place * number) % 4 != 1
            ]
            writer.apply(recorded(*given), Batch(number, RUN, {"orders": {0: number + 1}}))
        for number in range(10):
            as_of = f"orders@0:{number + 1}"
            was = view.to_arrow(as_of=as_of)
            for limit in (1, 2, 5, 100):
                assert read_pages(view, limit, as_of) == was
        assert view.page(after="store-05", limit=1, as_of="orders@0:1").after == ("store-07",)


def _text(rows: pa.Table) -> list[str]:
    # NaN does not equal itself.
    return list(map(str, rows.to_pylist()))
