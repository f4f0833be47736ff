"""Conditions over rows: what they see, what they may not, and how a wrong one is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.log.rows.row_filter import RowFilter

ROWS = pa.RecordBatch.from_pydict(
    {
        "amount": [5.0, 20.0, None, 30.0],
        "kind": ["lazy", "lazy.fox", "quick", None],
        "record": [{"offset": offset, "change": "insert"} for offset in range(4)],
    }
)


def held(condition: str) -> list[bool]:
    return RowFilter(condition, ROWS.schema).mask(ROWS).to_pylist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("amount > 10", [False, True, False, True]),
        ("routed(kind, 'lazy.#')", [True, True, False, False]),
        ("amount > 10 or routed(kind, 'quick') -- both", [False, True, True, True]),
        ("record.offset % 2 = 1", [False, True, False, True]),
        ("true", [True] * 4),
        ("null", [False] * 4),
        ("kind is null", [False, False, False, True]),
    ],
)
def test_what_holds(condition: str, expected: list[bool]) -> None:
    assert held(condition) == expected


def test_no_rows() -> None:
    assert RowFilter("amount > 1", ROWS.schema).mask(ROWS.slice(0, 0)).to_pylist() == []


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("amount >", 'the condition "amount >" cannot be used'),
        ("amount", 'the condition "amount" is not true or false'),
        ("", 'the condition "" is not true or false'),
        ("sum(amount) > 1", "cannot be used"),
        ("amount > 1); drop table x; select (1", "cannot be used"),
        ("exists (select 1 from read_csv('/etc/passwd'))", "cannot be used"),
        ("exists (select 1 from '/etc/passwd')", "cannot be used"),
        ("exists (select 1 from ROWS)", "cannot be used"),
    ],
)
def test_a_condition_that_cannot_be(condition: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        RowFilter(condition, ROWS.schema)
    assert message in str(caught.value)
    assert caught.value.detail
    assert "DuckDB condition" in caught.value.hint


def test_a_column_misspelt() -> None:
    with pytest.raises(Invalid) as caught:
        RowFilter("amuont > 1", ROWS.schema)
    assert caught.value.hint == 'Did you mean "amount"?'
    assert 'Referenced column "amuont" not found' in caught.value.detail


def test_a_value_that_does_not_convert() -> None:
    condition = RowFilter("kind::int > 1", ROWS.schema)
    with pytest.raises(Invalid, match="failed on a row"):
        condition.mask(ROWS)
