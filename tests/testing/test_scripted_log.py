"""What a script's log says of time against what the embedded log says of the same appends."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from tempfile import mkdtemp

import pytest

from mainstem.clock import ManualClock, as_datetime, as_us
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.watermark import NO_TIME
from mainstem.stem import Mainstem
from mainstem.testing import TestStream
from mainstem.testing.scripted_home import Append, batches_of
from tests.operators.visits import at

DELAY = 120_000_000
LONG = "36500 days"


def script_of(random: Random) -> TestStream:
    script = TestStream("at TIMESTAMP", event_time="at", delay="2 minutes")
    for _ in range(random.randint(2, 14)):
        if random.random() < 0.2:
            script = script.watermark(at(random.randint(-30, 60)))
            continue
        times = [None if random.random() < 0.1 else at(random.randint(0, 60)) for _ in range(random.randint(1, 3))]
        script = script.rows([{"at": time} for time in times], partition=random.choice([0, 0, 1, 2]))
    return script


@pytest.mark.parametrize("seed", range(12))
def test_rows_and_batches_have_the_watermarks_of_the_log(seed: int) -> None:
    script = script_of(Random(seed))
    partitions = 1 + max((step.partition for step in script.steps if isinstance(step, Append)), default=0)
    [scripted] = batches_of(
        {"s": script.topic}, [replace(step, stream="s") for step in script.steps], "scripted"
    ).values()
    with Mainstem(EmbeddedLog(mkdtemp(), clock=ManualClock(), upkeep="manual")) as stem:
        topic = stem.create_topic("s", schema=script.schema, event_time="at", partitions=partitions, idle_after=LONG,
                                  ahead_max=LONG)  # fmt: skip
        producer = stem.producer("p")
        reached = NO_TIME
        for step, batch in zip(script.steps, scripted, strict=True):
            if isinstance(step, Append):
                topic.append(step.rows, partition=step.partition)
            else:
                producer.declare_watermark("s", as_datetime(step.at))
            ends = {number: topic.backend.latest(number) for number in range(partitions)}
            reached = max(reached, topic.backend.watermark_from(ends, DELAY))
            assert batch.clock.watermark == reached
            for row in batch.rows.to_pylist():
                record = row["record"]
                [known] = topic.backend.read(record["partition"], record["offset"], 1, [], DELAY).to_pylist()
                assert record["watermark"] == known["record"]["watermark"]
                assert as_us(record["appended_at"]) == as_us(known["record"]["appended_at"])
