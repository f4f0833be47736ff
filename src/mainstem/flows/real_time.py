"""Real-time flows: which are supported, how one is started, and what is done while it runs.

    Flow(rows, into=stem.topic("alerts"), mode="real-time")

Spark's real-time mode does not collect rows into batches: a task reads for as long as a batch lasts, and passes each row to
the sink when it arrives. It supports Spark's own Kafka source and sink, and operators that work row by row; nothing of
ours that is in Python. So source and sink are the connector's, and Spark decodes and encodes the rows
(`real_time_rows`).

The sink has no transactions. After a crash, all rows sent since the end of the last batch are sent again: at least once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mainstem.batch import FlowRun
from mainstem.errors import Conflict, Invalid, MainstemError
from mainstem.spark.checkpoint.checkpoint_location import CheckpointLocation
from mainstem.spark.checkpoint.checkpoint_offsets import batch_offsets, last_batch
from mainstem.spark.plan.flow_plan import has_watermark, operators_in
from mainstem.spark.real_time.kafka_connector import have_connector, java_options
from mainstem.spark.real_time.real_time_note import UNREADABLE, note_real_time
from mainstem.spark.real_time.real_time_rows import unfit_operator
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_writer import NewTopic, derive_settings
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from mainstem.flows.flow import Flow
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.log.topic_settings import TopicSettings
    from mainstem.spark.build import Leaf

__all__ = [
    "check_cores",
    "check_mode",
    "check_real_time",
    "look_through_last_batch",
    "note_unreadable",
    "start_real_time",
    "unreadable_in",
]


# Unreadable values of real-time flows.
#
# Spark skips and counts values that cannot be read. When a batch reports some, they are copied into the topic of unreadable
# messages. A run that resumes checks the last batch of the previous run again, whose report may have been lost.


def unreadable_in(said: dict[str, Any]) -> int:
    """The number of unreadable values of a batch, from Spark's report on it."""
    observed = said.get("observedMetrics") or {}
    return sum(int(values.get("values") or 0) for name, values in observed.items() if name.startswith(UNREADABLE))


def note_unreadable(log: Log, checkpoint: str, batch: int) -> None:
    """Copy all unreadable messages up to the end of a batch into the topics of unreadable messages."""
    from mainstem.spark.real_time.real_time_rows import brokers_of

    brokers = brokers_of(log)
    for name, ends in batch_offsets(checkpoint, batch).items():
        topic = brokers.open_topic(name)
        for partition, end in ends.items():
            brokers.unreadable(topic, partition, end)


def look_through_last_batch(log: Log, checkpoint: str) -> None:
    """Read the records of the last batch again; reading records the unreadable ones."""
    last = last_batch(checkpoint)
    if last is None:
        return
    before = batch_offsets(checkpoint, last - 1) if last else {}
    for name, ends in batch_offsets(checkpoint, last).items():
        topic = log.open_topic(name)
        for partition, end in ends.items():
            start = max(before.get(name, {}).get(partition, 0), topic.earliest(partition))
            # Best effort: records that were deleted meanwhile cannot be reported.
            with suppress(MainstemError):
                for _ in topic.moment().read(partition, start, end, []):
                    pass


# The length of a batch. At its end Spark writes a checkpoint, and output pauses for a moment; rows sent since its
# beginning are sent again after a crash.
BATCH = "30 seconds"


def _refuse(flow: str, part: str, detail: str, hint: str = "") -> NoReturn:
    raise Invalid(
        f'flow "{flow}" cannot run in real time: {part}',
        detail=detail,
        hint=hint or "Remove it from the flow, or leave mode out: the flow runs unchanged in batches.",
    )


def check_real_time(flow: Flow, leaves: dict[int, Leaf], stages: Sequence[Any], log: Log) -> None:
    """Raise `Invalid` with the part of a flow that real-time mode does not support."""
    name = flow.name
    if not log.address:
        _refuse(
            name, "its log is in the home", "Spark has a real-time source for Kafka only.",
            'Open the home with log="kafka://...", or leave mode out: a batch takes a few tenths of a second.',
        )  # fmt: skip
    if stages:
        _refuse(name, f'it has the operator "{stages[0].name}"', "Its state is kept in Python, batch by batch.")
    if kept := operators_in(flow.rows):
        _refuse(name, f'it has Spark\'s "{kept[0].name}"', "It keeps state from one row to the next.")
    if has_watermark(flow.rows):
        _refuse(
            name, "its stream has a watermark",
            "No operator of a real-time flow uses a watermark, and the times seen by a batch are not observed.",
            "Leave watermark= out of the stream.",
        )  # fmt: skip
    for leaf in leaves.values():
        _check_source(name, leaf, log)
    sources = [leaf.source for leaf in leaves.values()]
    if twice := [source for source in sources if sources.count(source) > 1]:
        _refuse(name, f'it streams topic "{twice[0]}" twice', "Spark cannot distinguish two equal real-time sources.")
    if part := unfit_operator(flow.rows):
        _refuse(name, f"it has {part}", "Real-time mode supports only operators that work row by row and run in Java.")
    _check_sink(flow)
    have_connector(flow.rows.sparkSession)


def _check_source(flow: str, leaf: Leaf, log: Log) -> None:
    # Imports the Kafka client library, which may not be installed if no log is on Kafka.
    from mainstem.spark.real_time.real_time_rows import read_natively

    if leaf.source.startswith(("view ", "topics ")):
        _refuse(flow, f"it streams {leaf.source}", "Real-time mode reads single Kafka topics.")
    if leaf.source not in log.topic_names():
        _refuse(
            flow, f'its topic "{leaf.source}" does not exist yet', "Another flow will create it.", "Create it first."
        )
    settings = log.open_topic(leaf.source).settings
    if settings.codec in ("arrow", "debezium"):
        _refuse(
            flow, f'the codec of topic "{leaf.source}" is "{settings.codec}"',
            "Only Python can decode its messages; Spark cannot.",
            'Copy it into a topic with codec "json", or leave mode out.',
        )  # fmt: skip
    wanted = set(leaf.columns or ()) - {"record"}
    for field in settings.stored_schema if settings.codec != "raw" else ():
        if field.name in wanted and not read_natively(field.type):
            _refuse(
                flow, f'it uses the column "{field.name}" of topic "{leaf.source}"',
                f"Spark cannot read {field.type} from JSON as the log writes it.",
            )  # fmt: skip


def _check_sink(flow: Flow) -> None:
    from mainstem.spark.real_time.real_time_rows import unfit_sink

    sink = flow.into
    if not isinstance(sink, SparkTopic):
        _refuse(
            flow.name, f'it writes into {sink.kind} "{sink.name}"',
            "That sink commits whole batches, each exactly once. A real-time flow writes single rows, into a topic.",
            "Write into a topic, and from there into the sink with another flow in batches.",
        )  # fmt: skip
    if reason := unfit_sink(_settings_of(sink, flow)):
        _refuse(
            flow.name,
            f'it writes into topic "{sink.name}", and {reason}',
            "Spark itself writes the messages in real time.",
        )


def _settings_of(sink: SparkTopic, flow: Flow) -> TopicSettings:
    if isinstance(sink, NewTopic):
        return derive_settings(sink.name, arrow_schema(flow.rows.schema))
    return sink.settings


def check_cores(flows: Sequence[PlannedFlow], log: Log) -> None:
    """Raise `Invalid` if the real-time flows would leave no core for the other flows.

    A real-time task reads one partition and runs for as long as its batch: it never releases its core.
    """
    timed = [flow for flow in flows if flow.flow.mode == "real-time"]
    if not timed:
        return
    context = timed[0].flow.rows.sparkSession.sparkContext
    if not str(context.master).startswith("local"):
        # The number of cores of a cluster is unknown until its executors have registered.
        return
    cores = context.defaultParallelism
    needed = sum(log.open_topic(topic).settings.partitions for flow in timed for topic in flow.topics)
    others = len(flows) > len(timed)
    if needed + others <= cores:
        return
    names = ", ".join(flow.name for flow in timed)
    raise Invalid(
        f"the real-time flows occupy {needed} cores"
        + (", and the other flows need at least one more" if others else ""),
        detail=f"Spark has {cores}. One task per partition of their topics runs for as long as the flow does: {names}.",
        hint=f'Open the home with spark="local[{needed + others}]" or more, or on a cluster.',
    )


def check_mode(planned: PlannedFlow, known: dict[str, Any], checkpoint: str) -> None:
    """Raise `Conflict` if a checkpoint was created in another mode: its offsets are those of another source."""
    last = last_batch(checkpoint, "offsets")
    before = known.get("pace", "batches")
    if last is None or before == planned.flow.mode:
        return
    done = last_batch(checkpoint)
    ends = {} if done is None else batch_offsets(checkpoint, done)
    starts = [f"{topic}: start={dict(reached)}" for topic, reached in ends.items()] or ["at the beginning"]
    raise Conflict(
        f'flow "{planned.name}" has run in mode "{before}" so far, and the program now has mode "{planned.flow.mode}"',
        detail="Each mode has its own source, which cannot resume from the other's checkpoint.",
        hint=f'Give the flow another name, Flow(..., name="{planned.name}_2"), and start its streams at its current offsets: '
        f"{'; '.join(starts)}.",
    )


def start_real_time(
    flow: Flow, planned: PlannedFlow, run: FlowRun, location: CheckpointLocation, log: Log, query_name: str
) -> StreamingQuery:
    """Start the query of a flow that was built with the connector's sources."""
    from mainstem.spark.real_time.real_time_rows import brokers_of, messages_of

    sink = flow.into
    brokers = brokers_of(log)
    assert isinstance(sink, SparkTopic)
    # Creates the topic if it does not exist, and fences an older run that still writes in batches.
    sink.writer(run, planned.schema).close()
    target = brokers.open_topic(sink.name)
    os.makedirs(location.folder, exist_ok=True)
    note_real_time(location.folder, [brokers.open_topic(topic) for topic in planned.topics])
    rows = messages_of(flow.rows, target.settings, source=planned.topics[0] if len(planned.leaves) == 1 else "")
    # PySpark accepts this trigger, but its type hints lack it.
    writer: Any = rows.writeStream.format("kafka").queryName(query_name).outputMode("update")
    options = {**java_options(brokers.kafka_settings), "kafka.acks": "all", "topic": target.kafka_name}
    writer = writer.options(**options).option("includeHeaders", "true").option("checkpointLocation", location.address)
    query: StreamingQuery = writer.trigger(realTime=BATCH).start()
    return query
