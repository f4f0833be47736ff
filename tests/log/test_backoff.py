"""Delays grow as they say, and no further than they may."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import Invalid
from mainstem.log.backoff import Backoff

SECOND = timedelta(seconds=1)


def test_linear_is_as_rabbitmq_has_it() -> None:
    retry = Backoff("10 seconds", max="25 seconds")
    assert [retry.delay(n) / SECOND for n in (0, 1, 2, 3, 10**9)] == [0, 10, 20, 25, 25]


def test_exponential_doubles() -> None:
    retry = Backoff("1 second", max="1 minute", growth="exponential")
    assert [retry.delay(n) / SECOND for n in (1, 2, 3, 6, 7, 10**9)] == [1, 2, 4, 32, 60, 60]


def test_without_max_the_delay_stays() -> None:
    assert Backoff("3 seconds").delay(7) == 3 * SECOND
    assert Backoff("0 seconds", max="1 minute").delay(7) == timedelta(0)


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(1, 200), st.sampled_from(["linear", "exponential"]))
def test_a_delay_is_what_the_formula_says(first_us: int, more_us: int, deliveries: int, growth: str) -> None:
    retry = Backoff(timedelta(microseconds=first_us), max=timedelta(microseconds=first_us + more_us), growth=growth)
    times = deliveries if growth == "linear" else 2 ** (deliveries - 1)
    assert retry.delay(deliveries) == timedelta(microseconds=min(first_us * times, first_us + more_us))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff("1 minute", max="1 second"),
        lambda: Backoff("1 second", growth="liniar"),
        lambda: Backoff(1),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(Invalid) as caught:
        make()  # type: ignore[operator]
    assert caught.value.detail
    assert caught.value.hint


def test_it_comes_back_from_json() -> None:
    retry = Backoff("1.5 seconds", max="1 hour", growth="exponential")
    assert Backoff.from_json(retry.to_json()) == retry
    assert str(retry) == "1 second 500 milliseconds to 1 hour, exponential"
