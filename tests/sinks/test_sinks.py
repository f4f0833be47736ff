"""Topics, views and files keep the contract of a sink, all of it; a sink in two steps does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.clock import SystemClock
from mainstem.errors import NotFound
from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.sinks.file_commits import FolderFacts
from mainstem.sinks.file_sink import FileSink
from mainstem.sinks.postgres_store import PostgresStore
from mainstem.sinks.redis_store import RedisStore
from mainstem.sinks.store import Store
from mainstem.spark.build import Build
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.view import View
from tests.contracts.sink_contract import FLOW, SinkContract, TriedSink
from tests.redis_server import RedisServer
from tests.sinks.arrow_file_writer import ArrowFileWriter

APPENDED = ("sink_rows_written", "before_sink_commit", "sink_committed")


class TriedTopic(TriedSink):
    points = APPENDED
    committed = ("sink_committed",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stem = mainstem.open(self.home, upkeep="manual")

    def sink(self) -> Any:
        with Build().enter():
            return self.stem.topic("copies")

    def writer(self, run: FlowRun) -> Any:
        return self.sink().writer(run, self.schema)

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer.append(rows, batch)

    def ids(self) -> list[int]:
        if "copies" not in self.stem.topics():
            return []
        return sorted(self.stem.topic("copies").to_arrow().column("id").to_pylist())


class TriedView(TriedSink):
    points = ("view_rows_written", "view_batch_written", "view_checked", "view_committed")
    committed = ("view_committed",)

    def sink(self) -> Any:
        return ViewWithVersion(self.home, "copies", key="id")

    def writer(self, run: FlowRun) -> Any:
        return self.sink().writer(run, self.schema)

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer.apply(rows, batch)

    def ids(self) -> list[int]:
        view = View(self.home, "copies")
        return view.to_arrow().column("id").to_pylist() if view.exists else []


class ViewWithVersion(View):
    """Which version a flow writes is known to the view of a program, which needs Spark for all else."""

    @property
    def version(self) -> int:
        return self._store.facts().live if self.exists else 1


class TriedPostgresView(TriedView):
    points = ("view_rows_written", "view_batch_written", "view_committed")

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.address = address

    def sink(self) -> Any:
        return ViewWithVersion(self.home, "copies", key="id", backend=PostgresBackend(self.address))

    def ids(self) -> list[int]:
        view = self.sink()
        return view.to_arrow().column("id").to_pylist() if view.exists else []


class TriedFiles(TriedSink):
    points = ("sink_rows_computed", *APPENDED)
    committed = ("sink_committed",)

    def sink(self) -> Any:
        return FileSink(f"{self.home}/../out/copies", self.home, _no_spark)

    def writer(self, run: FlowRun) -> Any:
        facts = FolderFacts(FLOW, schema_to_ddl(self.schema), "", (), run.version, run.epoch)
        return ArrowFileWriter(self.sink()._commits, run, self.home, facts, self.schema)

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer.write(rows, batch)

    def ids(self) -> list[int]:
        try:
            return sorted(self.sink().to_arrow().column("id").to_pylist())
        except NotFound:
            return []


class TriedPostgresStore(TriedSink):
    points = ("before_sink_commit", "sink_rows_written", "store_batch_written", "sink_committed")
    committed = ("sink_committed",)

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.address = address

    def sink(self) -> Any:
        backend = PostgresStore(self.address, "copies")
        return Store(self.home, "postgres.copies", backend, key="id", identity="home", clock=SystemClock())

    def writer(self, run: FlowRun) -> Any:
        return self.sink().table_writer(run, self.schema)

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer.commit(writer.prepare(rows), batch)

    def ids(self) -> list[int]:
        try:
            return list(self.sink().to_arrow().column("id").to_pylist())
        except NotFound:
            return []


class TriedRedisStore(TriedPostgresStore):
    points = ("before_sink_commit", "sink_rows_written", "sink_committed")

    def sink(self) -> Any:
        backend = RedisStore(self.address, "copies:")
        return Store(self.home, "redis.copies", backend, key="id", identity="home", clock=SystemClock())


def _no_spark() -> Any:
    raise AssertionError("this needs no Spark")


class TestTopic(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> TriedSink:
        return TriedTopic(tmp_path)


class TestView(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> TriedSink:
        return TriedView(tmp_path)


class TestPostgresView(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path, views_address: str) -> TriedSink:
        return TriedPostgresView(tmp_path, views_address)


class TestFiles(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> TriedSink:
        return TriedFiles(tmp_path)


class TestPostgresStore(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path, views_address: str) -> TriedSink:
        return TriedPostgresStore(tmp_path, views_address)


@pytest.mark.starts_servers
class TestRedisStore(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[TriedSink]:
        with RedisServer() as server:
            yield TriedRedisStore(tmp_path, server.address())


class InTwoSteps(TriedTopic):
    """Appends the rows, and then notes in a transaction of its own that the batch is in."""

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer._topic.append(rows)
        writer.append(rows.slice(0, 0), batch)


class Unfenced(TriedView):
    """Lets an older run go on."""

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer._check_epoch = lambda epoch: None
        writer.apply(rows, batch)


def test_a_sink_in_two_steps_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        SinkContract().test_a_batch_is_in_when_it_is_written_and_held_from_then_on(InTwoSteps(tmp_path))


def test_a_sink_without_a_fence_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        SinkContract().test_an_older_run_writes_nothing_any_more(Unfenced(tmp_path))
