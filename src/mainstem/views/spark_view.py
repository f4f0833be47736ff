"""SparkView: a view as a DataFrame, as a streaming DataFrame, and as the sink of a flow."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.arguments import checked_calls
from mainstem.batch import FlowRun
from mainstem.log.record import CHANGING_MARK, RECORD, RECORD_MARK, record_schema
from mainstem.spark.arrow_writer import ArrowWriter
from mainstem.spark.build import Leaf, current_build
from mainstem.spark.sources.topic_request import OPTION
from mainstem.spark.spark_types import spark_schema
from mainstem.views.home_views import ADDRESS
from mainstem.views.view import View
from mainstem.views.view_history import AsOf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkView"]

SOURCE = "mainstem_view"


@checked_calls
class SparkView(View):
    """A view in a program: a `View` with DataFrames."""

    takes_columns = True

    def __init__(
        self,
        home: str,
        name: str,
        session: Callable[[], SparkSession],
        *,
        key: str | Sequence[str] | None = None,
        version: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(home, name, key=key, **settings)
        self._session = session
        self._version = version

    # Into Spark

    def read(self, *, as_of: AsOf | None = None) -> DataFrame:
        """A snapshot of the rows as a DataFrame: now, or, if the view keeps its history, as of a time or a token."""
        schema = spark_schema(self.schema)
        reader = self._session().read.schema(schema)
        folder = tempfile.mkdtemp(prefix="read-", dir=_make_folder(f"{self.home}/views/.reads"))
        return reader.parquet(self.export(folder, as_of=as_of))

    def stream(self) -> DataFrame:
        """Its changes as they are committed, as a streaming DataFrame with `record` as the last column.

        It starts with every row as an insert. An update is a delete of the old row, then an insert of the new one: otherwise
        a filter would drop an update whose new row does not pass it.
        """
        build = current_build()
        number = -1 if build is None else build.number()
        if build is not None and build.run is not None and number not in build.leaves:
            return build.frames[number]
        leaf = Leaf(number, f"view {self.name}", self._shown_schema())
        if build is not None:
            leaf = build.leaves.setdefault(number, leaf)
        run = None if build is None else build.run
        columns = list(leaf.schema.names) if leaf.columns is None else list(leaf.columns)
        request = {
            "home": self.home,
            "view": self.name,
            "columns": columns,
            "flow": "" if run is None else run.flow,
            "epoch": 0 if run is None else run.epoch,
            "version": 1 if run is None else run.version,
            "leaf": number,
            "wait_ms": 100 if build is None else build.wait_ms,
            "together": "" if build is None else build.together,
        }
        schema = spark_schema(pa.schema([leaf.schema.field(name) for name in columns]))
        reader = self._session().readStream.format(SOURCE).schema(schema).option(OPTION, json.dumps(request))
        if self._backend.address is not None:
            reader = reader.option(ADDRESS, self._backend.address)
        rows = reader.load()
        if build is not None and build.run is None:
            build.frames[number] = rows
        return rows

    def _shown_schema(self) -> pa.Schema:
        build = current_build()
        planned = None if build is None else build.schemas.get(f"view:{self.name}")
        # The columns that an earlier flow of the program will write, whatever the view has now.
        columns = self.schema if planned is None else self._check_schema(planned)
        shown = record_schema(columns, record=RECORD)
        marked = shown.field("record").with_metadata({**RECORD_MARK, **CHANGING_MARK})
        return shown.set(len(shown) - 1, marked)

    # As a sink

    @property
    def version(self) -> int:
        """The version that a flow writes: the live one, or the one that is being rebuilt."""
        if self._version is not None:
            return self._version
        return self._store.facts().live if self.exists else 1

    def accept(self, schema: pa.Schema, *, version: int | None = None) -> None:
        super().accept(schema, version=self._version if version is None else version)

    def writer(self, run: FlowRun, schema: pa.Schema) -> ArrowWriter:  # type: ignore[override]
        """Begin a run of a flow into this view."""
        return ArrowWriter(super().writer(run, schema))


def _make_folder(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    return folder
