"""A flow that begins at "latest" or at a time begins between transactions, on both logs; at offsets it begins where told."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.clock import ManualClock, SystemClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.spark.sources.asked_sources import AskedSources
from tests.spark.sources.test_flow_cut import parts_of, write


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.starts_servers)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stem(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Mainstem]:
    """A home without Spark, on each log. Its clock stands still where a test asks for one."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SystemClock()
    home = tmp_path / "home"
    log: EmbeddedLog | KafkaLog
    if kind == "kafka":
        home.mkdir()
        (home / "kafka.toml").write_text(f'prefix = "b{uuid.uuid4().hex[:8]}."\n')
        log = KafkaLog(f"kafka://{request.getfixturevalue('kafka_broker').address}", home=home, clock=clock)
    else:
        log = EmbeddedLog(home, clock=clock)
    with Mainstem(log, home=str(home)) as opened:
        yield opened


@pytest.fixture
def topics(stem: Mainstem) -> list[Topic]:
    return [stem.create_topic(name, schema="n BIGINT", partitions=2) for name in ("t", "u")]


def requests(start: object) -> list[dict[str, object]]:
    return [{"topic": "t", "start": start}, {"topic": "u", "start": start}]


def test_latest_is_before_a_transaction_that_can_be_read_in_some_partitions_only(
    stem: Mainstem, topics: list[Topic], tmp_path: Path
):
    t, u = topics
    with stem.transaction() as transaction:
        write(t, transaction, 0, 100)
        write(u, transaction, 0, 101)
    write(u, None, 0, 200)
    stalled = stem.transaction()
    write(t, stalled, 0, 300)
    with stem.transaction() as transaction:
        write(t, transaction, 0, 400)
        write(u, transaction, 0, 401)
    # It is decided: of `u` it can be read, and of `t` it waits for the one before.
    sources = AskedSources(stem, tmp_path / "cp", requests("latest"))
    assert sources.batches() == []
    stalled.abort()
    assert sources.batches() == [[400, 401]]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_within_transactions_is_before_all_of_them(
    stem: Mainstem, topics: list[Topic], tmp_path: Path, clock: ManualClock, *, sealed: bool
):
    t, u = topics
    write(t, None, 0, 0)
    with stem.transaction() as transaction:
        write(t, transaction, 0, 100)
        write(u, transaction, 1, 101)
    first, second = stem.transaction(), stem.transaction()
    clock.advance("1 second")
    # What lies between is read too: it cannot be left out.
    write(t, first, 0, 200)
    write(t, None, 0, 1)
    write(u, second, 0, 300)
    write(u, first, 0, 201)
    clock.advance("1 second")
    at = clock.now()
    write(t, second, 1, 301)
    first.commit()
    second.commit()
    write(u, None, 1, 2)
    if sealed:
        for topic in topics:
            topic.seal()
    found = AskedSources(stem, tmp_path / "cp", requests({"at": at})).batches()
    # The second one is cut by that time; without it the first one would be.
    assert found == [[1, 2, 200, 201, 300, 301]]
    assert parts_of(found) == {0: 1, 2: 1, 3: 1}


def test_offsets_are_where_they_are(stem: Mainstem, topics: list[Topic], tmp_path: Path):
    t, u = topics
    with stem.transaction() as transaction:
        write(t, transaction, 0, 100)
        write(u, transaction, 0, 101)
    given = [{"topic": "t", "start": {"0": 1}}, {"topic": "u", "start": {"0": 0}}]
    assert AskedSources(stem, tmp_path / "cp", given).batches() == [[101]]
    # One source begins at the end, the other does not: that was asked for.
    mixed = [{"topic": "t", "start": "latest"}, {"topic": "u"}]
    assert AskedSources(stem, tmp_path / "other", mixed).batches() == [[101]]


def test_a_source_that_begins_elsewhere_is_cut_as_ever(stem: Mainstem, topics: list[Topic], tmp_path: Path):
    _, u = topics
    stalled = stem.transaction()
    write(u, stalled, 0, 100)
    with stem.transaction() as transaction:
        write(u, transaction, 0, 200)
        write(u, transaction, 1, 201)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "start": "latest"}, {"topic": "u"}])
    assert sources.batches() == []
    stalled.abort()
    assert sources.batches() == [[200, 201]]


def test_topics_of_a_pattern_begin_between_transactions(stem: Mainstem, topics: list[Topic], tmp_path: Path):
    t, u = topics
    stalled = stem.transaction()
    write(t, stalled, 0, 100)
    with stem.transaction() as transaction:
        write(t, transaction, 0, 200)
        write(u, transaction, 0, 201)
    request = {"topic": "[tu]", "pattern": True, "start": "latest"}
    sources = AskedSources(stem, tmp_path / "cp", [request])
    assert sources.batches() == []
    stalled.commit()
    assert sources.batches() == [[100, 200, 201]]
