"""A sink that is not the one that a flow has written into so far is refused; one that was moved is not."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import FlowRun
from mainstem.errors import Conflict
from mainstem.flows.checkpoint_fit import SinkIdentity, check_sink
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.view import View
from tests.postgres_server import PostgresServer
from tests.spark.checkpoint.checkpoint_model import write_checkpoint

SCHEMA = pa.schema([("id", pa.int64())])


def planned(sink: Any) -> Any:
    return SimpleNamespace(name="copies", flow=SimpleNamespace(into=sink), sources=[], topics=[])


def known(sink: Any, log: EmbeddedLog) -> dict[str, str]:
    """What a run has noted."""
    return SinkIdentity.of(sink, log).facts()


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    return EmbeddedLog(tmp_path / "log")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    write_checkpoint(tmp_path / "checkpoint", 0, 0)
    return str(tmp_path / "checkpoint")


def made(view: View) -> View:
    view.writer(FlowRun("copies", 1), SCHEMA).close()
    return view


def test_a_view_that_was_made_again_is_another_one(tmp_path: Path, log: EmbeddedLog, checkpoint: str) -> None:
    view = made(View(str(tmp_path), "copies", key="id"))
    before = known(view, log)
    assert check_sink(planned(view), before, checkpoint, log).facts() == before
    # Restored, or moved with its home.
    shutil.copytree(tmp_path / "views", tmp_path / "moved" / "views")
    moved = check_sink(planned(View(str(tmp_path / "moved"), "copies")), before, checkpoint, log)
    assert (moved.id, moved.location) == (before["sink_id"], f"{tmp_path}/moved/views/copies")
    for again in (False, True):
        shutil.rmtree(tmp_path / "views", ignore_errors=True)
        if again:
            made(View(str(tmp_path), "copies", key="id"))
        with pytest.raises(Conflict, match='view "copies" is not the one that flow "copies" has written') as refused:
            check_sink(planned(View(str(tmp_path), "copies", key="id")), before, checkpoint, log)
        assert ("deleted and created again since" if again else "deleted since") in refused.value.detail
    # Where nothing was done yet, and where an older Mainstem has noted nothing, any is the right one.
    view = View(str(tmp_path), "copies")
    for noted, at in ((before, str(tmp_path / "none")), ({}, checkpoint)):
        assert check_sink(planned(view), noted, at, log).id == view.id


def test_a_view_in_another_database_is_another_one(
    postgres: PostgresServer, views_address: str, tmp_path: Path, log: EmbeddedLog, checkpoint: str
) -> None:
    other = postgres.new_address()
    here, there = (
        made(View(str(tmp_path), "copies", key="id", backend=PostgresBackend(address)))
        for address in (views_address, other)
    )
    before = known(here, log)
    assert check_sink(planned(here), before, checkpoint, log).id == here.id
    with pytest.raises(Conflict) as refused:
        check_sink(planned(there), before, checkpoint, log)
    assert f"That one was in {here.location}, and this one is in {there.location}" in refused.value.detail
    assert f"Open the home with its views in {here.location}" in refused.value.hint
    PostgresBackend(other).close()


@dataclass
class OwnSink:
    id: str
    name: str = "copies"
    kind: str = "queue"


def test_a_sink_of_somebody_elses_may_have_an_id(log: EmbeddedLog, checkpoint: str) -> None:
    before = known(OwnSink("one"), log)
    assert check_sink(planned(OwnSink("one")), before, checkpoint, log).id == "one"
    with pytest.raises(Conflict, match='queue "copies" is not the one'):
        check_sink(planned(OwnSink("two")), before, checkpoint, log)
    without = SimpleNamespace(name="copies", kind="queue")
    assert check_sink(planned(without), known(without, log), checkpoint, log) == SinkIdentity("", "", True)
