"""The canonical JSON of values: the vectors of RFC 8785, and that it is JSON."""

import datetime as dt
import json
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.rows.canonical_json import canonical_json, canonical_json_of_rows


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        # RFC 8785, appendix B.
        (0x0000000000000000, "0"),
        (0x8000000000000000, "0"),
        (0x0000000000000001, "5e-324"),
        (0x8000000000000001, "-5e-324"),
        (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
        (0x4340000000000000, "9007199254740992"),
        (0xC340000000000000, "-9007199254740992"),
        (0x4430000000000000, "295147905179352830000"),
        (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
        (0x44B52D02C7E14AF6, "1e+23"),
        (0x444B1AE4D6E2EF50, "1e+21"),
        (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
        (0x3EB0C6F7A0B5ED8D, "0.000001"),
        (0x41B3DE4355555553, "333333333.3333332"),
        (0x43143FF3C1CB0959, "1424953923781206.2"),
    ],
)
def test_doubles_are_written_as_rfc_8785_says(bits: int, text: str) -> None:
    (number,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    assert canonical_json(pa.array([number])).to_pylist() == [text]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([True]), "true"),
        (pa.array([-7], pa.int8()), "-7"),
        (pa.array([1.0]), "1"),
        (pa.array([float("nan")]), '"NaN"'),
        (pa.array([float("-inf")]), '"-Infinity"'),
        (pa.array([Decimal("1.50")]), "1.50"),
        (pa.array([Decimal("0.0000001")]), "0.0000001"),
        (pa.array(['a"\\\n\x1f\x7fé']), '"a\\"\\\\\\n\\u001f\x7fé"'),
        (pa.array([b"\x00\xff"]), '"AP8="'),
        (pa.array([dt.date(2030, 1, 31)]), '"2030-01-31"'),
        (pa.array([dt.time(23, 59, 59)], pa.time64("us")), '"23:59:59.000000"'),
        (pa.array([dt.datetime(2030, 1, 31, 5, tzinfo=dt.UTC)]), '"2030-01-31T05:00:00.000000Z"'),
        (pa.array([0], pa.timestamp("us")), '"1970-01-01T00:00:00.000000"'),
    ],
    ids=str,
)
def test_each_type_has_one_text(array: pa.Array, text: str) -> None:
    assert canonical_json(array).to_pylist() == [text]


@given(st.lists(st.tuples(st.none() | st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))))
def test_rows_read_back_as_json(rows: list[tuple[str | None, int, float]]) -> None:
    finite = [row for row in rows if abs(row[2]) != float("inf")]
    columns = [pa.array([row[n] for row in finite], kind) for n, kind in enumerate(["string", "int64", "float64"])]
    read = [json.loads(text) for text in canonical_json_of_rows(columns).to_pylist()]
    # A whole double has no point, so Python reads it as an int.
    assert [(text, number, float(double)) for text, number, double in read] == finite
