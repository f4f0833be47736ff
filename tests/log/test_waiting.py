"""Servers that are waited for: said by name, tried again, given up when patience is over or nothing will change."""

import logging

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import DatabaseUnavailable, Unavailable
from mainstem.log import backoff as waiting
from mainstem.log.backoff import Backoff, call_with_retries


class Server:
    """Answers after so many questions; each takes a second."""

    def __init__(self, clock: ManualClock, silent: int) -> None:
        self._clock, self._silent = clock, silent
        self.asked = 0

    def ask(self) -> str:
        self.asked += 1
        self._clock.advance("1 second")
        if self.asked > self._silent:
            return "here"
        raise DatabaseUnavailable(
            'the database "postgresql://db:5432/shop" cannot be reached', detail="Connection refused.", hint="Start it."
        )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY", Backoff("0 seconds"))


def test_a_server_that_comes_is_waited_for_and_named(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(clock, silent=3)
    with caplog.at_level(logging.WARNING, "mainstem.waiting"):
        assert call_with_retries(server.ask, worth_it=lambda error: True, clock=clock) == "here"
    assert server.asked == 4
    assert [record.getMessage() for record in caplog.records] == [
        'the database "postgresql://db:5432/shop" cannot be reached; trying again'
    ] * 3


def test_a_server_that_does_not_come_is_given_up(clock: ManualClock) -> None:
    server = Server(clock, silent=1000)
    with pytest.raises(Unavailable, match="cannot be reached"):
        call_with_retries(server.ask, worth_it=lambda error: True, clock=clock)
    assert server.asked == 30


def test_what_will_not_change_is_told_at_once(clock: ManualClock) -> None:
    server = Server(clock, silent=1000)
    with pytest.raises(Unavailable):
        call_with_retries(server.ask, worth_it=lambda error: False, clock=clock)
    assert server.asked == 1
