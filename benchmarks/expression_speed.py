"""What an expression over Arrow costs, without Spark: `python -m benchmarks.expression_speed [rows a batch]`.

Nanoseconds of processor time for a row, the median of 20 batches, and times the cost of adding two columns without a check.
One row in 20 is null in each column.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.spark.plan.row_expression import Expression, values_of

DAY = 86_400_000_000
ROUNDS = 20


def rows(count: int) -> pa.RecordBatch:
    chance = np.random.default_rng(1)
    null = chance.random(count) < 0.05
    numbers = {
        "n": chance.integers(0, 1000, count), "i": chance.integers(1, 50, count), "x": chance.random(count),
        "at": chance.integers(1_500_000_000_000_000, 1_700_000_000_000_000, count), "m": chance.integers(-(10**9), 10**9, count),
    }  # fmt: skip
    columns = {name: pa.array(values, mask=null) for name, values in numbers.items()}
    columns["at"] = columns["at"].cast(pa.timestamp("us", "UTC"))
    columns["m"] = columns["m"].cast(pa.decimal128(20, 0)).cast(pa.decimal128(22, 2)).cast(pa.decimal128(12, 2))
    columns["s"] = pa.array([None if gone else f"abc{place}" for place, gone in enumerate(null)])
    return pa.RecordBatch.from_pydict(columns)


def expressions() -> dict[str, Expression]:
    n, i, x, at, m, s = (["column", name] for name in ("n", "i", "x", "at", "m", "s"))
    micros = ["as", "bigint", at]

    def literal(value: Any, kind: str = "bigint") -> Expression:
        return ["literal", kind, value]

    def bound(offset: int) -> Expression:
        """Of a window of ten seconds, as Spark computes it."""
        size = 10_000_000
        within = ["%", micros, size]
        start = ["-", micros, ["if", ["<", within, literal(0)], ["+", within, literal(size)], within]]
        return ["as", "timestamp", ["+", start, literal(offset)]]

    return {
        "n + 1": ["+", n, literal(1)],
        "n * 0.908": ["*.", ["as", "double", n], literal("0.908", "double")],
        "n % 7 = 0": ["=", ["%", n, 7], literal(0)],
        "n > 5 and x < 0.9 and s is not null": [
            "and", [">", n, literal(5)], ["<", x, literal("0.9", "double")], ["not", ["null", s]],
        ],
        "case when n > 500 then n * 2 else n - 1 end": [
            "if", [">", n, literal(500)], ["*", n, literal(2)], ["-", n, literal(1)],
        ],
        "n in (0, 1, 2, 3, 4)": ["in", n, [literal(number) for number in range(5)]],
        "pmod(n, i)": ["positive remainder", i, n],
        "window(at, '10 seconds')": ["struct", ["start", bound(0)], ["end", bound(10_000_000)]],
        "year(at)": ["date part", "year", ["units", "date", DAY, at]],
        "hour(at)": ["time part", "hour", at],
        "date_trunc('month', at)": ["time start", "month", at],
        "m * m": ["*.", m, m],
        "round(m, 1)": ["round", "decimal(12,1)", 1, m],
        "startswith(s, 'ab')": ["starts with", s, "ab"],
        "length(s)": ["length", s],
        "substring(s, 2, 3)": ["slice", s, 2, 3],
        "s || 'x'": ["join", s, literal("x", "string")],
        "s like 'a_c%'": ["like", s, "a_c%"],
    }  # fmt: skip


def nanoseconds(compute: Callable[[], Any], count: int) -> float:
    compute()
    found = []
    for _ in range(ROUNDS):
        before = time.process_time_ns()
        compute()
        found.append((time.process_time_ns() - before) / count)
    return statistics.median(found)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    batch = rows(count)
    unit = nanoseconds(lambda: pc.add(batch.column("n"), batch.column("i")), count)
    print(f"adding two columns: {unit:.2f} ns a row\n")
    for text, expression in expressions().items():
        cost = nanoseconds(lambda expression=expression: values_of([expression], batch), count)  # type: ignore[misc]
        print(f"{text:46} {cost:7.2f} ns {cost / unit:6.1f} times")


if __name__ == "__main__":
    main()
