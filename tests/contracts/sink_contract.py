"""What every sink promises. A sink passes it whole with one fixture, `sink`: a `TriedSink`.

No Spark in here: batches are Arrow tables of one column, `id`. As the runner does it, a batch that is held is not written
again.
"""

import sys
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from mainstem import crash_points
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Fenced, Invalid
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.sinks.arrow_file_writer import killed_at

FLOW = "copies"
ROWS = 10


def ids_of(batch: int) -> list[int]:
    return list(range(batch * ROWS, batch * ROWS + ROWS))


class Died(Exception):
    """Raised at a named point instead of a kill."""


class TriedSink(ABC):
    """A sink, and the few words that its kind has of its own."""

    # The named points between the beginning of a batch and its end, and those behind which it counts.
    points: ClassVar[tuple[str, ...]]
    committed: ClassVar[tuple[str, ...]]
    schema: ClassVar[pa.Schema] = pa.schema([("id", pa.int64())])

    def __init__(self, folder: Path) -> None:
        self.home = str(folder / "home")

    @abstractmethod
    def sink(self) -> Any:
        """The sink as a program has it, opened anew."""

    @abstractmethod
    def writer(self, run: FlowRun) -> Any:
        """The writer of a run."""

    @abstractmethod
    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        """Hand a batch to a writer, without Spark."""

    @abstractmethod
    def ids(self) -> list[int]:
        """What a reader of another process would find; empty where nothing was ever written."""

    def begin(self) -> tuple[FlowRun, Any]:
        """A run of the flow, which fences those before it."""
        run = FlowStore(self.home, FLOW).begin()
        return run, self.writer(run)

    def put(self, begun: tuple[FlowRun, Any], number: int) -> None:
        run, writer = begun
        rows = pa.table({"id": ids_of(number)}, schema=self.schema)
        self.write(writer, rows, Batch(number, run, {"orders": {0: (number + 1) * ROWS}}))

    def go_on(self, last: int) -> None:
        """What a run does: everything up to a batch that is not held yet."""
        begun = self.begin()
        for number in range(begun[1].committed_batch + 1, last + 1):
            self.put(begun, number)
        begun[1].close()


def up_to(batch: int) -> list[int]:
    return list(range((batch + 1) * ROWS))


class SinkContract:
    """Each batch once, whole or not at all, by the latest run alone."""

    def test_it_may_be_named_before_it_is_there_and_holds_nothing_then(self, sink: TriedSink) -> None:
        named = sink.sink()
        assert named.kind in ("topic", "view", "files", "store")
        assert named.name
        assert named.version == 1
        named.accept(sink.schema)
        assert sink.ids() == []
        assert sink.begin()[1].committed_batch == -1

    def test_what_it_cannot_take_is_refused_before_anything_is_made(self, sink: TriedSink) -> None:
        with pytest.raises(Invalid) as refused:
            sink.sink().accept(pa.schema([("id", pa.duration("s"))]))
        assert refused.value.detail
        assert refused.value.hint
        assert sink.ids() == []

    def test_a_batch_is_in_when_it_is_written_and_held_from_then_on(self, sink: TriedSink) -> None:
        begun = sink.begin()
        for number in range(3):
            sink.put(begun, number)
            assert begun[1].committed_batch == number
            assert sink.ids() == up_to(number)
        # Also for the next run, and a number may be left out: a batch had no rows.
        later = sink.begin()
        assert later[1].committed_batch == 2
        sink.put(later, 4)
        assert later[1].committed_batch == 4
        assert sink.begin()[1].committed_batch == 4

    def test_an_older_run_writes_nothing_any_more(self, sink: TriedSink) -> None:
        older = sink.begin()
        sink.put(older, 0)
        newer = sink.begin()
        with pytest.raises(Fenced) as fenced:
            sink.put(older, 1)
        assert fenced.value.hint
        assert sink.ids() == up_to(0)
        sink.put(newer, 1)
        with pytest.raises(Fenced):
            sink.put(older, 2)
        assert sink.ids() == up_to(1)
        assert sink.begin()[1].committed_batch == 1

    def test_a_run_that_fails_in_the_middle_leaves_nothing_and_is_repeated(
        self, sink: TriedSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink.go_on(0)
        for number, point in enumerate(sink.points, start=1):
            begun = sink.begin()
            with monkeypatch.context() as patch:
                die_at(patch, point)
                with pytest.raises(Died):
                    sink.put(begun, number)
            seen = number if point in sink.committed else number - 1
            assert sink.ids() == up_to(seen), point
            assert sink.begin()[1].committed_batch == seen, point
            sink.go_on(number)
            assert sink.ids() == up_to(number), point

    def test_killed_at_any_point_it_holds_whole_batches_each_once(self, sink: TriedSink) -> None:
        for number, point in enumerate(sink.points):
            before = sink.begin()[1].committed_batch
            assert before == number * 2 - 1
            assert killed_at(f"{point}:2", partial(sink.go_on, before + 2)), f"{point} was not reached"
            seen = before + 2 if point in sink.committed else before + 1
            assert sink.begin()[1].committed_batch == seen, point
            assert sink.ids() == up_to(seen), point
            sink.go_on(before + 2)
            assert sink.ids() == up_to(before + 2), point


def die_at(patch: pytest.MonkeyPatch, point: str) -> None:
    """Let every module that reaches named points fail at this one."""
    real = crash_points.reach

    def reach(reached: str, batch: int | None = None) -> None:
        if reached == point:
            raise Died(point)

    for name, module in list(sys.modules.items()):
        if name.startswith("mainstem.") and getattr(module, "reach", None) is real:
            patch.setattr(module, "reach", reach)
