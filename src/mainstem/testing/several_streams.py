"""TestStreams: a script of several streams, to try joins and other operators of more than one with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.arguments import show_value, text
from mainstem.errors import Invalid, did_you_mean
from mainstem.testing.results import TestResults
from mainstem.testing.scripted_log import LogStep
from mainstem.testing.stream_script import Batches, TestStream, check_operator, run_scripted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TestStreams"]


@dataclass(frozen=True, init=False)
class TestStreams:
    """Streams by their names, as a test tells them, step by step. The operator takes them by these names.

    The watermark of a batch is the lowest of its streams.

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
                "TestStreams is given no streams",
                detail="The operator takes streams by the names that they have here.",
                hint='For example: TestStreams(shown=TestStream("ad INT")).',
            )
        for name, stream in streams.items():
            if not isinstance(stream, TestStream):
                raise Invalid(
                    f'stream "{name}" is {show_value(stream)}',
                    detail=f"It is of type {type(stream).__name__}; a stream is a TestStream.",
                    hint=f'For example: TestStreams({name}=TestStream("ad INT")).',
                )
        object.__setattr__(self, "streams", streams)
        object.__setattr__(self, "steps", ())

    # The script

    def rows(self, stream: str, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStreams:
        """These rows are appended to a stream, and read in one batch."""
        return self._with(stream, lambda script: script.rows(rows, partition=partition))

    def delete(self, stream: str, rows: Sequence[Mapping[str, Any]], *, partition: int = 0) -> TestStreams:
        """Deletes are appended to a stream, and read in one batch; see `TestStream.delete`."""
        return self._with(stream, lambda script: script.delete(rows, partition=partition))

    def watermark(self, stream: str, at: str | datetime) -> TestStreams:
        """The source of a stream states that nothing earlier than this will come."""
        return self._with(stream, lambda script: script.watermark(at))

    def now(self, at: str | datetime) -> TestStreams:
        """It becomes this time of day; what waits for it is due."""
        return self._with(next(iter(self.streams)), lambda script: script.now(at))

    def kill(self) -> TestStreams:
        """The batch of the step before is done and lost, and done again by a flow that is started anew."""
        if not self.steps:
            raise Invalid(
                "there is nothing to kill yet", detail="A step is killed after it.", hint="Script a step first."
            )
        return self._replaced((*self.steps[:-1], replace(self.steps[-1], killed=True)))

    # Running it

    def run(self, operator: Callable[..., Any], *, batches: Batches = "scripted") -> TestResults:
        """What the operator makes of them, without Spark; see `TestStream.run`."""
        topics = {name: stream.topic for name, stream in self.streams.items()}
        return run_scripted(topics, self.steps, operator, batches)

    def run_on_spark(self, operator: Callable[..., Any], spark: SparkSession | str = "local[2]") -> TestResults:
        """The same in a home of its own: a topic for each stream, a flow that reads them, a Spark session."""
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
        return self._replaced((*self.steps, replace(step, stream=stream)))

    def _replaced(self, steps: tuple[LogStep, ...]) -> TestStreams:
        script = TestStreams(**self.streams)
        object.__setattr__(script, "steps", steps)
        return script
