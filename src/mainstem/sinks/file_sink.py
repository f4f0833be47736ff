"""FileSink: a folder of Parquet files into which a flow writes each batch exactly once."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from mainstem.arguments import column_names, path_text
from mainstem.batch import Batch, FlowRun, Written
from mainstem.crash_points import reach
from mainstem.durable_files import REAL_FILES, sync_file
from mainstem.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, SchemaMismatch, did_you_mean
from mainstem.log.rows.normal_schema import normal_type
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl, type_to_ddl
from mainstem.names import check_name
from mainstem.sinks.file_commits import CommittedBatch, CommittedFile, FileCommits, FolderFacts
from mainstem.spark.checkpoint.flow_store import check_epoch
from mainstem.spark.checkpoint.rejected_rows import Rejection, reject
from mainstem.spark.columnar_rows import ColumnarRows, StageFile
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FileSink", "FileWriter"]


# FileWriter: the batches of a flow as Parquet files, each once.
#
#     .<folder>.staging/7-17/            Spark's files of batch 17 in the run with epoch 7; beside the folder
#     <folder>/store=A/<flow>-v1-000000000017-0000.parquet
#
# Spark's own writer writes the rows of a batch into a staging folder beside the real one. Then, under the folder's lock and
# if no newer run has started, its files are synced, renamed after flow, version and batch, and the batch is committed
# (`file_commits`). Files that a dead run moved and did not commit are removed when the next run starts, under the same lock:
# from then on all Parquet files of the folder together have each row once; our own readers read only committed files.
#
# The epoch is checked twice under the lock, before anything is moved and before the commit. A run that was paused in
# between is fenced. If it is paused after the second check, its commit is valid: the newer run waits for the lock, starts
# after it and finds the batch committed.


# A partition column of staged rows: it names the columns of a row whose values would get the folder of null.
MARK = "mainstem_rejected"
# The folder of a null in Hive, Spark and Arrow, and also of an empty text.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class FileWriter:
    """Writes a folder for one run of a flow. For one thread."""

    def __init__(self, commits: FileCommits, run: FlowRun, home: str, wanted: FolderFacts, schema: pa.Schema) -> None:
        self._commits = commits
        self._run = run
        self._home = home
        self._schema = schema
        self._partition_by = wanted.partition_by
        head, tail = os.path.split(commits.folder)
        self._staging = f"{head}/.{tail}.staging"
        # Only text has two values (null and empty) with the same folder.
        self._doubtful = [name for name in wanted.partition_by if pa.types.is_string(schema.field(name).type)]
        self._name = re.compile(rf"{re.escape(run.flow)}-v(\d+)-(\d{{12}})-\d{{4,}}\.parquet")
        self._begin(wanted)

    @property
    def committed_batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        return self._committed_batch

    def close(self) -> None:
        """Nothing is open between batches."""

    # Starting a run

    def _begin(self, wanted: FolderFacts) -> None:
        with self._commits.lock():
            known = self._commits.facts()
            if known is not None and known.flow != self._run.flow:
                raise Conflict(
                    f'"{self._commits.folder}" is written by flow "{known.flow}"',
                    detail=f'Flow "{self._run.flow}" wants to write it too; a folder tracks the batches of one flow only.',
                    hint=f'Give the flow its own folder, or its old name: Flow(..., name="{known.flow}").',
                )
            if known is not None and known.version != self._run.version:
                raise Conflict(
                    f'"{self._commits.folder}" has version {known.version} of its rows, and cannot have another beside it',
                    detail=f"Readers of the folder would find both, or nothing until version {self._run.version} is complete.",
                    hint="Let the flow write into its own folder, and read that one when it is complete.",
                )
            self._check_epoch(known)
            folder_id = known.id if known is not None and known.id else uuid.uuid4().hex
            self._commits.put_facts(replace(wanted, version=self._run.version, epoch=self._run.epoch, id=folder_id))
            self._committed_batch = self._commits.committed_batch(self._run.version)
            self._remove_leftovers()
            shutil.rmtree(self._staging, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Remove files that a run moved into the folder and did not commit."""
        for folder, folders, names in os.walk(self._commits.folder):
            folders[:] = [name for name in folders if name != "_mainstem"]
            for name in names:
                match = self._name.fullmatch(name)
                if match and int(match[2]) > self._committed_batch:
                    os.remove(f"{folder}/{name}")

    # One batch

    @property
    def column_task(self) -> StageFile | None:
        """Readers write the files themselves, if Spark would write the same columns."""
        alike = all(_is_written_alike(field.type) for field in self._schema)
        return StageFile(f"{self._staging}/{self._run.epoch}-columns") if alike else None

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Stage the rows, then move and commit them."""
        staged = f"{self._staging}/{self._run.epoch}-{batch.number}"
        return self._take_staged(staged, batch, lambda: self._stage(rows, staged))

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        """Move and commit the files that the readers wrote."""
        task = self.column_task
        assert task is not None

        def stage() -> dict[str, int]:
            return dict(json.loads(result.to_pybytes()) for result in rows.results())

        return self._take_staged(task.folder, batch, stage)

    def _take_staged(self, staged: str, batch: Batch, stage: Callable[[], dict[str, int] | None]) -> Written:
        """`stage`: writes the files; if it returns them, with their numbers of rows, others in the folder are leftovers."""
        try:
            written = stage()
            reach("sink_rows_computed")
            began = time.perf_counter_ns()
            taken, refused = self._staged_files(staged) if written is None else (written, [])
            table, rejections = self._collect_rejected(staged, refused)
            reject(batch, table, rejections, taken=sum(taken.values()))
            for path in taken:
                sync_file(REAL_FILES, f"{staged}/{path}")
            rows_in = self._commit(staged, taken, batch, len(rejections))
        except Exception:
            # A newer run removes staged files: if there is one, it caused the error.
            self._check_epoch(self._commits.facts())
            raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return Written(rows_in, len(rejections), sink_ms=(time.perf_counter_ns() - began) // 1_000_000)

    def _commit(self, staged: str, taken: Mapping[str, int], batch: Batch, rejected: int) -> int:
        with self._commits.lock():
            self._check_epoch(self._commits.facts())
            files = self._move(staged, taken, batch)
            reach("before_sink_commit")
            self._check_epoch(self._commits.facts())
            rows = sum(taken.values())
            ends = {topic: {str(number): end for number, end in by.items()} for topic, by in batch.offsets.items()}
            committed = CommittedBatch(batch.number, self._run.epoch, rows, rejected, ends, tuple(files))
            self._commits.commit(self._run.version, committed)
        self._committed_batch = batch.number
        reach("sink_committed")
        return rows

    def _stage(self, rows: DataFrame, staged: str) -> None:
        # The session belongs to the query alone. All readers support microseconds, but not Spark's older INT96.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        folders = list(self._partition_by)
        if self._doubtful:
            rows = rows.withColumn(MARK, _mark(self._doubtful))
            folders = [MARK, *folders]
        writer = rows.write.mode("overwrite")
        (writer.partitionBy(*folders) if folders else writer).parquet(f"file://{staged}")

    def _staged_files(self, staged: str) -> tuple[dict[str, int], list[str]]:
        """The files to be moved, each with its number of rows, and those of rejected rows."""
        taken, refused = {}, []
        for folder, _, names in os.walk(staged):
            for name in names:
                if name.endswith(".parquet"):
                    path = os.path.relpath(f"{folder}/{name}", staged)
                    if self._doubtful and path.split("/")[0] != f"{MARK}=-":
                        refused.append(path)
                        continue
                    count = pq.read_metadata(f"{staged}/{path}").num_rows
                    if count:
                        taken[path] = count
        return dict(sorted(taken.items())), sorted(refused)

    def _move(self, staged: str, taken: Mapping[str, int], batch: Batch) -> list[CommittedFile]:
        folder = self._commits.folder
        moved, touched = [], set()
        for number, (path, rows) in enumerate(taken.items()):
            parts = path.split("/")[1 if self._doubtful else 0 : -1]
            name = f"{self._run.flow}-v{self._run.version}-{batch.number:012}-{number:04}.parquet"
            place = "/".join([*parts, name])
            touched |= {"/".join([folder, *parts[:depth]]) for depth in range(len(parts) + 1)}
            os.makedirs(os.path.dirname(f"{folder}/{place}"), exist_ok=True)
            os.replace(f"{staged}/{path}", f"{folder}/{place}")
            reach("sink_rows_written")
            moved.append(CommittedFile(place, rows, os.path.getsize(f"{folder}/{place}")))
        for each in sorted(touched):
            REAL_FILES.sync_directory(each)
        return moved

    # Rejected rows

    def _collect_rejected(self, staged: str, paths: Sequence[str]) -> tuple[pa.Table, list[Rejection]]:
        """The complete rows whose folder would be that of a null, and why each is rejected."""
        tables: list[pa.Table] = []
        rejections: list[Rejection] = []
        for path in paths:
            folders = {unquote(name): text for name, text in (part.split("=", 1) for part in path.split("/")[:-1])}
            marks = folders.pop(MARK).split(",")
            values = {self._doubtful[int(mark[1:])]: "" if mark[0] == "e" else NO_VALUE for mark in marks}
            table = pq.read_table(f"{staged}/{path}", partitioning=None)
            for name, text in folders.items():
                data_type = self._schema.field(name).type
                value = values.get(name, None if text == NO_VALUE else unquote(text))
                whole = pa.array([value], pa.string()).cast(data_type)[0]
                table = table.append_column(name, pa.repeat(whole, len(table)))
            column, text = next(iter(values.items()))
            reason = f'column "{column}" is "{text}", and its folder would have the same name as that of a null'
            rejections += [Rejection(len(rejections) + row, reason) for row in range(len(table))]
            tables.append(table.select(self._schema.names).cast(self._schema.remove_metadata()))
        return pa.concat_tables([self._schema.remove_metadata().empty_table(), *tables]), rejections

    def _check_epoch(self, known: FolderFacts | None) -> None:
        check_epoch(self._home, self._run)
        if known is not None and known.epoch > self._run.epoch and known.version == self._run.version:
            raise Fenced(
                f'this run of flow "{self._run.flow}" is fenced from "{self._commits.folder}"',
                detail=f"This run has epoch {self._run.epoch}; a newer run with epoch {known.epoch} has started. Nothing of the "
                "batch is committed.",
                hint="Only one run of a flow may write; the newer one continues. Start this one again to take over. If the flow "
                "was dropped, delete the folder too.",
                epoch=self._run.epoch,
                current_epoch=known.epoch,
            )


def _is_written_alike(of: pa.DataType) -> bool:
    """Whether Arrow writes a column into Parquet as Spark does."""
    if kinds.is_nested(of):
        return all(_is_written_alike(of.field(place).type) for place in range(of.num_fields))
    plain = (
        kinds.is_boolean, kinds.is_signed_integer, kinds.is_floating, kinds.is_decimal128, kinds.is_string, kinds.is_binary,
        kinds.is_date32, kinds.is_timestamp,
    )  # fmt: skip
    return any(is_of(of) for is_of in plain)


def _mark(doubtful: Sequence[str]) -> Column:
    """The numbers of the columns that are empty ("e0") or equal to NO_VALUE ("n0"); a dash if there are none."""
    from pyspark.sql import functions as F

    marks = []
    for place, name in enumerate(doubtful):
        column = F.col(f"`{name}`")
        marks.append(F.when(column == "", f"e{place}").when(column == NO_VALUE, f"n{place}"))
    joined = F.concat_ws(",", *marks)
    return F.when(joined == "", "-").otherwise(joined)


class FileSink:
    """A folder of Parquet files; created by `stem.files(path, partition_by=[...])`.

    With `partition_by` there is a folder for each value of these columns, as in Spark, Hive and DuckDB:
    `store=A/...parquet`. All columns are written, including `record`; drop it from the rows if you do not want it.
    `read()` and `to_arrow()` return only committed rows.
    """

    kind = "files"

    def __init__(
        self,
        path: str | os.PathLike[str],
        home: str,
        session: Callable[[], SparkSession],
        *,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        self.path = os.path.abspath(path_text(path, "path"))
        self.partition_by = column_names(partition_by, "partition_by")
        self.name = _name_of(self.path)
        self._home = home
        self._session = session
        # Spark divides rows into folders by value.
        self.takes_columns = not self.partition_by
        self._commits = FileCommits(self.path)

    def __repr__(self) -> str:
        by = f", by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f'<files in "{self.path}"{by}>'

    # Reading

    def read(self) -> DataFrame:
        """The committed rows as a DataFrame."""
        facts, batches = self._read_committed()
        spark = self._session()
        schema = spark_schema(_known_schema(facts))
        paths = self._paths(batches)
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", f"file://{self.path}")
        # Spark returns the partition columns last.
        return reader.parquet(*(f"file://{path}" for path in paths)).select(*(f"`{name}`" for name in schema.names))

    def to_arrow(self) -> pa.Table:
        """The committed rows as one table."""
        facts, batches = self._read_committed()
        schema = _known_schema(facts)
        folders = pa.schema([schema.field(name) for name in facts.partition_by])
        # Imports pandas, which takes 0.75 seconds: most commands do not need it.
        import pyarrow.dataset as ds

        # With a list of files: else Arrow would also read uncommitted ones.
        files = ds.dataset(
            self._paths(batches),
            schema=schema,
            format="parquet",
            partitioning=ds.partitioning(folders, flavor="hive"),
            partition_base_dir=self.path,
        )
        return files.to_table()

    def _paths(self, batches: Sequence[CommittedBatch]) -> list[str]:
        paths = []
        for batch in batches:
            for file in batch.files:
                path = f"{self.path}/{file.path}"
                size = os.path.getsize(path) if os.path.exists(path) else -1
                if size != file.bytes:
                    raise Corrupt(
                        f'"{path}" is ' + ("missing" if size < 0 else "damaged"),
                        detail=f"Batch {batch.batch} was committed with it: {file.rows} rows, {file.bytes} bytes"
                        + ("." if size < 0 else f"; now it has {size}."),
                        hint="Restore it from a copy, or rebuild the folder from the log: delete it together with its flow.",
                        path=path,
                    )
                paths.append(path)
        return paths

    def _read_committed(self) -> tuple[FolderFacts, list[CommittedBatch]]:
        facts = self._commits.facts()
        if facts is None:
            raise NotFound(
                f'no flow has written files into "{self.path}"',
                detail="The folder does not exist."
                if not os.path.isdir(self.path)
                else 'It has no "_mainstem" folder.',
                hint='Run a flow into it: Flow(rows, into=stem.files("...")).',
            )
        return facts, list(self._commits.batches(facts.version))

    # As a sink

    @property
    def exists(self) -> bool:
        """Whether a flow has written into the folder."""
        return self._commits.facts() is not None

    @property
    def id(self) -> str:
        """The id of the folder, which stays when it is moved or restored. Empty before a flow has written."""
        facts = self._commits.facts()
        return "" if facts is None else facts.id

    @property
    def location(self) -> str:
        """The absolute path of the folder."""
        return self.path

    @property
    def version(self) -> int:
        """The version of the flow that writes it."""
        facts = self._commits.facts()
        return 1 if facts is None else facts.version

    def accept(self, schema: pa.Schema) -> None:
        """Raise if rows of this schema could not be written."""
        self._check_columns(schema)
        known = self._commits.facts()
        if known is None:
            if os.path.isdir(self.path) and any(not name.startswith(("_", ".")) for name in os.listdir(self.path)):
                raise Conflict(
                    f'"{self.path}" has files that no flow has written',
                    detail="Readers of the folder would take them for rows of the flow.",
                    hint="Give an empty folder, or one that does not exist yet.",
                )
            return
        if known.partition_by != self.partition_by:
            raise Conflict(
                f'"{self.path}" is partitioned by {_list(known.partition_by)}, not by {_list(self.partition_by)}',
                detail="A folder with both layouts could not be read as one table.",
                hint=f"Use partition_by={list(known.partition_by)}, or give another folder.",
            )
        self._check_follows(_known_schema(known), _plain(schema))

    def writer(self, run: FlowRun, schema: pa.Schema) -> FileWriter:
        """Begin a run of a flow into this folder."""
        self.accept(schema)
        plain = _plain(schema)
        columns = pa.schema([field for field in plain if field.name != "record"])
        record = type_to_ddl(plain.field("record").type) if "record" in plain.names else ""
        facts = FolderFacts(run.flow, schema_to_ddl(columns), record, self.partition_by, run.version, run.epoch)
        return FileWriter(self._commits, run, self._home, facts, plain)

    def _check_columns(self, schema: pa.Schema) -> None:
        for name in self.partition_by:
            if name not in schema.names:
                raise SchemaMismatch(
                    f'the rows lack the column "{name}", by which the files in "{self.path}" are partitioned',
                    detail=f"Their columns are: {', '.join(schema.names)}.",
                    hint=did_you_mean(name, schema.names) or "Name one of these.",
                    column=name,
                )
            kind = schema.field(name).type
            if not (kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_date(kind)):
                raise Invalid(
                    f'files cannot be partitioned by column "{name}", which is {kind}',
                    detail="The name of a folder can represent exactly only texts, integers, booleans and dates.",
                    hint=f'Partition by a day or a text instead: rows.withColumn("day", F.to_date("{name}")).',
                )
        if len(set(self.partition_by)) < len(self.partition_by) or len(self.partition_by) == len(schema):
            raise Invalid(
                f"files cannot be partitioned by {_list(self.partition_by)}",
                detail=f"The columns of the rows are: {', '.join(schema.names)}. At least one must be left for the files, and "
                "none may be named twice.",
                hint="Leave one out.",
            )
        _plain(schema)  # Raises for a type that files do not support.
        if MARK in schema.names:
            raise Invalid(
                f'the rows have a column "{MARK}"', detail="The sink uses that name itself.", hint="Rename the column."
            )

    def _check_follows(self, old: pa.Schema, new: pa.Schema) -> None:
        """Raise if columns were removed or changed; new ones are null in older files."""
        for field in old:
            if field.name not in new.names or not new.field(field.name).type.equals(field.type):
                now = f"is {new.field(field.name).type} now" if field.name in new.names else "is missing now"
                raise SchemaMismatch(
                    f'column "{field.name}" of the rows for "{self.path}" {now}',
                    detail=f"The existing files have it as {field.type}.",
                    hint="Give the flow a new folder for the new rows.",
                    column=field.name,
                )


def _plain(schema: pa.Schema) -> pa.Schema:
    """The columns of the files: without marks, all nullable, `record` last."""
    columns = [pa.field(field.name, normal_type(field.type, field.name)) for field in schema if field.name != "record"]
    records = [pa.field("record", normal_type(field.type, "record")) for field in schema if field.name == "record"]
    return pa.schema([*columns, *records])


def _known_schema(facts: FolderFacts) -> pa.Schema:
    columns = schema_from_ddl(facts.schema)
    # The name is reserved, and so cannot be in the stored DDL.
    record = [schema_from_ddl(f"entry {facts.record}").field(0).with_name("record")] if facts.record else []
    return pa.schema([*columns, *record])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _name_of(path: str) -> str:
    """A name for a flow into a folder, from the last two parts of its path.

    >>> _name_of("/data/out/orders by store")
    'out.orders_by_store'
    """
    parts = [re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_-") for part in path.split("/")[-2:]]
    return check_name(".".join(part for part in parts if part) or "files", "flow")
