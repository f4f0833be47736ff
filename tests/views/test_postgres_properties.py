"""A view in PostgreSQL is a dict whatever happens to it, and takes rows of any schema, to the last bit."""

import math
from itertools import count
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Invalid
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.view import View
from tests.contracts.view_rows import OpenView
from tests.log.schema_strategies import SCHEMAS, rows_of
from tests.views.test_view_history_properties import STEPS as PAST_STEPS
from tests.views.test_view_history_properties import check_past
from tests.views.test_view_properties import STEPS, check_rows_come_back, check_steps, numbered

NAMES = (f"view_{number}" for number in count())
RUN = FlowRun("f", epoch=1)
# A view is made and dropped in each: so fewer of them than where that is a file.
FEW = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.fixture
def open_view(tmp_path: Path, views_address: str) -> OpenView:
    return lambda name, **settings: View(tmp_path, name, backend=PostgresBackend(views_address), **settings)


@FEW
@given(steps=STEPS)
def test_a_view_is_a_dict_whatever_happens_to_it(open_view: OpenView, steps: list[tuple]) -> None:
    view = open_view(next(NAMES), key="store")
    check_steps(view, steps)
    view.drop()


@FEW
@given(steps=PAST_STEPS)
def test_as_of_every_batch_it_is_what_it_was(open_view: OpenView, steps: list[tuple]) -> None:
    name = next(NAMES)
    check_past(lambda **settings: open_view(name, **settings), steps)
    open_view(name).drop()


@FEW
@given(case=SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), rows_of(schema))))
def test_rows_of_any_schema_come_back_as_they_were(open_view: OpenView, case: tuple[pa.Schema, list[dict]]) -> None:
    table = numbered(*case)
    view = open_view(next(NAMES), key="number of row", history="1 day")
    # The one character that PostgreSQL has not, where it would stand in a text of its own.
    kept = [n for n, row in enumerate(case[1]) if not any(isinstance(one, str) and "\0" in one for one in row.values())]
    check_rows_come_back(view, table, kept)
    view.drop()


def test_values_at_the_edges_come_back_and_beyond_them_are_rejected(open_view: OpenView) -> None:
    # From the first day of the year 1 to the last one of 9999: the years that everybody can read.
    days = pa.array([2_932_896, -719_162, 0, 2_932_897, -719_163, None], pa.int32()).cast(pa.date32())
    moments = pa.array([LAST, FIRST, 0, 1, 2, FIRST - 1], pa.int64())
    columns = {
        "n": pa.array(range(6), pa.int64()),
        "day": days,
        "moment": moments.cast(pa.timestamp("us", "UTC")),
        "local": moments.cast(pa.timestamp("us")),
        "single": pa.array([math.nan, math.inf, -0.0, None, 2.0**-149, -math.inf], pa.float32()),
        "double": pa.array([-0.0, math.nan, -math.inf, None, 5e-324, math.inf], pa.float64()),
        "decimal": pa.array(["9" * 38, "-" + "9" * 38, "0", None, "1", "-1"], pa.string()).cast(pa.decimal128(38, 0)),
        "text": ["é", "\ufffd\U0010ffff", "", None, "\\N\t\n", "'"],
        "bytes": pa.array([b"\0\xff", b"", None, b"\\", b"x", b"y"], pa.binary()),
    }
    # Also what is said of a field may hold any character.
    inner = pa.struct([pa.field("text", pa.string(), metadata={"comment": "a\0b"})])
    columns["inner"] = pa.array([{"text": "a\0b"}, None, {"text": None}] * 2, inner)
    table = pa.table(columns)
    view = open_view("edges", key="n")
    written = view.writer(RUN, table.schema).apply(table, Batch(0, RUN))
    assert [(one.row, one.reason) for one in written.rejections] == [
        (3, 'column "day" cannot be read: its year is not one of 1 to 9999'),
        (4, 'column "day" cannot be read: its year is not one of 1 to 9999'),
        (5, 'column "moment" cannot be read: its year is not one of 1 to 9999'),
    ]
    found = view.to_arrow()
    for name in table.schema.names:
        number = pa.int32() if name == "day" else pa.int64() if name in ("moment", "local") else None
        was, became = (one.column(name).slice(0, 3) for one in (table, found))
        if number is not None:
            was, became = was.cast(number), became.cast(number)
        assert repr(became.to_pylist()) == repr(was.to_pylist()), name


def test_keys_that_no_index_takes_are_rejected_and_asked_for_in_vain(open_view: OpenView) -> None:
    schema = pa.schema({"place": pa.string(), "kind": pa.binary(), "n": pa.int64()})
    view = open_view("places", key=["place", "kind"])
    long = "x" * 1_301
    rows = pa.table([["a\0b", "a", long, long[1:]], [b"k"] * 4, [1, 2, 3, 4]], schema=schema)
    written = view.writer(RUN, schema).apply(rows, Batch(0, RUN))
    assert [(one.row, one.reason) for one in written.rejections] == [
        (0, 'column "place" has the character U+0000, which PostgreSQL cannot store'),
        (2, 'column "place" is in the key and longer than 1,300 bytes, which PostgreSQL cannot store'),
    ]
    assert view.get((long[1:], b"k")) == {"place": long[1:], "kind": b"k", "n": 4}
    assert [view.get((key, b"k")) for key in ("a\0b", long, "b")] == [None, None, None]


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("v" * 64, "n", "its name has 64 characters"),
        ("revenue", "xmin", 'it has a column "xmin"'),
        ("revenue", "ü" * 32, "is too long"),
    ],
)
def test_names_that_postgresql_has_no_place_for_are_refused(
    open_view: OpenView, name: str, column: str, says: str
) -> None:
    view = open_view(name, key="key")
    with pytest.raises(Invalid, match=says) as refused:
        view.accept(pa.schema({"key": pa.string(), column: pa.int64()}))
    assert refused.value.hint
    assert not view.exists


@pytest.mark.parametrize("name", ["Select", "eu.payments-2", "table", "v" * 63])
def test_no_name_and_no_value_is_taken_for_sql(open_view: OpenView, views_address: str, name: str) -> None:
    tricks = [
        'a"; DROP TABLE mainstem_views; --',
        "'; DROP SCHEMA public; --",
        "$1",
        "%s",
        "select",
        "a.b",
        "\\",
        "é",
    ]
    columns = pa.schema({trick: pa.string() for trick in tricks})
    view = open_view(name, key=tricks[:2])
    writer = view.writer(RUN, columns)
    row = dict(zip(tricks, tricks, strict=True))
    writer.apply(pa.Table.from_pylist([row], columns), Batch(0, RUN, {tricks[0]: {0: 1}}))
    assert view.to_arrow().to_pylist() == [row]
    assert view.get(tuple(tricks[:2])) == row
    assert view.describe().live.bytes > 0
    second = FlowRun("f", epoch=1, version=2)
    view.writer(second, columns).apply(pa.Table.from_pylist([{**row, "$1": "2"}], columns), Batch(0, second))
    view.use(2)
    assert [change["$1"] for change in view.changes(1).rows.to_pylist()] == ["$1", "2"]
    with psycopg.connect(views_address) as anyone:
        shown = anyone.execute(f'SELECT * FROM "{name}"').fetchall()
    assert shown == [tuple("2" if trick == "$1" else trick for trick in tricks)]
    view.drop()
    assert not view.exists
