"""Windows of every kind side by side in one flow, and what the naive engines say of exactly the batches that it had.

A program is a kind of window with what is asked of it; the keys are cases. All programs read one topic whose rows come out
of order, many of them late. When the flow has ended, its checkpoint says which rows and which clock each batch had, and the
log says each row's own watermark: with these the naive engines do the same batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.clock import as_us
from mainstem.flows.staged_batches import clock_of
from mainstem.log.topic import Topic
from mainstem.operators import sessions, windowed
from mainstem.operators.stage.engine import NO_TIME
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.operators.windows.window_kinds import Sessions, WindowKind
from mainstem.spark.checkpoint.checkpoint_offsets import batch_offsets, last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from tests.operators.checked_kinds import KINDS
from tests.operators.naive_windows import END, FUNCTIONS, Asked, Pane, Row
from tests.operators.window_scripts import Batch

TOPIC = "rows"
# A row's place is its partition: rows of one key lie in several.
SCHEMA = "place STRING, key INT, value BIGINT, gap BIGINT, at TIMESTAMP"
DELAY = timedelta(microseconds=4)
LONG = "36500 days"


@dataclass(frozen=True)
class WindowProgram:
    """A kind of window, and what is asked of it."""

    kind: str
    asked: Asked

    @property
    def stage(self) -> str:
        return self.kind.replace(" ", "_")

    def window(self) -> WindowKind:
        window = KINDS[self.kind].window
        if isinstance(window, Sessions):
            # As in the scripts without Spark, each row says its own.
            own = F.expr("make_dt_interval(0, 0, 0, CAST(gap AS DECIMAL(18, 6)) / 1000000)")
            return sessions(own, touching=window.touching)
        return window

    def results(self, rows: DataFrame) -> DataFrame:
        asked = self.asked
        found = windowed(
            rows,
            self.window(),
            by="key",
            aggregates=["sum(value) AS sum", "count(*) AS count", "min(value) AS min", "max(value) AS max"],
            early=asked.early,
            late=asked.late if asked.lateness else None,
            lateness=timedelta(microseconds=asked.lateness),
            results=asked.results,
            on_time=asked.on_time,
            name=self.stage,
        )
        return found.select(F.lit(self.stage).alias("program"), *found.columns)


def topic_of_rows(stem: Mainstem) -> Topic:
    # Neither the machine's clock nor a quiet partition has a part in it.
    return stem.create_topic(
        TOPIC, schema=SCHEMA, key="place", event_time="at", partitions=2, idle_after=LONG, ahead_max=LONG
    )


def append(stem: Mainstem, rows: list[Row], random: Random) -> None:
    """Rows in their order, in appends of a few rows each, so that they have different watermarks of their own.

    All of them are to be seen at once, so that they are one batch.
    """
    with stem.producer("rows").transaction() as appending:
        while rows:
            count = random.randint(1, 6)
            now, rows = rows[:count], rows[count:]
            for partition in sorted({row.partition for row in now}):
                appending.append(TOPIC, [_told(row) for row in now if row.partition == partition])


def _told(row: Row) -> dict[str, Any]:
    gap = row.gap or None
    return {"place": "abf"[row.partition], "key": row.key, "value": row.value, "gap": gap, "at": _moment(row.time)}


def _moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class WindowFlow:
    """The flow of some programs."""

    stem: Mainstem
    programs: list[WindowProgram]
    sink: Any

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic(TOPIC).stream(watermark=DELAY)
        found = [program.results(rows) for program in self.programs]
        yield Flow(reduce(DataFrame.unionByName, found), into=self.sink, name="windows")

    @property
    def checkpoint(self) -> str:
        return FlowStore(self.stem.home, "windows").checkpoint(1)

    @property
    def manifests(self) -> StageManifests:
        return StageManifests(self.checkpoint)

    def set_now(self, now: int) -> None:
        set_now(self.manifests.folder, now)

    def state_rows(self) -> dict[str, int]:
        """How many rows of state each program has."""
        stages = (self.manifests.last() or {"stages": {}})["stages"]
        return {name: sum(bucket["live"] for bucket in of["state"].values()) for name, of in stages.items()}

    def batches(self) -> list[Batch]:
        """The batches that were, each with its rows and its clock."""
        log = logged(self.stem)
        found: list[Batch] = []
        ends: Mapping[int, int] = {}
        for number in range((last_batch(self.checkpoint) or 0) + 1):
            before, ends = ends, batch_offsets(self.checkpoint, number)[TOPIC]
            rows = [row for row in log if before.get(row.partition, 0) <= row.offset < ends.get(row.partition, 0)]
            found.append((rows, clock_of(self.checkpoint, number)))
        return found

    def batches_by_program(self) -> dict[WindowProgram, list[Batch]]:
        """Sources of one query agree on where a batch ends."""
        return dict.fromkeys(self.programs, self.batches())

    def differences(self, late: pa.Table | None) -> tuple[int, list[str]]:
        """How many panes and late rows were compared, and what differs."""
        compared, found = 0, []
        by_program = self.batches_by_program()
        too_late = defaultdict[str, Counter[Any]](Counter)
        for row in [] if late is None else late.to_pylist():
            too_late[row["stage"]][row["partition"], row["offset"], _us(row["window_start"], None)] += 1
        for program in self.programs:
            kind, naive = KINDS[program.kind], KINDS[program.kind].naive(program.asked)
            for number, (rows, clock) in enumerate(by_program[program]):
                expected = kind.expected(naive, rows, clock)
                compared += len(expected)
                for attempt, shown in enumerate(self.sink.attempts[number]):
                    given = panes(shown, program.stage)
                    if kind.ordered(given) != kind.ordered(expected):
                        found.append(f"{program}, batch {number}, attempt {attempt}: {given} instead of {expected}")
            wanted = Counter((*row.position, None if _far(window[0]) else window[0]) for row, window in naive.too_late)
            compared += wanted.total()
            if too_late[program.stage] != wanted:
                found.append(f"{program}: {too_late[program.stage]} were too late instead of {wanted}")
        return compared, found


def logged(stem: Mainstem) -> list[Row]:
    """All rows as the log has them, each with its own watermark."""
    return [
        Row(
            row["key"],
            as_us(row["at"]),
            _us(row["record"]["watermark"], NO_TIME),
            row["value"],
            row["record"]["partition"],
            row["record"]["offset"],
            row["gap"] or 0,
        )
        for row in stem.topic(TOPIC).to_arrow(watermark=DELAY).to_pylist()
    ]


def panes(shown: list[dict[str, Any]], stage: str) -> list[Pane]:
    """What a program put out, in its order."""
    rows = [row for row in shown if row["program"] == stage]
    rows.sort(key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
    return [
        Pane(
            row["key"],
            (_us(row["window"]["start"], -END), _us(row["window"]["end"], END)),
            tuple(row[name] for name in FUNCTIONS),
            row["pane"]["index"],
            row["pane"]["timing"],
            row["pane"]["final"],
            row["record"]["change"],
        )
        for row in rows
    ]


def _us(at: datetime | None, absent: Any) -> Any:
    return absent if at is None else as_us(at)


def _far(at: int | None) -> bool:
    return at is None or abs(at) > 2**62


def asked_at_random(random: Random, triggers: list[Any]) -> Asked:
    """What the property tests ask too."""
    return Asked(
        early=random.choice(triggers),
        late=random.choice(triggers),
        lateness=random.choice([0, 4, 15]),
        results=random.choice(["discard", "accumulate", "retract"]),
        on_time=random.choice(["always", "always", "if changed"]),
    )
