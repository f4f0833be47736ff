"""FileSink: a folder of Parquet files that a flow adds to, each batch once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.arguments import column_names, path_text
from mainstem.errors import Conflict, Corrupt, Invalid, NotFound, SchemaMismatch, did_you_mean
from mainstem.log.normal_schema import normal_type
from mainstem.log.schema_ddl import schema_from_ddl, schema_to_ddl, type_to_ddl
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.log_on_spark.spark_types import spark_schema
from mainstem.names import check_name
from mainstem.sinks.file_commits import CommittedBatch, FileCommits, FolderFacts
from mainstem.sinks.file_writer import MARK, FileWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FileSink"]


class FileSink:
    """A folder of Parquet files; made by `stem.files(path, partition_by=[...])`.

    With `partition_by` there is a folder for each value of these columns, as Spark, Hive and DuckDB know it:
    `store=A/...parquet`. All columns are written, `record` among them; drop it from the rows where it is not wanted.
    `read()` and `to_arrow()` give what is committed.
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
        self._commits = FileCommits(self.path)

    def __repr__(self) -> str:
        by = f", by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f'<files in "{self.path}"{by}>'

    # Reading

    def read(self) -> DataFrame:
        """What is committed now, as a DataFrame."""
        facts, batches = self._committed()
        spark = self._session()
        schema = spark_schema(_known_schema(facts))
        paths = self._paths(batches)
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", f"file://{self.path}")
        # Spark gives the columns that folders are named after last.
        return reader.parquet(*(f"file://{path}" for path in paths)).select(*(f"`{name}`" for name in schema.names))

    def to_arrow(self) -> pa.Table:
        """What is committed now, as one table."""
        facts, batches = self._committed()
        schema = _known_schema(facts)
        folders = pa.schema([schema.field(name) for name in facts.partition_by])
        # Brings pandas along: three quarters of a second that most commands need not wait.
        import pyarrow.dataset as ds

        # Without a list Arrow would walk the folder, and find what is not committed.
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
                        hint="Restore it from a copy, or write the folder anew from the log: delete it together with its flow.",
                        path=path,
                    )
                paths.append(path)
        return paths

    def _committed(self) -> tuple[FolderFacts, list[CommittedBatch]]:
        facts = self._commits.facts()
        if facts is None:
            raise NotFound(
                f'no flow has written files into "{self.path}"',
                detail="The folder is not there." if not os.path.isdir(self.path) else 'It has no "_mainstem" folder.',
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
        """What tells the folder from another one: it keeps it when it is moved or restored. Empty before a flow has written."""
        facts = self._commits.facts()
        return "" if facts is None else facts.id

    @property
    def location(self) -> str:
        """The absolute path of the folder."""
        return self.path

    @property
    def version(self) -> int:
        """Which version of the flow writes it."""
        facts = self._commits.facts()
        return 1 if facts is None else facts.version

    def accept(self, schema: pa.Schema) -> None:
        """Raise if rows of this schema could not be written."""
        self._check_columns(schema)
        known = self._commits.facts()
        if known is None:
            if os.path.isdir(self.path) and any(not name.startswith(("_", ".")) for name in os.listdir(self.path)):
                raise Conflict(
                    f'"{self.path}" holds files that no flow has written',
                    detail="Whoever reads the folder would take them for rows of the flow.",
                    hint="Give an empty folder, or one that is not there yet.",
                )
            return
        if known.partition_by != self.partition_by:
            raise Conflict(
                f'"{self.path}" is divided by {_list(known.partition_by)}, not by {_list(self.partition_by)}',
                detail="Folders of both kinds could not be read as one.",
                hint=f"Write partition_by={list(known.partition_by)}, or give another folder.",
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
                    f'the rows have no column "{name}" to divide the files in "{self.path}" by',
                    detail=f"Their columns are: {', '.join(schema.names)}.",
                    hint=did_you_mean(name, schema.names) or "Name one of these.",
                    column=name,
                )
            kind = schema.field(name).type
            if not (kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_date(kind)):
                raise Invalid(
                    f'files cannot be divided by column "{name}", which is {kind}',
                    detail="The name of a folder holds text, whole numbers, true and false, and dates exactly.",
                    hint=f'Divide by a day or a text instead: rows.withColumn("day", F.to_date("{name}")).',
                )
        if len(set(self.partition_by)) < len(self.partition_by) or len(self.partition_by) == len(schema):
            raise Invalid(
                f"files cannot be divided by {_list(self.partition_by)}",
                detail=f"The columns of the rows are: {', '.join(schema.names)}. One at least must be left for the files, and "
                "none can be named twice.",
                hint="Leave one out.",
            )
        _plain(schema)  # Raises for a type that a file cannot hold.
        if MARK in schema.names:
            raise Invalid(
                f'the rows have a column "{MARK}"', detail="The name is used here.", hint="Rename the column."
            )

    def _check_follows(self, old: pa.Schema, new: pa.Schema) -> None:
        """Columns may be added: in older files they are null."""
        for field in old:
            if field.name not in new.names or not new.field(field.name).type.equals(field.type):
                now = f"is {new.field(field.name).type} now" if field.name in new.names else "is not there any more"
                raise SchemaMismatch(
                    f'column "{field.name}" of the rows for "{self.path}" {now}',
                    detail=f"The files that are there have it as {field.type}.",
                    hint="Give the flow a folder of its own for the new rows.",
                    column=field.name,
                )


def _plain(schema: pa.Schema) -> pa.Schema:
    """The columns as files hold them: without marks, none of them required, `record` last."""
    columns = [pa.field(field.name, normal_type(field.type, field.name)) for field in schema if field.name != "record"]
    records = [pa.field("record", normal_type(field.type, "record")) for field in schema if field.name == "record"]
    return pa.schema([*columns, *records])


def _known_schema(facts: FolderFacts) -> pa.Schema:
    columns = schema_from_ddl(facts.schema)
    # The name is reserved, and so cannot be in a schema that is written down.
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
