"""A reader of few rows at a time: what it is given, and how often the log is read for it."""

from typing import Any

import pytest

import mainstem
from mainstem.log.record import next_offset
from mainstem.log.topic import ROWS, ReadAhead


class CountedReads:
    """A topic's backend that counts how often it is read."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def read(self, *arguments: Any) -> Any:
        self.reads += 1
        return self._backend.read(*arguments)


@pytest.fixture
def topic(tmp_path):
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        topic = stem.create_topic("numbers", schema="n bigint")
        topic.append([{"n": n} for n in range(100)])
        yield topic


@pytest.fixture
def backend(topic):
    return CountedReads(topic.backend)


@pytest.mark.parametrize("sealed", [False, True])
def test_single_rows_are_slices_of_one_read(topic, backend, sealed):
    if sealed:
        topic.seal()
    ahead = ReadAhead(backend)
    numbers, position = [], 0
    while (batch := ahead.read(0, position, 1)) is not None:
        numbers += batch.column("n").to_pylist()
        position = next_offset(batch)
    assert numbers == list(range(100))
    assert backend.reads == 2  # the rows, and that there are no more


def test_what_is_asked_for_changes_from_read_to_read(backend):
    ahead = ReadAhead(backend)
    assert ahead.read(0, 0, 10).column("n").to_pylist() == list(range(10))
    assert ahead.read(0, 10, 50).column("n").to_pylist() == list(range(10, 60))
    assert ahead.read(0, 60, 1000).column("n").to_pylist() == list(range(60, 100))
    assert backend.reads == 1


def test_a_reader_that_goes_elsewhere_reads_there(backend):
    ahead = ReadAhead(backend)
    ahead.read(0, 0, 10)
    assert ahead.read(0, 5, 2).column("n").to_pylist() == [5, 6]
    assert ahead.read(0, 50, 1).column("n").to_pylist() == [50]
    assert backend.reads == 3


def test_a_column_that_was_added_is_there_from_the_next_read_on(topic, backend):
    ahead = ReadAhead(backend)
    ahead.read(0, 0, 10)
    topic.alter(schema="n bigint, note string")
    assert ahead.read(0, 10, 1).column("note").to_pylist() == [None]


def test_who_asks_for_many_is_given_what_it_asked_for(topic, backend):
    topic.append([{"n": n} for n in range(100, 2 * ROWS)])
    ahead = ReadAhead(backend)
    assert len(ahead.read(0, 0, ROWS + 1)) <= ROWS + 1
    assert ahead._rests == {}


def test_a_follower_of_single_rows_sees_each_once(topic):
    followed = [batch.column("n")[0].as_py() for batch in topic.follow(start="earliest", rows_max=1, wait="0 seconds")]
    assert followed == list(range(100))
