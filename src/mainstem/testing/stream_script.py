"""TestStream: a script of rows, watermarks, times and crashes, to test operators and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mainstem.arguments import check_choice, checked_calls, show_value, text, whole_number
from mainstem.clock import as_us
from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, InvalidRows, did_you_mean
from mainstem.log.record import CHANGE
from mainstem.log.rows.normal_schema import nullable_schema
from mainstem.log.rows.python_rows import arrays_of, dicts_of
from mainstem.log.rows.rows import checked_changes
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.topic_settings import PARTITIONS_MAX
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.testing.scripted_home import ONLY, Append, LogStep, Moment, ScriptedTopic, batches_of
from mainstem.testing.scripted_rows import ScriptedRows, ScriptedRun, TestResults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Batches", "TestStream", "TestStreams", "check_operator", "run_scripted"]

Batches = Literal["scripted", "single rows", "one"]
_SCHEMA_HINT = 'Give Spark DDL, "team STRING, score INT, at TIMESTAMP", or a pyarrow schema.'
_RECORD_FIELDS = {field.name for field in WATERMARKED_RECORD}
CUTS = ("scripted", "single rows", "one")


@checked_calls
@dataclass(frozen=True, init=False)
class TestStream:
    """A scripted stream for tests; each step is a batch. Every method returns a new script.

    Times are datetimes, or text in UTC. `delay` is that of `topic.stream(watermark=...)`: the watermark follows the
    highest event time at that distance. Without it only `watermark(...)` advances it. `idle_after` is that of
    `topic.stream`: the stream no longer holds back other streams when it had no rows for that long, by `now(...)`.

    >>> from mainstem.operators.late_rows import late_rows
    >>> stream = TestStream("n INT, at TIMESTAMP", event_time="at").watermark("2026-01-01 12:00")
    >>> stream = stream.rows([{"n": 1, "at": "2026-01-01 11:59"}, {"n": 2, "at": "2026-01-01 12:01"}])
    >>> [row["n"] for row in stream.run(late_rows).rows]
    [1]
    """

    __test__ = False

    schema: pa.Schema
    event_time: str | None
    delay: Duration | None
    idle_after: Duration | None
    steps: tuple[LogStep, ...]

    def __init__(
        self,
        schema: str | pa.Schema,
        *,
        event_time: str | None = None,
        delay: Duration | None = None,
        idle_after: Duration | None = None,
    ) -> None:
        columns = (
            schema if isinstance(schema, pa.Schema) else schema_from_ddl(text(schema, "schema", hint=_SCHEMA_HINT))
        )
        for given, setting in ((delay, "delay"), (idle_after, "idle_after")):
            if given is not None:
                duration_us(given, setting=setting)
        if event_time is not None and text(event_time, "event_time") not in columns.names:
            raise Invalid(
                f'the stream lacks the column "{event_time}", its event time',
                detail=f"Its columns are: {', '.join(columns.names)}.",
                hint="Name one of these.",
            )
        object.__setattr__(self, "schema", nullable_schema(columns))
        object.__setattr__(self, "event_time", event_time)
        object.__setattr__(self, "delay", delay)
        object.__setattr__(self, "idle_after", idle_after)
        object.__setattr__(self, "steps", ())

    # The script

    def rows(self, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStream:
        """Append these rows; they are read in one batch. A row may set its change in `record`:
        {"record": {"change": "delete"}, ...}."""
        number = _partition(partition)
        given = [self._row(row) for row in _dicts(rows)]
        changes = [_change(place, row.pop("record", None)) for place, row in enumerate(given)]
        arrays = arrays_of(given, self.schema, topic="test")
        columns = [arrays.get(field.name, pa.nulls(len(given), field.type)) for field in self.schema]
        table = pa.Table.from_arrays(columns, schema=self.schema)
        return self._with(Append(table, number, changes=checked_changes(pa.array(changes, CHANGE))))

    def delete(self, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStream:
        """Append deletes; they are read in one batch. Each row has the key, as in `topic.delete`, or all columns.

        >>> from mainstem.operators import table
        >>> stock = TestStream("item STRING, pieces INT").rows([{"item": "pen", "pieces": 3}]).delete([{"item": "pen"}])
        >>> stock.run(lambda rows: table(rows, key="item")).changes[-1]
        ('delete', {'item': 'pen', 'pieces': 3})
        """
        return self.rows([{**row, "record": {"change": "delete"}} for row in _dicts(rows)], partition=partition)

    def watermark(self, at: str | datetime) -> TestStream:
        """Declare a watermark: no earlier event time will follow."""
        if self.event_time is None:
            raise Invalid(
                "the stream has no event time, so it has no watermark",
                detail="A watermark is the event time up to which all rows are expected to have arrived.",
                hint='Give TestStream(..., event_time="...").',
            )
        return self._with(Moment("watermark", _moment(at)))

    def now(self, at: str | datetime) -> TestStream:
        """Advance processing time (the clock) to `at`; timers and triggers that are due fire."""
        return self._with(Moment("now", _moment(at)))

    def kill(self) -> TestStream:
        """Kill the batch of the step before, before it is committed; the flow is restarted and repeats it."""
        return self._replace_steps(_last_killed(self.steps))

    # Running it

    def run(self, operator: Callable[[Any], Any], *, batches: Batches = "scripted") -> TestResults:
        """Run the operator on the stream without Spark, in milliseconds.

        `operator`: a function of rows that calls operators of Mainstem. `batches`: as "scripted", a batch for each "single
        row", or "one" for all: on-time and final results are the same for all three, and a test may assert that.
        """
        return run_scripted({ONLY: self.topic}, self.steps, _alone(operator), batches)

    def run_on_spark(self, operator: Callable[[Any], Any], spark: SparkSession | str = "local[2]") -> TestResults:
        """The same in a temporary home: a topic, a flow that reads it, a Spark session."""
        from mainstem.testing.scripted_home import run_in_home

        return run_in_home({ONLY: self.topic}, self.steps, _alone(operator), spark)

    @property
    def topic(self) -> ScriptedTopic:
        """The topic of the stream."""
        return ScriptedTopic(self.schema, self.event_time, self.delay, self.idle_after)

    def _with(self, step: LogStep) -> TestStream:
        return self._replace_steps((*self.steps, step))

    def _replace_steps(self, steps: tuple[LogStep, ...]) -> TestStream:
        script = TestStream(self.schema, event_time=self.event_time, delay=self.delay, idle_after=self.idle_after)
        object.__setattr__(script, "steps", steps)
        return script

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row, with times parsed from text."""
        zoned = {field.name for field in self.schema if pa.types.is_timestamp(field.type) and field.type.tz is not None}
        return {name: _read(value) if name in zoned else value for name, value in row.items()}


def run_scripted(
    topics: Mapping[str, ScriptedTopic], steps: Sequence[LogStep], operator: Callable[..., Any], batches: Batches
) -> TestResults:
    """The results of an operator on scripted streams, which it gets by their names."""
    check_choice(batches, "batches", CUTS)
    check_operator(operator)
    run = ScriptedRun()
    scripted = batches_of(topics, steps, batches)
    given = operator(**{name: ScriptedRows(topics[name].shown_schema, of, run) for name, of in scripted.items()})
    if not isinstance(given, ScriptedRows):
        raise Invalid(
            f"the operator returned a {type(given).__name__}",
            detail="It must return the rows that the last operator in it returns.",
            hint="Return the rows: .run(lambda rows: dedupe(rows, ...)).",
        )
    plain = [_changes(batch.rows) for batch in given.batches]
    killed = sum(batch.killed for batch in next(iter(scripted.values())))
    return TestResults(plain, run.late, run.counts, run.state_rows, killed)


def check_operator(operator: object) -> None:
    """Raise if it cannot be called."""
    if not callable(operator):
        raise Invalid(
            f"{show_value(operator)} is not an operator",
            detail=f"It is of type {type(operator).__name__}; run calls it with the rows, and takes the rows that it returns.",
            hint="Give a function: .run(lambda rows: dedupe(rows, ...)).",
        )


def _alone(operator: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function of one stream, as a function of streams by name."""
    check_operator(operator)
    return lambda **streams: operator(*streams.values())


def _dicts(rows: Any) -> list[Mapping[str, Any]]:
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise InvalidRows(
            f"{show_value(rows)} is not a list of rows",
            detail=f"It is of type {type(rows).__name__}.",
            hint="Give a list of dicts, one per row.",
        )
    return dicts_of(rows)


def _change(place: int, record: Any) -> str | None:
    """The change that a row sets; None if it sets none."""
    if record is None:
        return None
    if (
        not isinstance(record, Mapping)
        or not record.keys() <= _RECORD_FIELDS
        or not isinstance(record.get("change"), str | None)
    ):
        raise InvalidRows(
            f"row {place}: record is {show_value(record)}",
            detail="The record of a row may only set its change. The log sets the rest: its position and its time of append.",
            hint='For example: {"record": {"change": "delete"}, ...}.',
            row=place,
            column="record",
        )
    return record.get("change")


def _partition(number: Any) -> int:
    whole_number(number, "partition")
    if number >= PARTITIONS_MAX:
        raise Invalid(
            f"partition {number} does not exist",
            detail=f"A topic has at most {PARTITIONS_MAX} partitions, numbered from 0.",
            hint="The partitions of a stream are 0 to the highest that its script names; give a low number.",
        )
    return int(number)


def _last_killed(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    if not steps:
        raise Invalid(
            "there is no step to kill yet", detail="kill() kills the step before it.", hint="Script a step first."
        )
    return (*steps[:-1], replace(steps[-1], killed=True))


def _read(value: Any) -> Any:
    """A time; text is parsed, without a zone as UTC."""
    if not isinstance(value, str):
        return value
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError as error:
        raise Invalid(
            f"{show_value(value)} is not a time",
            detail=f"{error}. Text is read as ISO 8601, without a zone in UTC.",
            hint='For example: "2026-01-01 12:00:30", or a datetime with a zone.',
        ) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _moment(at: str | datetime) -> int:
    return as_us(_read(at))


def _changes(rows: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    plain = rows.drop_columns(["record"]).to_pylist()
    changes = [record["change"] for record in rows.column("record").to_pylist()]
    return list(zip(changes, plain, strict=True))


# TestStreams: a script of several streams, to test joins and other operators with several inputs.


@checked_calls
@dataclass(frozen=True, init=False)
class TestStreams:
    """Several scripted streams by name. The operator gets them by these names.

    The watermark of a batch is the lowest of its streams' watermarks.

    >>> from mainstem.operators import join
    >>> at = "2026-01-01 12:00"
    >>> streams = TestStreams(
    ...     shown=TestStream("ad INT, shown_at TIMESTAMP", event_time="shown_at"),
    ...     clicks=TestStream("ad INT, clicked_at TIMESTAMP", event_time="clicked_at"),
    ... )
    >>> streams = streams.rows("shown", [{"ad": 1, "shown_at": at}]).rows("clicks", [{"ad": 1, "clicked_at": at}])
    >>> results = streams.run(lambda shown, clicks: join(shown, clicks, on="ad", within="10 minutes"))
    >>> [row["ad"] for row in results.rows]
    [1]
    """

    __test__ = False

    streams: Mapping[str, TestStream]
    steps: tuple[LogStep, ...]

    def __init__(self, **streams: TestStream) -> None:
        if not streams:
            raise Invalid(
                "TestStreams has no streams",
                detail="The operator gets the streams by the names given here.",
                hint='For example: TestStreams(shown=TestStream("ad INT")).',
            )
        for name, stream in streams.items():
            if not isinstance(stream, TestStream):
                raise Invalid(
                    f'stream "{name}" is {show_value(stream)}',
                    detail=f"It is of type {type(stream).__name__}; a stream must be a TestStream.",
                    hint=f'For example: TestStreams({name}=TestStream("ad INT")).',
                )
        object.__setattr__(self, "streams", streams)
        object.__setattr__(self, "steps", ())

    # The script

    def rows(self, stream: str, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStreams:
        """Append these rows to a stream; they are read in one batch."""
        return self._with(stream, lambda script: script.rows(rows, partition=partition))

    def delete(self, stream: str, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStreams:
        """Append deletes to a stream; they are read in one batch. See `TestStream.delete`."""
        return self._with(stream, lambda script: script.delete(rows, partition=partition))

    def watermark(self, stream: str, at: str | datetime) -> TestStreams:
        """Declare the watermark of a stream: no earlier event time will follow."""
        return self._with(stream, lambda script: script.watermark(at))

    def now(self, at: str | datetime) -> TestStreams:
        """Advance processing time (the clock) to `at`; timers and triggers that are due fire."""
        return self._with(next(iter(self.streams)), lambda script: script.now(at))

    def kill(self) -> TestStreams:
        """Kill the batch of the step before, before it is committed; the flow is restarted and repeats it."""
        return self._replace_steps(_last_killed(self.steps))

    # Running it

    def run(self, operator: Callable[..., Any], *, batches: Batches = "scripted") -> TestResults:
        """Run the operator on the streams without Spark; see `TestStream.run`."""
        topics = {name: stream.topic for name, stream in self.streams.items()}
        return run_scripted(topics, self.steps, operator, batches)

    def run_on_spark(self, operator: Callable[..., Any], spark: SparkSession | str = "local[2]") -> TestResults:
        """The same in a temporary home: a topic for each stream, a flow that reads them, a Spark session."""
        from mainstem.testing.scripted_home import run_in_home

        check_operator(operator)
        topics = {name: stream.topic for name, stream in self.streams.items()}
        return run_in_home(topics, self.steps, operator, spark)

    def _with(self, stream: str, stepped: Callable[[TestStream], TestStream]) -> TestStreams:
        if text(stream, "stream") not in self.streams:
            raise Invalid(
                f'there is no stream "{stream}"',
                detail=f"The streams are: {', '.join(self.streams)}.",
                hint=did_you_mean(stream, self.streams) or "Name one of these.",
            )
        step = stepped(self.streams[stream]).steps[-1]
        return self._replace_steps((*self.steps, replace(step, stream=stream)))

    def _replace_steps(self, steps: tuple[LogStep, ...]) -> TestStreams:
        script = TestStreams(**self.streams)
        object.__setattr__(script, "steps", steps)
        return script
