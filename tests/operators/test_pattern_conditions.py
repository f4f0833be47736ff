"""Conditions over earlier rows: what they compute, with nulls as in SQL, and how they are divided; and what match refuses."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Invalid
from mainstem.operators import match, step
from mainstem.operators.patterns.conditions import divide_condition
from mainstem.operators.patterns.expression import read_expression
from mainstem.testing import TestStream

AT = as_datetime(1_767_268_800_000_000)
COLUMNS = pa.schema(
    [
        ("x", pa.float64()),
        ("n", pa.int64()),
        ("d", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("t", pa.string()),
    ]
)
ROW = {"x": 10.0, "n": 3, "d": Decimal("1.10"), "at": AT, "t": "abc"}
SMALL: list[dict[str, Any]] = [
    {"x": 1.0, "n": 1, "d": Decimal("0.10"), "at": AT - timedelta(minutes=4), "t": "a"},
    {"x": None, "n": 2, "d": None, "at": AT - timedelta(minutes=2), "t": None},
    {"x": 4.0, "n": 7, "d": Decimal("2.00"), "at": AT - timedelta(minutes=1), "t": "b"},
]
COMPUTED: list[tuple[str, Any]] = [
    ("x > 3 * avg(small.x)", True),
    ("avg(none.x) < 5", None),
    ("avg(none.x) < 5 OR n = 3", True),
    ("avg(none.x) < 5 AND n = 4", False),
    ("NOT avg(none.x) < 5", None),
    ("coalesce(avg(none.x), 7) = 7", True),
    ("last(small.n)", 7),
    ("last(small.n, 1)", 2),
    ("last(small.n, 3)", None),
    ("first(small.n, 1)", 2),
    ("small.n - first(small.n)", 6),
    ("last(small.x, 1) IS NULL", True),
    ("last(small.x, 1) IS NOT NULL", False),
    ("last(small.x, 1) <=> NULL", True),
    ("count(small)", 3),
    ("count(small.*)", 3),
    ("count(small.x)", 2),
    ("count(none)", 0),
    ("sum(none.n)", None),
    ("sum(small.d)", Decimal("2.10")),
    ("min(small.n) + max(small.n)", 8),
    ("sum(small.n) / (n - 3)", None),
    ("sum(small.n) % 4", 2),
    ("-small.n % 4", -3),
    ("abs(n - small.n) BETWEEN 4 AND 5", True),
    ("small.n NOT BETWEEN 8 AND 9", True),
    ("n IN (1, small.n)", False),
    ("n IN (1, last(none.n))", None),
    ("n IN (3, last(none.n))", True),
    ("d > small.d * 0.5", True),
    ("x > first(small.d)", True),
    ("at - last(small.at) < INTERVAL 2 MINUTES", True),
    ("at - first(small.at) < INTERVAL 2 MINUTES", False),
    ("contains(t, small.t)", True),
    ("X > small.X", True),
]


@pytest.mark.parametrize(("text", "expected"), COMPUTED, ids=[text for text, _ in COMPUTED])
def test_an_expression_over_earlier_rows_is_computed_as_in_sql(text: str, expected: Any) -> None:
    computed = read_expression(text, ["small", "none"], COLUMNS).compile()
    found = computed(ROW, {"small": SMALL, "none": []}.__getitem__)
    assert found == expected
    assert type(found) is type(expected) or isinstance(found, (int, float))


@pytest.mark.parametrize(
    ("condition", "native", "asked"),
    [
        ("x > 5", "x > 5", None),
        ("upper(t) = 'A' AND x > avg(small.x)", "UPPER(t) = 'A'", "x > AVG(small.x)"),
        ("(x > 5 AND n > 1) AND x > last(small.x, 1)", "x > 5 AND n > 1", "x > last(small.x, 1)"),
        ("x > 5 OR x > avg(small.x)", None, "(x > 5 OR x > AVG(small.x))"),
    ],
)
def test_a_condition_is_divided_at_its_ands(condition: str, native: str | None, asked: str | None) -> None:
    found = divide_condition(condition, ["small"], COLUMNS)
    assert found.native == native
    assert (None if found.asked is None else found.asked.text) == asked


PAID = TestStream("card STRING, amount DOUBLE, at TIMESTAMP", event_time="at")
SMALL_STEP, LARGE = step("small", "amount < 2"), step("large", "amount > 5")
PATTERN = SMALL_STEP.then(LARGE)


def ask(**given: Any) -> Any:
    given = {"pattern": PATTERN, "by": "card", "within": "1 minute"} | given
    return lambda rows: match(
        rows, given["pattern"], **{name: value for name, value in given.items() if name != "pattern"}
    )


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        ({"within": None}, "neither within nor gap", 'state="unbounded"'),
        ({"within": None, "state": "unbounded", "pattern": SMALL_STEP.not_then(LARGE)}, "needs within", "10 minutes"),
        ({"within": "0 seconds"}, "not a positive duration", "10 minutes"),
        ({"timeouts": "shown"}, "timeouts", "show"),
        ({"state": "endless"}, "state", "unbounded"),
        ({"candidates_max": 0}, "candidates_max", "1"),
        ({"by": "cart"}, 'uses the column "cart"', 'Did you mean "card"'),
        ({"after_match": ("first", "small")}, "again and again", "later step"),
        ({"measures": ["sum(small.amount)"]}, "has no name", "AS probed"),
        ({"measures": ["sum(small.amount) AS match"]}, "is taken", "AS probed"),
        ({"measures": ["sum(smal.amount) AS a"]}, "no step of the pattern", 'Did you mean "small"'),
        ({"measures": ["sum(small.amont) AS a"]}, "which the rows lack", 'Did you mean "amount"'),
        ({"pattern": step("a", "amont > 2")}, "neither a column nor a step", 'Did you mean "amount"'),
        ({"pattern": SMALL_STEP.then(step("b", "upper(small.card) = 'A'"))}, "cannot be computed beside", "withColumn"),
        ({"pattern": step("a", "amount >")}, "cannot be parsed", "For example"),
    ],
)
def test_match_refuses_what_it_cannot_do_and_says_what_to_do(given: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(Invalid) as raised:
        PAID.run(ask(**given))
    assert what in str(raised.value)
    assert hint in "\n".join(raised.value.parts()[1:])


def paid(*rows: tuple[str | None, float]) -> list[dict[str, Any]]:
    return [
        {"card": "A", "amount": amount, "at": None if at is None else f"2026-01-01 12:00:{at}"} for at, amount in rows
    ]


def test_a_row_that_is_late_or_has_no_time_is_reported() -> None:
    script = PAID.rows(paid(("01", 1.0), ("30", 0.0))).watermark("2026-01-01 12:00:25")
    script = script.rows(paid(("20", 9.0), (None, 9.0))).watermark("2026-01-02")
    results = script.run(ask())
    assert results.rows == []
    assert {row["reason"] for row in results.late} == {"too late to be matched in order", "no event time"}
    assert results.counts == {"too_late": 2}


def test_too_many_candidates_stop_the_flow_and_name_the_key() -> None:
    script = PAID.rows(paid(*((f"{second:02}", 1.0) for second in range(5)))).watermark("2026-01-02")
    with pytest.raises(Invalid, match="the key 'A' has 4 candidates"):
        script.run(ask(candidates_max=3))
