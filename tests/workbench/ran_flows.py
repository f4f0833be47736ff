"""Homes in which flows ran, made without Spark: what a run leaves there, file by file."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mainstem.batch import FlowRun
from mainstem.clock import as_datetime
from mainstem.flows.flow_waits import reached_times
from mainstem.flows.progress_rows import PROGRESS_TOPIC, SCHEMA
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.flow_store import FlowStore

# Kernels give out no such id.
NOBODY = {"pid": 2**30, "started": 1, "boot": "another"}


def progress_topic(stem) -> Topic:
    return Topic(stem.log, stem.log.create_topic(TopicSettings.of(PROGRESS_TOPIC, schema=SCHEMA)))


def began(stem, flow: str, *, sink: str = "topic big_orders", sources: tuple[str, ...] = ("orders",)) -> FlowRun:
    """A run that goes on, in the test's own process."""
    return FlowStore(stem.home, flow).begin(1, sink=sink, sources=list(sources), plan={})


def killed(stem, run: FlowRun) -> None:
    """The process of a run is gone, without a word."""

    def gone(known):
        runs = {**known["runs"], str(run.version): {**known["runs"][str(run.version)], "process": NOBODY}}
        return {**known, "runs": runs}

    FlowStore(stem.home, run.flow).change(gone)


def did_batch(
    stem,
    run: FlowRun,
    number: int,
    offsets: dict[str, dict[int, int]],
    *,
    view: dict[str, object] | None = None,
    more: Sequence[dict[str, object]] = (),
    **figures: object,
) -> None:
    """A batch that is complete, in the checkpoint and in the reports."""
    checkpoint = Path(FlowStore(stem.home, run.flow).checkpoint(run.version))
    lines = ["v1", "{}", *(json.dumps({"topic": topic, "offsets": ends}) for topic, ends in offsets.items())]
    lines += [json.dumps(source) for source in (view, *more) if source is not None]
    for folder, text in (("offsets", "\n".join(lines)), ("commits", "v1\n{}")):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / folder / str(number)).write_text(text)
    row = {
        "flow": run.flow, "epoch": run.epoch, "version": run.version, "batch": number, "rows_in": 0, "rows_out": 0,
        "at": datetime(2026, 1, 1, 9, 0, number, tzinfo=UTC), "rejected": 0, "late": 0, "lag_records": 0,
        "state_rows": 0, "state_bytes": 0, "batch_ms": 300, "phases": {"addBatch": 200},
        "sources": [*_read_sources(stem, offsets, more)],
    }  # fmt: skip
    progress_topic(stem).append([{**row, **figures}])


def _read_sources(stem, offsets: dict[str, dict[int, int]], more: Sequence[dict[str, object]]) -> Iterator[object]:
    """What a report says of each topic: where the batch ended, and the event time that each partition had reached."""
    given = [{"topic": topic, "offsets": ends} for topic, ends in offsets.items()]
    for source in [*given, *(dict(it) for it in more if "topic" in it)]:
        topic, ends = str(source["topic"]), {int(number): end for number, end in source["offsets"].items()}
        delay = source.get("delay")
        plain = {**source, "offsets": {str(number): end for number, end in ends.items()}}
        times = {} if delay is None else reached_times(stem.log, plain, topic, delay)
        yield {
            "source": topic,
            "records": None,
            "partitions": [
                {"partition": number, "stop": end, "watermark": as_datetime(times[number]) if number in times else None}
                for number, end in ends.items()
            ],
        }
