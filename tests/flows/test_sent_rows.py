"""Rows that go from task to task in files: none is lost, none twice, and no file is left, wherever a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed
from mainstem.operators import dedupe, top

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
# Three rows are more than a value takes.
LONG = "x" * 400_000


def rows(part: int) -> list[dict[str, object]]:
    return [
        {"id": number, "at": BEGIN + timedelta(seconds=number), "text": f"{LONG}{number}"}
        for number in range(part * 12, part * 12 + 12)
    ]


def flows(stem: Mainstem) -> Iterator[Flow]:
    """One with stages, one without."""
    notes = stem.topic("notes").stream(watermark="1 minute")
    once = dedupe(notes, by="id", within="1 hour")
    yield Flow(top(once, 100, by="id", order="id"), into=stem.topic("once"), name="once")
    yield Flow(stem.topic("notes").stream().where("id >= 0"), into=stem.topic("copied"), name="copied")


def files(stem: Mainstem, flow: str) -> list[Path]:
    return [path for path in Path(stem.home, "flows", flow).glob("sent-*/**/*") if path.is_file()]


@pytest.mark.parametrize("point", ["batch_begun", "batch_written"])
def test_what_a_run_left_on_the_way_is_removed_by_the_next(
    stem: Mainstem, point: str, die_at, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = stem.create_topic(
        "notes", schema="id BIGINT, at TIMESTAMP, text STRING", key="id", event_time="at", partitions=2
    )
    topic.append(rows(0))
    die_at(point)
    running = stem.start(flows)
    for handle in running:
        with suppress(FlowFailed):
            handle.wait_until_idle()
    running.stop()
    # Those of a batch with stages stay until it is over.
    assert bool(files(stem, "once")) == (point == "batch_written")
    die_at("")
    for part in (1, 2):
        topic.append(rows(part))
        with stem.start(flows) as running:
            running.wait_until_idle()
    expected = [row["text"] for part in range(3) for row in rows(part)]
    assert sorted(stem.topic("copied").to_arrow().column("text").to_pylist()) == sorted(expected)
    assert sorted(stem.topic("once").to_arrow().column("text").to_pylist()) == sorted(expected)
    assert files(stem, "once") == files(stem, "copied") == []
