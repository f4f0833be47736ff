"""Says which promise of a log a test checks, so that a log can say which promises it does not make."""

from collections.abc import Callable
from typing import TypeVar

from mainstem.log.log import Promise

__all__ = ["Promise", "promise", "promises_of", "tests_of"]

Test = TypeVar("Test", bound=Callable[..., None])


def promise(*promises: Promise) -> Callable[[Test], Test]:
    """Marks a test of a contract: a log that does not make one of these promises is not put to it."""

    def mark(test: Test) -> Test:
        test.promises = promises  # type: ignore[attr-defined]
        return test

    return mark


def promises_of(test: Callable[..., None]) -> tuple[Promise, ...]:
    """What a test checks; nothing if it was not marked."""
    return getattr(test, "promises", ())


def tests_of(contract: type) -> list[Callable[..., None]]:
    """The tests of a contract."""
    return [getattr(contract, name) for name in dir(contract) if name.startswith("test_")]
