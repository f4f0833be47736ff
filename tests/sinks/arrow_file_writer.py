"""A files sink without Spark: rows are Arrow tables, staged as Spark would; and a process that is killed while it writes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem import crash_points
from mainstem.batch import Batch, FlowRun
from mainstem.sinks.file_commits import FolderFacts
from mainstem.sinks.file_sink import MARK, NO_VALUE, FileSink, FileWriter
from mainstem.spark.checkpoint.flow_store import FlowStore

SCHEMA = pa.schema([("id", pa.int64()), ("store", pa.string()), ("amount", pa.float64())])
FLOW = "out.orders"


class ArrowFileWriter(FileWriter):
    """Stages with Arrow, one file for each folder, as Spark with one task would."""

    def _stage(self, rows, staged):
        by = list(self._partition_by)
        folders: dict[tuple, list[int]] = {}
        for number, row in enumerate(rows.to_pylist()):
            values = [row[name] for name in by]
            marks = [f"{'e' if v == '' else 'n'}{n}" for n, v in enumerate(values) if v in ("", NO_VALUE)]
            place = [f"{MARK}={','.join(marks) or '-'}"] if self._doubtful else []
            place += [f"{n}={quote(str(v), safe=' ') if v else NO_VALUE}" for n, v in zip(by, values, strict=True)]
            folders.setdefault(tuple(place), []).append(number)
        os.makedirs(staged, exist_ok=True)
        for place, numbers in folders.items():
            os.makedirs("/".join([staged, *place]), exist_ok=True)
            part = rows.take(numbers).drop_columns(by)
            pq.write_table(part, "/".join([staged, *place, "part-00000.snappy.parquet"]))
        Path(staged, "_SUCCESS").touch()


def sink_at(folder: Path, partition_by=("store",)) -> FileSink:
    return FileSink(folder / "out" / "orders", str(folder / "home"), _no_spark, partition_by=partition_by)


def _no_spark():
    raise AssertionError("this needs no Spark")


def begin(
    folder: Path, partition_by=("store",), version: int = 1, writer=ArrowFileWriter
) -> tuple[FlowRun, FileWriter]:
    """A run of the flow, which fences the ones before it."""
    run = FlowStore(str(folder / "home"), FLOW).begin(version)
    sink = sink_at(folder, partition_by)
    facts = FolderFacts(FLOW, "id BIGINT, store STRING, amount DOUBLE", "", partition_by, version, run.epoch)
    return run, writer(sink._commits, run, str(folder / "home"), facts, SCHEMA)


def rows_of(batch: int) -> pa.Table:
    """The rows of a batch: always the same, in three folders."""
    numbers = range(batch * 10, batch * 10 + 10)
    stores = ["A", "B c", None]
    return pa.table(
        {"id": list(numbers), "store": [stores[n % 3] for n in numbers], "amount": [n / 4 for n in numbers]},
        schema=SCHEMA,
    )


def write(run: FlowRun, writer: FileWriter, batch: int) -> None:
    writer.write(rows_of(batch), Batch(batch, run, {"orders": {0: batch * 10 + 10}}))


def committed_ids(folder: Path) -> list[int]:
    """What our own reader shows."""
    return sorted(sink_at(folder).to_arrow().column("id").to_pylist())


def globbed_ids(folder: Path) -> list[int]:
    """What somebody sees who reads every Parquet file of the folder."""
    paths = (folder / "out" / "orders").glob("**/*.parquet")
    return sorted(n for path in paths for n in pq.read_table(path, partitioning=None).column("id").to_pylist())


def killed_at(point: str, work: Callable[[], None]) -> bool:
    """Do it in a process of its own, which is killed at a named point; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            crash_points._reached.clear()
            os.environ[crash_points.VARIABLE] = point
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, f"{point}: it failed instead of being killed"
    return False
