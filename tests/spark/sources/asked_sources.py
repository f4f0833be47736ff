"""The sources of a flow asked as Spark asks them, without Spark: one after the other, each once for every batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from mainstem.spark.sources.agreed_cut import CutNote, cut_note, new_agreement, write_sources
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem

__all__ = ["AskedSources"]


class AskedSources:
    """The sources of one flow, by their requests; `restart` is a killed driver that comes back."""

    def __init__(self, stem: Mainstem, folder: Path, requests: list[dict[str, Any]]) -> None:
        self._stem = stem
        self._checkpoint = str(folder)
        self._requests = requests
        self._readers: list[TopicStreamReader] = []
        # Where each source stands, as Spark would have written it down; None before the first batch.
        self._at: list[dict[str, Any] | None] = [None] * len(requests)
        # Those of the last batch.
        self.rows: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        self.stop()
        folder = new_agreement(self._checkpoint)
        shared = {
            "home": self._stem.home, "log": self._stem.log.address, "together": folder, "wait_ms": 0,
            "columns": ("n", "record"),
        }  # fmt: skip
        known = [TopicRequest(**{**shared, "leaf": leaf, **request}) for leaf, request in enumerate(self._requests)]
        if len(known) > 1:
            write_sources(folder, list({request.leaf: request for request in known}.values()))
        self._readers = [self._reader(request) for request in known]

    def _reader(self, request: TopicRequest) -> TopicStreamReader:
        if request.pattern:
            shown, _ = self._stem.topics(request.topic)._unite_columns(None)
            return TopicStreamReader(replace(request, columns=tuple(shown.names)), shown)
        return TopicStreamReader(request, self._stem.topic(request.topic).shown_schema(request.delay))

    def batch(self, order: list[int] | None = None) -> list[int]:
        """The `n` of the rows of the next batch, sorted: nothing if there is none."""
        ends = {}
        for leaf in order or range(len(self._readers)):
            reader, at = self._readers[leaf], self._at[leaf]
            start = reader.initialOffset() if at is None else at
            ends[leaf] = start, reader.latestOffset(start, ReadAllAvailable())
        found = []
        for leaf, (start, end) in ends.items():
            reader = self._readers[leaf]
            for part in reader.partitions(start, end):
                found += [row for rows in reader.read(part) for row in rows.to_pylist()]
            self._at[leaf] = end
        self.rows = found
        return sorted(row["n"] for row in found)

    def batches(self, empty_max: int = 2) -> list[list[int]]:
        """All batches until there is nothing more."""
        found, empty = [], 0
        while empty < empty_max:
            rows = self.batch()
            empty = 0 if rows else empty + 1
            found += [rows] if rows else []
        return found

    @property
    def offsets(self) -> list[dict[str, Any] | None]:
        """Where each source stands."""
        return list(self._at)

    @property
    def note(self) -> CutNote:
        return cut_note(self._checkpoint)

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()
