"""A flow that begins again by itself once its sink is back: unless somebody else has begun it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun, Written
from mainstem.errors import Fenced, FlowFailed, Unavailable
from mainstem.flows import runner
from mainstem.flows.flow import Flow
from mainstem.log.backoff import Backoff
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from tests.flows.memory_sink import MemorySink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class AwaySink(MemorySink):
    """Away in the middle of its first batch, and still when it is opened again."""

    meanwhile: Callable[[], object] = lambda: None
    epochs: list[int] = field(default_factory=list)

    def writer(self, run: FlowRun, schema: pa.Schema) -> MemorySink:
        self.epochs.append(run.epoch)
        if len(self.epochs) == 2:
            raise Unavailable("it is still away", detail="It is.", hint="Wait.")
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        if len(self.epochs) == 1:
            self.meanwhile()
            raise Unavailable("it is away", detail="It is.", hint="Wait.")
        return super().write(rows, batch)


@pytest.fixture
def shop(stem: Mainstem, monkeypatch: pytest.MonkeyPatch) -> Mainstem:
    monkeypatch.setattr(runner, "RETRY", Backoff("10 milliseconds"))
    stem.create_topic("orders", schema="n BIGINT")
    stem.topic("orders").append([{"n": number} for number in range(10)])
    return stem


def test_a_flow_goes_on_when_its_sink_is_back(shop: Mainstem) -> None:
    sink = AwaySink("seen")
    shop.run(lambda stem: [Flow(stem.topic("orders").stream(), into=sink, name="copy")], until="idle")
    assert sink.epochs == [1, 2, 3]
    assert [row["n"] for row in sink.rows()] == list(range(10))


def test_a_flow_that_somebody_else_has_begun_does_not_take_it_back(shop: Mainstem) -> None:
    store = FlowStore(shop.home, "copy")
    sink = AwaySink("seen", meanwhile=store.begin)
    with pytest.raises(FlowFailed) as failed:
        shop.run(lambda stem: [Flow(stem.topic("orders").stream(), into=sink, name="copy")], until="idle")
    assert isinstance(failed.value.__cause__, Fenced)
    assert sink.epochs == [1]
    assert store.of_version(1)["epoch"] == 2
