"""A topic as groups, queues and readers read it: live, or as of one moment."""

from __future__ import annotations

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.append_result import parse_token
from mainstem.log.lag import Lag
from mainstem.log.log import ReadMoment, TopicBackend
from mainstem.log.missed_deletions import Compacted


class LiveReads:
    """The committed records of a topic, partition by partition, for groups and queues."""

    def __init__(self, backend: TopicBackend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        return self._backend.name

    def partitions(self) -> int:
        return self._backend.settings.partitions

    def schema(self) -> pa.Schema:
        return self._backend.settings.schema

    def key(self) -> tuple[str, ...]:
        return self._backend.settings.key

    def earliest(self, partition: int) -> int:
        return self._backend.earliest(partition)

    def latest(self, partition: int) -> int:
        return self._backend.latest(partition)

    def end(self, partition: int) -> int:
        return self._backend.end(partition)

    def at_time(self, partition: int, at: int) -> int:
        return self._backend.at_time(partition, at)

    def after_token(self, token: str) -> dict[int, int]:
        ends = parse_token(token)
        if self.name not in ends:
            raise Invalid(
                f'the token is not for topic "{self.name}"',
                detail=f"It is for: {', '.join(ends)}.",
                hint="Give the token of an append to this topic.",
            )
        return ends[self.name]

    def read(self, partition: int, start: int, rows_max: int) -> pa.RecordBatch | None:
        return self._backend.read(partition, start, rows_max)

    def behind(self, partition: int, offset: int) -> Lag:
        return self._backend.behind(partition, offset)

    def compaction(self, partition: int) -> Compacted | None:
        return self._backend.compaction(partition)


class MomentReads(LiveReads):
    """The same as of one moment."""

    def __init__(self, backend: TopicBackend, moment: ReadMoment) -> None:
        super().__init__(backend)
        self._moment = moment

    def earliest(self, partition: int) -> int:
        return int(self._moment.earliest(partition))

    def latest(self, partition: int) -> int:
        return int(self._moment.latest(partition))

    def at_time(self, partition: int, at: int) -> int:
        return int(self._moment.at_time(partition, at))
