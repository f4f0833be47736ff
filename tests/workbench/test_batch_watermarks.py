"""The watermark of a record by the reports of the flow that read it."""

from datetime import UTC, datetime

import numpy as np

from mainstem.clock import as_us
from mainstem.log.watermark import NO_TIME
from mainstem.workbench.console.batch_watermarks import BatchWatermarks
from tests.workbench.ran_flows import began, did_batch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reads(*offsets: tuple[int, int]) -> list[dict[str, object]]:
    parts = [{"partition": number, "start": start, "stop": stop} for number, (start, stop) in enumerate(offsets)]
    return [{"source": "orders", "records": 0, "partitions": parts}]


def test_a_record_has_the_watermark_that_the_batch_before_its_own_had_reached(stem, orders):
    run = began(stem, "revenue")
    marks = [None, NOON.replace(second=5), NOON.replace(second=9)]
    for batch, offsets in enumerate([((0, 10), (0, 4)), ((10, 20), (4, 4)), ((20, 30), (4, 9))]):
        at = NOON.replace(minute=1, second=batch)
        did_batch(stem, run, batch, {}, at=at, watermark=marks[batch], sources=reads(*offsets))
    did_batch(
        stem, began(stem, "other"), 0, {}, at=NOON, watermark=NOON.replace(hour=13), sources=reads((0, 99), (0, 99))
    )

    found = BatchWatermarks(stem, "revenue", 0)

    five, nine = as_us(marks[1]), as_us(marks[2])
    assert found.of("orders", 0, np.array([0, 9, 10, 19, 20, 29, 30, 99])).tolist() == [
        *([NO_TIME] * 4), five, five, nine, nine,
    ]  # fmt: skip
    assert found.of("orders", 1, np.array([3, 4, 8, 9])).tolist() == [NO_TIME, five, five, nine]
    assert found.of("payments", 0, np.array([0])).tolist() == [NO_TIME]
    assert found.line == [
        (five, as_us(NOON.replace(minute=1, second=1))),
        (nine, as_us(NOON.replace(minute=1, second=2))),
    ]


def test_without_reports_no_watermark_is_known(stem):
    assert BatchWatermarks(stem, "revenue", 0).of("orders", 0, np.array([1])).tolist() == [NO_TIME]
