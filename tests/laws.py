"""The law for everything that keeps state between batches: neither how rows are split nor a restart changes the result.

    differences = law_differences(stem, operator, cases, key=["case_id", "store"])

`operator` is a function from a DataFrame to a DataFrame. Each case is a list of rows of its own, with its own split into
batches; all cases run in one query, told apart by the column `case_id`, since a batch of Spark costs a third of a second
however few rows are in it. So an operator must keep `case_id` in its result, and treat each case by itself. The query is
stopped and started again between some batches, and fails in the middle of others, when its state is written and its rows
are not. What it gave in the end is compared, case by case, with the same operator over all rows at once, or with an answer
from elsewhere (`expected`).

Where rows are too late for Spark's own watermark they are dropped, as they would not be at once: generate none.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from mainstem import Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows.flow import Flow
from mainstem.flows.runner import RunningFlows
from mainstem.spark.spark_types import spark_schema
from tests.flows.memory_sink import MemorySink

__all__ = ["Case", "law_differences", "split"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Rows in the order in which they come, already split into batches."""

    id: int
    batches: Sequence[Sequence[Row]]

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]


def split(rows: Sequence[Row], batches: int, chance: random.Random) -> list[list[Row]]:
    """The rows in so many batches, cut anywhere; some may be empty."""
    cuts = sorted(chance.randint(0, len(rows)) for _ in range(batches - 1))
    return [list(rows[first:end]) for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def law_differences(
    stem: Mainstem,
    operator: Callable[[DataFrame], DataFrame],
    cases: Sequence[Case],
    *,
    schema: str,
    key: Sequence[str] = (),
    event_time: str | None = None,
    watermark: str | None = None,
    restarts: int = 2,
    expected: Callable[[list[Row]], Iterable[Row]] | None = None,
    flush: Sequence[Row] = (),
    topic: str = "law",
    placed_by: str | None = None,
    seed: int = 0,
) -> list[str]:
    """What differs between the two ways, for each case that does.

    `key`: the result is a table, of which the last row for each key counts; without it all rows count. Where rows have a
    `record`, its change says what becomes of the key's row, and it is not compared itself. `placed_by`: the column that
    says in which partition a row lies, for operators that go by the log's order. `flush`: rows that
    come last and belong to no case (`case_id` below 0), to let results out that wait for the watermark. `expected`: the
    answer for the rows of one case, from elsewhere.
    """
    chance = random.Random(seed)
    source = stem.create_topic(
        topic, schema=f"case_id INT, {schema}", event_time=event_time, partitions=2, key=placed_by
    )
    steps = max(len(case.batches) for case in cases)
    places = chance.sample(range(1, steps), min(2 * restarts, steps - 1))
    stops, failures = places[:restarts], places[restarts:]
    # A step is one batch, or two with the one that only moves the watermark.
    sink = MemorySink(f"{topic}_results", failing=set(failures))

    def flows(stem: Mainstem) -> Iterable[Flow]:
        yield Flow(operator(stem.topic(topic).stream(watermark=watermark)), into=sink)

    running = stem.start(flows)
    try:
        for step in range(steps):
            if step in stops:
                running.stop()
                running = stem.start(flows)
            source.append([{"case_id": case.id, **row} for case in cases for row in _at(case.batches, step)])
            running = _until_idle(stem, flows, running)
        for row in flush:
            source.append([{"case_id": -1, **row}])
            running = _until_idle(stem, flows, running)
    finally:
        running.stop()
    given = [row for _, attempts in sorted(sink.attempts.items()) for row in attempts[-1]]
    assert not sink.failing, f"batches {sink.failing} never came"
    found = _by_case(_latest(given, key))
    if expected is None:
        wanted = _by_case(_latest(_at_once(stem, operator, source.to_arrow()), key))
    else:
        wanted = {case.id: _sorted(expected(case.rows)) for case in cases}
    return [
        f"case {case.id}, seed {seed}: {found[case.id]} instead of {wanted.get(case.id, [])}"
        for case in cases
        if found[case.id] != wanted.get(case.id, [])
    ]


def _until_idle(stem: Mainstem, flows: Callable[[Mainstem], Iterable[Flow]], running: RunningFlows) -> RunningFlows:
    """Wait; where the flow fails, start it again."""
    try:
        running.wait_until_idle()
    except FlowFailed:
        running.stop()
        running = stem.start(flows)
        running.wait_until_idle()
    return running


def _at(batches: Sequence[Sequence[Row]], step: int) -> Sequence[Row]:
    return batches[step] if step < len(batches) else ()


def _at_once(stem: Mainstem, operator: Callable[[DataFrame], DataFrame], rows: pa.Table) -> list[Row]:
    """The operator over all rows as a batch."""
    # Without the log, so without a `record`: the rows as they lie there.
    rows = rows.drop_columns(["record"])
    plain = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
    frame = stem.spark.createDataFrame(rows.cast(plain), spark_schema(plain))
    return operator(frame).toArrow().to_pylist()  # type: ignore[no-any-return]


def _latest(rows: Sequence[Row], key: Sequence[str]) -> list[Row]:
    if not key:
        return list(rows)
    held: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        of_key = held[tuple(str(row[name]) for name in key)]
        change = (row.get("record") or {}).get("change", "update")
        # What is inserted beside a row that is there is one too many, and stays to be seen.
        if change != "insert":
            del of_key[-1:]
        if change != "delete":
            of_key.append(row)
    return [row for of_key in held.values() for row in of_key]


def _by_case(rows: Iterable[Mapping[str, Any]]) -> dict[int, list[str]]:
    grouped: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["case_id"]].append(
            {name: value for name, value in row.items() if name not in ("case_id", "record")}
        )
    return defaultdict(list, {case: _sorted(of) for case, of in grouped.items()})


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows as text, in one order: values of any type can be compared so."""
    return sorted(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)
