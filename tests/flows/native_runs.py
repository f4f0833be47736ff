"""Runs of the flows of `native_shop`: to their end, until they die, and without the way over files."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from mainstem import Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows import native_catch_up
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.native_history import NativeHistory, noted_history
from tests.flows.native_shop import SINKS, flows

# No topic has so many rows.
NEVER = 1 << 62


class Died(Exception):
    """A run ended here."""


def run(stem: Mainstem, way: str, files: str, sinks: Sequence[str] = SINKS) -> None:
    with stem.start(lambda stem: flows(stem, way, files, sinks)) as running:
        running.wait_until_idle()


def run_until_dead(stem: Mainstem, files: str, sinks: Sequence[str], way: str = "native") -> set[str]:
    """Run until every flow has ended or has everything; which of them died."""
    running = stem.start(lambda stem: flows(stem, way, files, sinks))
    for handle in running:
        with suppress(FlowFailed):
            handle.wait_until_idle()
    running.stop()
    died = {handle.name: handle.error for handle in running if handle.error is not None}
    assert {type(error.__cause__) for error in died.values()} <= {Died}, [str(error) for error in died.values()]
    return set(died)


def run_plain(stem: Mainstem, files: str, monkeypatch: pytest.MonkeyPatch, sinks: Sequence[str] = SINKS) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(native_catch_up, "ROWS_MIN", NEVER)
        run(stem, "plain", files, sinks)
    for sink in sinks:
        assert noted_history(checkpoint_of(stem, f"{sink}_plain")) is None


def checkpoint_of(stem: Mainstem, flow: str, version: int = 1) -> str:
    return FlowStore(stem.home, flow).checkpoint(version)


def history_of(stem: Mainstem, flow: str, version: int = 1) -> NativeHistory:
    history = noted_history(checkpoint_of(stem, flow, version))
    assert history is not None
    return history
