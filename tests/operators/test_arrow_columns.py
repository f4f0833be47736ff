"""Values that are the same, by columns: what Python says of the lists and structs, with null, NaN and -0.0 as in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mainstem.operators.stage.arrow_columns import same_values

NAN = float("nan")


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.float64(), [None, 0.0, -0.0, NAN, 1.0]),
        (pa.list_(pa.float64()), [None, [], [None], [0.0], [-0.0], [NAN], [1.0, 2.0], [1.0, 3.0], [1.0]]),
        (pa.list_(pa.list_(pa.string())), [None, [], [[]], [["a"]], [["a"], None], [["a", "b"]], [["a"], ["b"]]]),
        (pa.list_(pa.struct([("a", pa.int32())])), [None, [{"a": 1}], [{"a": None}], [None], [{"a": 1}, {"a": 2}]]),
        (pa.struct([("a", pa.list_(pa.int32()))]), [None, {"a": None}, {"a": []}, {"a": [1]}, {"a": [2]}]),
    ],
    ids=str,
)
def test_every_pair_of_values(data_type: pa.DataType, values: list[Any]) -> None:
    pairs = [(one, other) for one in values for other in values]
    left, right = (pa.array([pair[side] for pair in pairs], data_type) for side in (0, 1))
    wanted = [repr(one).replace("-0.0", "0.0") == repr(other).replace("-0.0", "0.0") for one, other in pairs]
    assert same_values(left, right).tolist() == wanted
    # A slice begins within its buffers.
    assert same_values(left[3:], right[3:]).tolist() == wanted[3:]
    assert same_values(left[:0], right[:0]).tolist() == []
