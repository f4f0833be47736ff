"""The promises of a log, and which of them a test checks: a log's own test file names the promises that it does not make."""

from collections.abc import Callable
from typing import TypeVar

from mainstem.log.log import Promise

__all__ = ["Promise", "is_left_out", "promise", "promises_of", "tests_of"]

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


def is_left_out(contract: type | None, test: Callable[..., None] | None) -> bool:
    """Whether a log is not put to a test: it makes no such promise, or says of this very test why it cannot pass."""
    if contract is None or test is None or not hasattr(contract, "promised"):
        return False
    return test.__name__ in contract.left_out or not set(promises_of(test)) <= contract.promised
