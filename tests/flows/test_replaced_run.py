"""A run that a later one has replaced says so, whatever it died of. Without Spark."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import mainstem
from mainstem.errors import Fenced
from mainstem.flows.runner import RunningFlows
from mainstem.spark.checkpoint.flow_store import FlowStore


def explained(home: str, error: Exception, *, replaced: bool) -> BaseException | None:
    store = FlowStore(home, "totals")
    run = store.begin(1)
    if replaced:
        store.begin(1)
    runner = SimpleNamespace(_stem=SimpleNamespace(home=home))
    handle = SimpleNamespace(raised=error, query=None, run=run, name="totals")
    return RunningFlows._explain(runner, handle, error).__cause__


@pytest.mark.parametrize("error", [FileNotFoundError("gate.1"), RuntimeError("Multiple streaming jobs detected")])
def test_what_a_replaced_run_dies_of_is_that_it_is_fenced(tmp_path: Path, error: Exception) -> None:
    with mainstem.open(tmp_path) as stem:
        assert isinstance(explained(stem.home, error, replaced=True), Fenced)
        assert explained(stem.home, error, replaced=False) is error


def test_a_damaged_flow_does_not_keep_the_cause_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("no")
    with mainstem.open(tmp_path) as stem:
        store = FlowStore(stem.home, "totals")
        store.begin(1)
        begin = FlowStore.begin

        def begun_and_damaged(self: FlowStore, version: int = 1) -> object:
            run = begin(self, version)
            Path(stem.home, "flows/totals/flow.json").write_text("{")
            return run

        monkeypatch.setattr(FlowStore, "begin", begun_and_damaged)
        assert explained(stem.home, error, replaced=False) is error
