"""All of a home is looked at: what is damaged is named, whatever it belongs to; and what is not is not."""

import json
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, Step
from mainstem.operators.stage.stage_task import BucketState
from mainstem.operators.stage.state_runs import StageManifests, StateRuns
from mainstem.sinks.file_commits import CommittedBatch, CommittedFile, FileCommits, FolderFacts
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.workbench.cli.main import run as run_cli


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with something of everything."""
    path = tmp_path / "home"
    with mainstem.open(path, upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n BIGINT")
        orders.append([{"n": 1}, {"n": 2}])
        orders.seal()
        with stem.transaction() as transaction:
            transaction.append(orders, [{"n": 3}])
        with orders.join_group("billing") as member:
            member.poll()
            member.commit()
        orders.queue("emails").take()
        run = FlowRun("totals", epoch=1)
        totals = mainstem.View.writer(stem.view("totals", key="n"), run, pa.schema({"n": pa.int64()}))
        totals.apply(pa.table({"n": range(1000)}), Batch(0, run))
        totals.close()
        _make_flow(path)
        assert stem.verify().problems == []
    return path


def _make_flow(home: Path) -> None:
    store = FlowStore(str(home), "totals")
    folder = home / "out"
    store.begin(1, folder=str(folder))
    checkpoint = Path(store.checkpoint(1))
    (checkpoint / "offsets").mkdir(parents=True)
    text = b"v1\n" + b"x" * 600
    sums = b"".join(struct.pack(">I", zlib.crc32(text[first : first + 512])) for first in (0, 512))
    (checkpoint / "offsets/0").write_bytes(text)
    (checkpoint / "offsets/.0.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + sums)
    manifests = StageManifests(str(checkpoint))
    manifests.begin(0, "one", {"windowed-0": {}})
    schema = pa.schema(STATE_COLUMNS)
    rows = pa.table([[7], [1], [60], [NEVER]], schema=schema)
    runs = StateRuns(f"{manifests.folder}/windowed-0", (), schema, 0)
    bucket = BucketState(tuple(runs.after(Step(schema.empty_table(), rows), 0)), runs.live, 0)
    stage = {"buckets": 1, "state": {"0": bucket.to_json()}}
    manifests.write(0, {"clock": {}, "stages": {"windowed-0": stage}})
    commits = FileCommits(str(folder))
    with commits.lock():
        commits.put_facts(FolderFacts("totals", "n BIGINT", id="5f"))
        (folder / "part-0.parquet").write_bytes(b"12345")
        commits.commit(1, CommittedBatch(0, 1, 1, files=(CommittedFile("part-0.parquet", 1, 5),)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def garble(path: Path) -> None:
    """Pages of a database that cannot be any."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * 4096 + data[8192:])


DAMAGES = [
    ("topic orders", "topics/orders/topic.json", flip),
    ("topic orders", "topics/orders/0/manifest", flip),
    ("topic orders", "topics/orders/0/*.parquet", flip),
    ("topic orders", "topics/orders/0/*.blocks", flip),
    ("ledger transactions", "ledgers/transactions/0/*.blocks", flip),
    ("ledger transactions", "ledgers/transactions/0/manifest", flip),
    ("group billing of orders", "topics/orders/groups/billing/0/*.blocks", flip),
    ("queue emails of orders", "topics/orders/queues/emails/0/*.blocks", cut),
    ("view totals", "views/totals/view.json", flip),
    ("view totals", "views/totals/v1.sqlite", garble),
    ("view totals", "views/totals/v1.sqlite", Path.unlink),
    ("flow totals", "flows/totals/flow.json", flip),
    ("flow totals", "flows/totals/v1/offsets/0", flip),
    ("flow totals", "flows/totals/v1/offsets/0", cut),
    ("flow totals", "flows/totals/v1/stages/0.json", flip),
    ("flow totals", "flows/totals/v1/stages/windowed-0/*.arrow", flip),
    ("flow totals", "flows/totals/v1/stages/windowed-0/*.arrow", Path.unlink),
    ("flow totals", "out/_mainstem/sink.json", flip),
    ("flow totals", "out/_mainstem/v1/000000000000", flip),
    ("flow totals", "out/part-0.parquet", cut),
    ("flow totals", "out/part-0.parquet", Path.unlink),
]


@pytest.mark.parametrize(("of", "file", "damage"), DAMAGES, ids=[f"{file} {how.__name__}" for _, file, how in DAMAGES])
def test_what_is_damaged_is_named(home: Path, tmp_path: Path, of: str, file: str, damage) -> None:
    (path,) = home.glob(file)
    damage(path)
    with mainstem.open(home, upkeep="manual") as stem:
        found = stem.verify()
        assert {(problem.of, problem.file) for problem in found.problems} == {(of, str(path))}
        assert all(problem.what for problem in found.problems)
        copied = stem.copy_to(tmp_path / "copy")
    # What is damaged is copied, and named there too. A folder is looked at where the flow writes it: not in the copy.
    named = set() if file.startswith(("out/", "flows/totals/flow.json")) else {of}
    assert {problem.of for problem in copied.problems} >= named
    assert (tmp_path / "copy/mainstem.json").exists()


def test_the_lost_heads_of_a_ledger_are_made_again(home: Path) -> None:
    for path in [*home.glob("ledgers/*/heads"), *home.glob("topics/orders/*/*/heads")]:
        path.unlink()
    with mainstem.open(home, upkeep="manual") as stem:
        assert stem.verify().problems == []
        assert stem.topic("orders").group("billing").describe().partitions[0].committed == 2
        assert stem.topic("orders").to_arrow().num_rows == 3


def test_blocks_name_the_offsets_that_are_lost(home: Path) -> None:
    (path,) = home.glob("topics/orders/0/*.parquet")
    flip(path)
    with mainstem.open(home, upkeep="manual") as stem:
        (problem,) = stem.verify().problems
    assert (problem.partition, problem.first_offset, problem.last_offset) == (0, 0, 1)


def test_the_commands_end_with_a_status(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["home", "verify", "--home", str(home)]) == 0
    assert capsys.readouterr().out.startswith("sound: 2 topics, 3 ledgers, 1 view, 1 flow, ")
    assert run_cli(["home", "copy", str(tmp_path / "sound"), "--home", str(home)]) == 0
    (path,) = home.glob("topics/orders/groups/billing/0/*.blocks")
    flip(path)
    capsys.readouterr()
    assert run_cli(["home", "verify", "--home", str(home)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("NOT sound: 2 topics")
    assert "\ngroup billing of orders, partition 0" in shown
    assert f"\n    {path}\n" in shown
    assert run_cli(["home", "verify", "--json", "--home", str(home)]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["file"] == str(path)
    assert run_cli(["home", "copy", str(tmp_path / "copy"), "--home", str(home)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f"copied to {tmp_path}/copy: ")
    assert f"\n    {tmp_path}/copy/topics/orders/groups/billing/0/" in shown
