"""FileWriter: the batches of a flow as Parquet files, each once.

    .<folder>.staging/7-17/            what Spark writes of batch 17 in the run with epoch 7; beside the folder
    <folder>/store=A/<flow>-v1-000000000017-0000.parquet

Spark's own writer puts the rows of a batch into a staging folder beside the real one. Then, under the folder's lock and
if no later run has begun, its files are synced, moved to names that follow from flow, version and batch, and the batch is
committed (`file_commits`). What was moved and not committed when a run died is removed when the next one begins, under
the same lock: whoever reads all Parquet files of the folder then sees each row once, and our own readers always do.

The epoch is looked at twice inside the lock, before anything is moved and before the commit. A run that was stopped in
between finds that a later one has begun; should it be stopped after the second look, its commit counts: the later run
waits for the lock, begins after it and finds the batch held.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced
from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log.embedded.files import sync_file
from mainstem.log_on_spark.flow_run import Batch, FlowRun, Written
from mainstem.log_on_spark.flow_store import check_epoch
from mainstem.log_on_spark.rejected_rows import Rejection, reject
from mainstem.sinks.file_commits import CommittedBatch, CommittedFile, FileCommits, FolderFacts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FileWriter"]

# A folder that is there while rows are staged: which columns of a row cannot be told from null as the name of a folder.
MARK = "mainstem_rejected"
# How Hive, Spark and Arrow write the folder of a null, and, alas, of an empty text too.
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
        # Text is the only type with two values for which there is one folder.
        self._doubtful = [name for name in wanted.partition_by if pa.types.is_string(schema.field(name).type)]
        self._name = re.compile(rf"{re.escape(run.flow)}-v(\d+)-(\d{{12}})-\d{{4,}}\.parquet")
        self._begin(wanted)

    @property
    def held(self) -> int:
        """The last batch that is in; -1 if there is none."""
        return self._held

    def close(self) -> None:
        """Nothing is open between batches."""

    # The beginning of a run

    def _begin(self, wanted: FolderFacts) -> None:
        with self._commits.locked():
            known = self._commits.facts()
            if known is not None and known.flow != self._run.flow:
                raise Conflict(
                    f'"{self._commits.folder}" is written by flow "{known.flow}"',
                    detail=f'Flow "{self._run.flow}" wants to write it too; each would take the other\'s batches for its own.',
                    hint=f'Give the flow a folder of its own, or its old name: Flow(..., name="{known.flow}").',
                )
            if known is not None and known.version != self._run.version:
                raise Conflict(
                    f'"{self._commits.folder}" holds version {known.version} of its rows, and cannot hold another beside it',
                    detail=f"Whoever reads the folder would find both, or nothing until version {self._run.version} is done.",
                    hint="Let the flow write into a folder of its own, and read that one when it is done.",
                )
            self._check_epoch(known)
            folder_id = known.id if known is not None and known.id else uuid.uuid4().hex
            self._commits.put_facts(replace(wanted, version=self._run.version, epoch=self._run.epoch, id=folder_id))
            self._held = self._commits.held(self._run.version)
            self._remove_leftovers()
            shutil.rmtree(self._staging, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Files that a run moved in and did not commit."""
        for folder, folders, names in os.walk(self._commits.folder):
            folders[:] = [name for name in folders if name != "_mainstem"]
            for name in names:
                match = self._name.fullmatch(name)
                if match and int(match[2]) > self._held:
                    os.remove(f"{folder}/{name}")

    # One batch

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Stage the rows, then move and commit them."""
        staged = f"{self._staging}/{self._run.epoch}-{batch.number}"
        try:
            self._stage(rows, staged)
            reach("sink_rows_computed")
            taken, refused = self._staged_files(staged)
            table, rejections = self._rejected(staged, refused)
            reject(batch, table, rejections, taken=sum(taken.values()))
            for path in taken:
                sync_file(REAL_FILES, f"{staged}/{path}")
            rows_in = self._commit(staged, taken, batch, len(rejections))
        except Exception:
            # A later run clears away what it finds staged: then whatever failed, failed of that.
            self._check_epoch(self._commits.facts())
            raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return Written(rows_in, len(rejections))

    def _commit(self, staged: str, taken: Mapping[str, int], batch: Batch, rejected: int) -> int:
        with self._commits.locked():
            self._check_epoch(self._commits.facts())
            files = self._move(staged, taken, batch)
            reach("before_sink_commit")
            self._check_epoch(self._commits.facts())
            rows = sum(taken.values())
            ends = {topic: {str(number): end for number, end in by.items()} for topic, by in batch.offsets.items()}
            committed = CommittedBatch(batch.number, self._run.epoch, rows, rejected, ends, tuple(files))
            self._commits.commit(self._run.version, committed)
        self._held = batch.number
        reach("sink_committed")
        return rows

    def _stage(self, rows: DataFrame, staged: str) -> None:
        # A session of the query's own. Microseconds are read exactly by everyone, Spark's older form is not.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        folders = list(self._partition_by)
        if self._doubtful:
            rows = rows.withColumn(MARK, _mark(self._doubtful))
            folders = [MARK, *folders]
        writer = rows.write.mode("overwrite")
        (writer.partitionBy(*folders) if folders else writer).parquet(f"file://{staged}")

    def _staged_files(self, staged: str) -> tuple[dict[str, int], list[str]]:
        """The files that are to be moved, each with its number of rows, and those of rows that are refused."""
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

    # Rows that are refused

    def _rejected(self, staged: str, paths: Sequence[str]) -> tuple[pa.Table, list[Rejection]]:
        """The rows whose folder would be that of a null, whole again, and why each is refused."""
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
            reason = f'column "{column}" is "{text}", and no folder can be told from that of a null by this name'
            rejections += [Rejection(len(rejections) + row, reason) for row in range(len(table))]
            tables.append(table.select(self._schema.names).cast(self._schema.remove_metadata()))
        return pa.concat_tables([self._schema.remove_metadata().empty_table(), *tables]), rejections

    def _check_epoch(self, known: FolderFacts | None) -> None:
        check_epoch(self._home, self._run)
        if known is not None and known.epoch > self._run.epoch and known.version == self._run.version:
            raise Fenced(
                f'flow "{self._run.flow}" may not write "{self._commits.folder}" any more',
                detail=f"This run has epoch {self._run.epoch}; one with epoch {known.epoch} has begun. Nothing of the "
                "batch counts.",
                hint="Two runs of a flow cannot be: the later one goes on. Start this one again to take over. If the flow "
                "was dropped, delete the folder too.",
                epoch=self._run.epoch,
                current_epoch=known.epoch,
            )


def _mark(doubtful: Sequence[str]) -> Column:
    """The places of the columns that are empty ("e0") or named like nothing ("n0"); a dash if there are none."""
    from pyspark.sql import functions as F

    marks = []
    for place, name in enumerate(doubtful):
        column = F.col(f"`{name}`")
        marks.append(F.when(column == "", f"e{place}").when(column == NO_VALUE, f"n{place}"))
    joined = F.concat_ws(",", *marks)
    return F.when(joined == "", "-").otherwise(joined)
