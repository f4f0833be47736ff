"""TopicRequest: a flow's read of a topic, as it is passed in the options of a Spark source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from mainstem.batch import FlowRun
from mainstem.clock import as_datetime
from mainstem.log.partition_reads import Position
from mainstem.spark.plan.row_expression import Condition

__all__ = [
    "BYTES_MAX",
    "LIGHT_ROWS_MAX",
    "Cuts",
    "Idle",
    "OPTION",
    "ROWS_MAX",
    "Start",
    "TOPICS_SOURCE",
    "TOPIC_SOURCE",
    "TopicRequest",
]


# One option for the whole request, since Spark does not keep the case of option names.
OPTION = "request"
# The names of the sources in Spark: of one topic, and of a pattern.
TOPIC_SOURCE = "mainstem_topic"
TOPICS_SOURCE = "mainstem_topics"

# The maximal number of rows of a batch, and of bytes in the log: enough for a batch's fixed cost, and little enough for
# the driver's memory.
ROWS_MAX = 500_000
# For a flow without state whose rows do not pass through the driver: this reduces the share of a batch's fixed cost.
LIGHT_ROWS_MAX = 2_000_000
BYTES_MAX = 256 << 20


# For JSON: offsets by partition, and the start of a read.
Offsets: TypeAlias = "Mapping[str, int]"
Start: TypeAlias = "str | Offsets"
Cuts: TypeAlias = "Sequence[Offsets]"
Idle: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True)
class TopicRequest:
    """A read of one topic: which columns, from where, how much at a time, and for which run of which flow."""

    home: str
    topic: str
    columns: tuple[str, ...]
    # The delay of the watermark in microseconds; None if no watermark is wanted.
    delay: int | None = None
    # As `topic.follow` takes it, a datetime as microseconds: {"at": 1}.
    start: Start = "earliest"
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX
    flow: str = ""
    epoch: int = 0
    version: int = 1
    # The number of the stream in the program, in the order of creation.
    leaf: int = -1
    # The wanted number of tasks of a batch.
    slices: int = 1
    # How long to wait for an append before reporting that there is nothing new; and whether it may wait longer, since the
    # flow reads nothing but topics.
    wait_ms: int = 100
    only_topics: bool = False
    # A filter of the rows; see `row_expression`.
    condition: Condition | None = None
    # The end offset of sealed files that were read before; see `native_history`.
    history: dict[str, Any] | None = None
    # The address of the log; empty if it is in the home.
    log: str = ""
    # The end offsets of a read that is no stream: {"0": 17}.
    stop: Offsets | None = None
    # The folder of the clock of its batches, beside the checkpoint; empty if they have none. See `batch_clock`.
    clock: str = ""
    # The batch boundaries of a replay, which ends with the last one: [{"0": 17}, ...].
    cuts: Cuts | None = None
    # For an input that may be idle: {"after": microseconds, "beside": [[topic, delay], ...]}; see `idle_input`.
    idle: Idle | None = None

    # Whether `topic` is a pattern.
    pattern: bool = False
    # The folder in which the flow's sources agree on batch boundaries; empty if no flow reads. See `agreed_cut`.
    together: str = ""

    @property
    def run(self) -> FlowRun | None:
        return FlowRun(self.flow, self.epoch, self.version) if self.flow else None

    @property
    def position(self) -> Position:
        """`start` as `topic.follow` takes it."""
        if isinstance(self.start, str):
            return self.start
        at = self.start.get("at")
        return {int(number): offset for number, offset in self.start.items()} if at is None else as_datetime(at)

    @property
    def holder(self) -> str:
        """The name under which the records of a planned batch are held; empty if no flow reads."""
        return f"{self.flow}.v{self.version}.{self.leaf}" if self.flow else ""

    def to_option(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> TopicRequest:
        values = json.loads(options[OPTION])
        return cls(**{**values, "columns": tuple(values["columns"])})
