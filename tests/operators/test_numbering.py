"""Values of any type are numbered: equal rows have one number, others have others, whatever the range of the values."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators.windows import numbering
from mainstem.operators.windows.numbering import highest, lowest, number_values

COLUMNS = [
    lambda chance, count: np.array([chance.randint(-3, 3) for _ in range(count)], np.int64),
    lambda chance, count: np.array([chance.choice([0, -(2**63), 2**63 - 1, 2**40]) for _ in range(count)], np.int64),
    lambda chance, count: pa.array([chance.choice([None, 1, 2**31 - 1]) for _ in range(count)], pa.int32()),
    lambda chance, count: pa.array([chance.choice([None, "", "a", "b"]) for _ in range(count)]),
    lambda chance, count: pa.array([chance.choice([None, True, False]) for _ in range(count)]),
    lambda chance, count: pa.array([chance.choice([0, 10**15]) for _ in range(count)], pa.timestamp("us", "UTC")),
]


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("table_max", [0, 8])
def test_rows_with_equal_values_have_one_number(seed: int, table_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # With 0 all codes are hashed.
    monkeypatch.setattr(numbering, "TABLE_MAX", table_max)
    chance = Random(seed)
    count = chance.choice([0, 1, 50])
    columns = [chance.choice(COLUMNS)(chance, count) for _ in range(chance.randint(1, 5))]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    ids, firsts = number_values(*columns)
    assert sorted(set(ids.tolist())) == list(range(len(set(rows))))
    assert firsts.tolist() == [rows.index(rows[first]) for first in firsts]
    assert [rows[first] for first in firsts[ids]] == rows


def test_the_highest_and_the_lowest_of_each_number() -> None:
    ids, values = np.array([1, 0, 1]), np.array([-5, 7, 3])
    assert (highest(ids, values, 2).tolist(), lowest(ids, values, 2).tolist()) == ([7, 3], [7, -5])
