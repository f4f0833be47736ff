"""Figures of the console are counted as those of the command line: records, not offsets."""

from pathlib import Path

import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from mainstem.workbench.cli.topic_commands import topic_facts
from mainstem.workbench.console.flow_then import behind_then
from mainstem.workbench.console.home_map import home_map
from mainstem.workbench.console.home_then import home_then
from mainstem.workbench.console.progress_history import history_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stem(tmp_path: Path, clock: ManualClock) -> Mainstem:
    return Mainstem(EmbeddedLog(tmp_path / "home", upkeep="manual", clock=clock), home=str(tmp_path / "home"))


def appended(stem: Mainstem, clock: ManualClock, count: int) -> Topic:
    """Transactions of two rows and a marker each, a second apart; one in five is aborted."""
    orders = (
        stem.create_topic("orders", schema="order_id BIGINT") if "orders" not in stem.topics() else stem.topic("orders")
    )
    for number in range(count):
        clock.advance("1 second")
        transaction = stem.transaction()
        transaction.append("orders", [{"order_id": number}, {"order_id": -number}])
        if number % 5 == 4:
            transaction.abort()
        else:
            transaction.commit()
    return orders


@pytest.mark.parametrize("sealed", [False, True])
def test_markers_are_no_records(stem: Mainstem, clock: ManualClock, sealed: bool) -> None:
    orders = appended(stem, clock, 20)
    if sealed:
        orders.seal()
    then = clock.now()
    appended(stem, clock, 10)
    assert orders.backend.latest(0) > 48
    now_map = home_map(stem)
    node = next(node for node in now_map["nodes"] if node["id"] == "topic:orders")
    assert node["records"] == topic_facts(orders).records == 48
    assert node["rows_per_second"] == 1.6
    past = next(node for node in home_then(stem, now_map, as_datetime(then))["nodes"] if node["id"] == "topic:orders")
    assert past["records"] == 32
    assert past["rows_per_second"] == 1.6
    points = history_of(stem, "topic:orders", None, None, 7)["points"]
    assert sum(point["rows"] for point in points) == 48
    assert behind_then(orders.backend, 0, 0, as_datetime(then)).records == 32


def test_every_range_of_offsets_has_as_many_records_as_are_read(stem: Mainstem, clock: ManualClock) -> None:
    orders = appended(stem, clock, 6)
    orders.seal()
    appended(stem, clock, 7)
    end, moment = orders.backend.latest(0), orders.backend.moment()
    for start in range(0, end + 1, 3):
        for stop in range(start, end + 1):
            read = sum(batch.num_rows for batch in moment.read(0, start, stop, []))
            assert orders.backend.count_records(0, start, stop) == read, (start, stop)
