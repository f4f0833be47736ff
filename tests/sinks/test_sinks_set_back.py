"""Every sink, set back behind its flow's checkpoint by one batch, two, and all of them: refused, or nothing is missing.

A sink that was restored from a copy holds what it held when the copy was made; so it is written up to there, and the
checkpoint is one that is further.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import CorruptHome, NewerFormat
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.spark.checkpoint.checkpoint_check import check_checkpoint, note_rows
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from tests.contracts.sink_contract import FLOW, TriedSink
from tests.flows.memory_sink import MemorySink
from tests.kafka_broker import KafkaBroker
from tests.sinks.test_sinks import TriedFiles, TriedPostgresView, TriedTopic, TriedView
from tests.spark.checkpoint.checkpoint_model import write_checkpoint

COMMITTED = 3


class TriedKafkaTopic(TriedTopic):
    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        self.home = str(folder / "home")
        Path(self.home).mkdir(parents=True)
        (Path(self.home) / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
        self.stem = Mainstem(KafkaLog(f"kafka://{broker.address}", home=Path(self.home)), home=self.home)


class TriedOwnSink(TriedSink):
    """One by the protocol alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kept = MemorySink("copies")

    def sink(self) -> Any:
        return self._kept

    def writer(self, run: FlowRun) -> Any:
        return self._kept.writer(run, self.schema)

    def write(self, writer: Any, rows: pa.Table, batch: Batch) -> None:
        writer.committed_batch = batch.number

    def ids(self) -> list[int]:
        return []


ON_A_SERVER = [
    pytest.param(name, marks=pytest.mark.starts_servers) for name in ("topic on Kafka", "view in PostgreSQL")
]


@pytest.fixture(params=["topic", "view", "files", "own", *ON_A_SERVER])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TriedSink]:
    made: dict[str, Callable[[], TriedSink]] = {
        "topic": lambda: TriedTopic(tmp_path),
        "topic on Kafka": lambda: TriedKafkaTopic(tmp_path, request.getfixturevalue("kafka_broker")),
        "view": lambda: TriedView(tmp_path),
        "view in PostgreSQL": lambda: TriedPostgresView(tmp_path, request.getfixturevalue("views_address")),
        "files": lambda: TriedFiles(tmp_path),
        "own": lambda: TriedOwnSink(tmp_path),
    }
    tried = made[request.param]()
    yield tried
    if isinstance(tried, TriedTopic):
        tried.stem.close()


def test_a_sink_set_back_is_refused(sink: TriedSink, tmp_path: Path) -> None:
    """It gets one batch more after each look, up to all of them."""
    for committed_batch in range(-1, COMMITTED + 1):
        if committed_batch >= 0:
            sink.go_on(committed_batch)
        _, writer = sink.begin()
        assert writer.committed_batch == committed_batch
        for planned in (COMMITTED, COMMITTED + 1):
            checkpoint = tmp_path / f"checkpoint-{committed_batch}-{planned}"
            write_checkpoint(checkpoint, planned, COMMITTED)
            for batch in range(COMMITTED + 1):
                note_rows(str(checkpoint), batch)
            accounts: Any = "rows" if sink.sink().kind == "topic" else "every batch"
            if committed_batch == COMMITTED:
                check_checkpoint(str(checkpoint), writer.committed_batch, accounts=accounts)
                continue
            with pytest.raises(CorruptHome, match="the sink is older than the checkpoint"):
                check_checkpoint(str(checkpoint), writer.committed_batch, accounts=accounts)
        writer.close()


def test_a_folder_has_an_id_that_it_keeps(tmp_path: Path) -> None:
    sink = TriedFiles(tmp_path)
    assert (sink.sink().exists, sink.sink().id) == (False, "")
    sink.go_on(0)
    first = sink.sink().id
    assert first
    sink.go_on(1)
    assert (sink.sink().exists, sink.sink().id) == (True, first)
    other = TriedFiles(tmp_path / "other")
    other.go_on(0)
    assert other.sink().id not in ("", first)


def test_a_folder_of_format_1_is_given_an_id_when_a_flow_goes_on_with_it(tmp_path: Path) -> None:
    sink = TriedFiles(tmp_path)
    sink.go_on(0)
    facts = Path(sink.sink().path) / "_mainstem" / "sink.json"
    facts.write_text(
        '{"format": 1, "flow": "copies", "schema": "id BIGINT", "record": "", "partition_by": [], "version": 1, "epoch": 1}'
    )
    assert (sink.sink().id, sink.ids()) == ("", list(range(10)))
    sink.go_on(1)
    assert sink.sink().id
    assert sink.ids() == list(range(20))
    facts.write_bytes(encode_checked(decode_checked(facts.read_bytes()) | {"format": 3}))
    with pytest.raises(NewerFormat):
        sink.ids()


def test_what_an_older_mainstem_wrote_of_a_flow_is_read_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    store = FlowStore(str(tmp_path), FLOW)
    path = tmp_path / "flows" / FLOW / "flow.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 1, "epoch": 7, "runs": {"1": {"epoch": 7, "plan": {"sources": ["orders"]}}}}')
    assert store.of_version(1)["plan"] == {"sources": ["orders"]}
    assert store.begin(1, plan={}).epoch == 8
    assert store.read()["format"] == 2
    path.write_text('{"format": 3}')
    with pytest.raises(NewerFormat, match="newer Mainstem"):
        store.read()
