"""A home that is in use is copied: what is in the copy was in the home at one moment."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Corrupt, Invalid, Unavailable
from mainstem.file_locks import UPKEEP, WRITE
from mainstem.flows.home_copy import copy_home
from mainstem.log.embedded import log_copy
from mainstem.log.embedded.log_copy import EmbeddedLogCopy
from mainstem.sinks.store_record import StoreRecord
from mainstem.spark.checkpoint.batch_gate import BatchGate
from mainstem.spark.checkpoint.flow_copy import FlowCopy
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.native_history import NativeHistory, noted_history
from mainstem.workbench.access_tokens import AccessTokens

COPIES = 3


@pytest.fixture
def shop(tmp_path):
    """A home with the topics that `live_home` uses."""
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        stem.create_topic("numbers", schema="n BIGINT", segment_bytes_max=4096)
        for name in ("left", "right"):
            schema = "account BIGINT, amount BIGINT"
            stem.create_topic(name, schema=schema, key="account", partitions=2, segment_bytes_max=4096)
        stem.create_topic("latest", schema="key BIGINT, n BIGINT", key="key", keep="latest per key")
        yield stem


@pytest.fixture
def live(shop):
    """Another process that uses the home, and has done so a while."""
    program = Path(__file__).with_name("live_home.py")
    with subprocess.Popen([sys.executable, program, shop.home], stdout=subprocess.PIPE) as process:
        process.stdout.read(30)
        yield process
        process.kill()


def state(home):
    """What a home holds: whether every byte is sound, the numbers, and what all transfers add up to."""
    with mainstem.open(home, upkeep="manual") as stem:
        problems = [problem for name in stem.topics() for problem in stem.topic(name).verify().problems]
        numbers = [row["n"] for row in stem.topic("numbers").to_arrow().to_pylist()]
        total = sum(row["amount"] for name in ("left", "right") for row in stem.topic(name).to_arrow().to_pylist())
        latest = {row["key"]: row["n"] for row in stem.topic("latest").to_arrow().to_pylist()}
        return problems, numbers, total, latest


def check_copies(shop, live, tmp_path, copies):
    reached = 0
    for number in range(copies):
        # While the home is in use, nothing that changes is taken for damage, in it or in the copy.
        assert shop.verify().problems == []
        assert copy_home(shop, tmp_path / f"copy-{number}").problems == ()
        assert live.poll() is None
        problems, numbers, total, latest = state(tmp_path / f"copy-{number}")
        assert (problems, total) == ([], 0)
        assert numbers == list(range(len(numbers)))
        # A number comes first, then the latest one of its key.
        assert set(latest.values()) <= set(numbers)
        assert max(latest.values()) >= len(numbers) - 2
        assert len(numbers) >= max(30, reached)
        reached = len(numbers)


@pytest.mark.thorough
def test_a_home_that_another_process_uses_is_copied_as_of_one_moment(shop, live, tmp_path):
    check_copies(shop, live, tmp_path, COPIES)


@pytest.mark.long
def test_thirty_copies_of_a_home_that_another_process_uses_are_as_of_one_moment(shop, live, tmp_path):
    check_copies(shop, live, tmp_path, 30)


TRY_LOCK = (
    "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))"
)


def is_locked(path, byte):
    """Whether another process would have to wait for a lock."""
    tried = subprocess.run([sys.executable, "-c", TRY_LOCK, path, str(byte)], capture_output=True)
    return b"BlockingIOError" in tried.stderr


def test_no_batch_is_done_nothing_is_sealed_and_nothing_decided_while_it_is_copied(shop, tmp_path, monkeypatch):
    store = FlowStore(shop.home, "totals")
    store.begin(1)
    os.makedirs(store.checkpoint(1))
    seen = {}

    def look(place, name, path, byte):
        plain = getattr(place, name)

        def looked(*given):
            seen.setdefault(name, is_locked(f"{shop.home}/{path}", byte))
            return plain(*given)

        monkeypatch.setattr(place, name, looked)

    look(FlowCopy, "copy", "flows/totals/v1/gate.1", WRITE)
    look(EmbeddedLogCopy, "_copy_captured", "topics/left/1/tail", UPKEEP)
    look(log_copy, "_end_of", "ledgers/transactions/0/tail", WRITE)
    shop.copy_to(tmp_path / "copy")
    assert seen == {"copy": True, "_end_of": True, "_copy_captured": True}
    # Appends go on, and afterwards all else.
    assert not is_locked(f"{shop.home}/topics/left/1/tail", WRITE)
    for path, byte in (
        ("flows/totals/v1/gate.1", WRITE),
        ("topics/left/1/tail", UPKEEP),
        ("ledgers/transactions/0/tail", WRITE),
    ):
        assert not is_locked(f"{shop.home}/{path}", byte)


def test_an_undecided_transaction_is_whole_in_the_home_and_aborted_in_the_copy(shop, tmp_path):
    transaction = shop.transaction()
    with transaction:
        transaction.append(shop.topic("left"), [{"account": 1, "amount": 5}])
        copy_home(shop, tmp_path / "copy")
        with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
            copied = copy.topic("left")
            copied.append([{"account": 1, "amount": 7}])
            # Nobody waits for one that will never be decided there.
            followed = next(iter(copied.follow(start="earliest")))
            assert [row["amount"] for row in followed.to_pylist()] == [7]
        transaction.append(shop.topic("right"), [{"account": 1, "amount": -5}])
    assert shop.topic("left").to_arrow().num_rows == 1


def test_a_copy_goes_on_by_itself(shop, tmp_path):
    producer = shop.producer("p")
    producer.append(shop.topic("numbers"), [{"n": 0}], sequence=7)
    with shop.topic("numbers").join_group("readers") as member:
        member.poll()
        member.commit()
    copy_home(shop, tmp_path / "copy")
    with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
        numbers = copy.topic("numbers")
        assert copy.producer("p").append(numbers, [{"n": 0}], sequence=7).appended is False
        numbers.append([{"n": 1}])
        with numbers.join_group("readers") as member:
            assert member.poll().column("n").to_pylist() == [1]
    assert state(shop.home)[1] == [0]


def test_other_files_of_the_home_and_its_archive_are_copied(tmp_path):
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        inside = tmp_path / "home" / "archive"
        stem.create_topic("here", schema="n BIGINT", archive=str(inside))
        stem.create_topic("there", schema="n BIGINT", archive=str(tmp_path / "away"))
        (tmp_path / "home" / "shop.py").write_text("flows = ()")
        copied = stem.copy_to(tmp_path / "copy")
        assert copied.elsewhere == (f'the archive of topic "there": {tmp_path / "away"}',)
    assert (tmp_path / "copy" / "shop.py").read_text() == "flows = ()"
    with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
        assert copy.topic("here").settings.archive == str(tmp_path / "copy" / "archive")


def test_who_has_a_token_for_a_home_has_none_for_its_copies(tmp_path):
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        token = AccessTokens(stem.home).create("act", lasts_us=60_000_000)
        stem.copy_to(tmp_path / "copy")
    assert AccessTokens(f"{tmp_path}/home").find(token) is not None
    assert AccessTokens(f"{tmp_path}/copy").all() == []


def test_stores_outside_of_the_home_are_named(shop, tmp_path):
    for name, location in (
        ("delta.lake.orders", 'Delta table "/lake/orders"'),
        ("search.orders", f'"{shop.home}/search/orders"'),
    ):
        StoreRecord(shop.home, name).change(lambda facts, location=location: replace(facts, location=location))
    copied = shop.copy_to(tmp_path / "copy")
    assert copied.elsewhere == ('store "delta.lake.orders": Delta table "/lake/orders"',)
    assert StoreRecord(str(tmp_path / "copy"), "search.orders").read().location


def look_at_everything(stem):
    _ = (stem.topic("numbers"), stem.topic("left").to_arrow(), stem.view("totals").to_arrow())
    FlowStore(stem.home, "totals").read()


@pytest.mark.parametrize("target", ["home", "home/inside", ".", "full"])
def test_a_copy_wants_a_directory_of_its_own(shop, tmp_path, target):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(Invalid):
        shop.copy_to(tmp_path / target)
    assert os.listdir(tmp_path / "full") == ["file"]


def test_a_copy_that_was_cut_short_is_no_home(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.embedded.log_copy.EmbeddedLogCopy.copy", lambda _: os._exit(1))
    if not (child := os.fork()):
        copy_home(shop, tmp_path / "copy")
    os.waitpid(child, 0)
    with pytest.raises(Invalid, match="nor a home"):
        mainstem.open(tmp_path / "copy")


def test_a_damaged_partition_does_not_keep_the_others_from_being_copied(shop, tmp_path):
    for name in ("numbers", "left"):
        shop.topic(name).append([{"n": 1} if name == "numbers" else {"account": 1, "amount": 0}])
        shop.topic(name).seal()
    (sealed,) = (tmp_path / "home" / "topics" / "numbers" / "0").glob("*.parquet")
    sealed.write_bytes(sealed.read_bytes()[:-1])
    copy_home(shop, tmp_path / "copy")
    with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
        assert copy.topic("left").to_arrow().num_rows == 1
        assert [problem.first_offset for problem in copy.topic("numbers").verify().problems] == [0]


@pytest.mark.parametrize(
    "path",
    [
        "topics/numbers/topic.json",
        "ledgers/transactions/0/*.blocks",
        "views/totals/view.json",
        "flows/totals/flow.json",
    ],
)
def test_damage_of_a_whole_topic_view_or_ledger_does_not_keep_the_rest_from_being_copied(shop, tmp_path, path):
    with shop.transaction() as transaction:
        transaction.append(shop.topic("left"), [{"account": 1, "amount": 5}])
    shop.topic("latest").append([{"key": 1, "n": 1}])
    run = FlowRun("totals", epoch=1)
    totals = mainstem.View.writer(shop.view("totals", key="n"), run, pa.schema({"n": pa.int64()}))
    totals.apply(pa.table({"n": [1]}), Batch(0, run))
    totals.close()
    FlowStore(shop.home, "totals").begin(1)
    shop.close()
    (file,) = (tmp_path / "home").glob(path)
    file.write_bytes(file.read_bytes()[:-3])
    with mainstem.open(tmp_path / "home", upkeep="manual") as damaged:
        damaged.copy_to(tmp_path / "copy")
    with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
        assert copy.topic("latest").to_arrow().num_rows == 1
        assert copy.topics() == ["latest", "left", "numbers", "right"]
        with pytest.raises(Corrupt):
            look_at_everything(copy)


# A flow that another process runs


def planned(checkpoint, log, *numbers):
    os.makedirs(f"{checkpoint}/{log}", exist_ok=True)
    for number in numbers:
        Path(f"{checkpoint}/{log}/{number}").write_text(f"v1\n{number}")


def test_of_a_flow_that_runs_a_batch_that_is_only_planned_is_left_out(shop, tmp_path):
    store = FlowStore(shop.home, "totals")
    run = store.begin(1)
    checkpoint = store.checkpoint(1)
    planned(checkpoint, "offsets", 0, 1)
    with BatchGate(checkpoint, run.epoch).batch(0):
        pass
    planned(checkpoint, "commits", 0)
    copy_home(shop, tmp_path / "copy")
    copied = FlowStore(str(tmp_path / "copy"), "totals")
    assert os.listdir(f"{copied.checkpoint(1)}/offsets") == ["0"]
    assert copied.of_version(1)["ended"] == {"state": "stopped", "error": []}
    assert "ended" not in store.of_version(1)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("runs", [True, False])
def test_a_copy_looks_for_sealed_files_in_itself(shop, tmp_path, compacted, runs):
    store = FlowStore(shop.home, "totals")
    run = store.begin(1)
    checkpoint = store.checkpoint(1)
    history = NativeHistory("numbers", "5f", f"{checkpoint}/history/one", ())
    for folder in ("offsets", "sources/0", "history/one/waiting", "history/one/read"):
        os.makedirs(f"{checkpoint}/{folder}")
    history.note(checkpoint)

    def line(home: Path, number: int) -> str:
        path = f"file://{quote(str(home))}/flows/totals/v1/history/one/read/0-{number}.parquet"
        return json.dumps({"path": path, "timestamp": 1, "batchId": number}, separators=(",", ":"))

    lines = [line(tmp_path / "home", number) for number in range(3)]
    for number in range(3):
        Path(f"{checkpoint}/offsets/{number}").write_text(f'v1\n{{}}\n{{"logOffset": {number}}}')
        Path(f"{checkpoint}/sources/0/{number}").write_text(f"v1\n{lines[number]}")
    if compacted:
        # Spark removes the single ones after a while.
        for number in (0, 2):
            os.remove(f"{checkpoint}/sources/0/{number}")
        Path(f"{checkpoint}/sources/0/2.compact").write_text("\n".join(["v1", *lines]))
        Path(f"{checkpoint}/sources/0/.2.compact.crc").write_text("sums")
    with BatchGate(checkpoint, run.epoch).batch(1):
        pass
    planned(checkpoint, "commits", 0, 1)
    if not runs:
        store.end(run, "failed")
    copy_home(shop, tmp_path / "copy of it")
    copied = Path(FlowStore(str(tmp_path / "copy of it"), "totals").checkpoint(1))
    noted = {path.name: path.read_text() for path in (copied / "sources/0").iterdir()}
    # Of one that runs, a batch that is only planned is left out.
    expected = range(2 if runs else 3)
    assert noted == {f"{number}": f"v1\n{line(tmp_path / 'copy of it', number)}" for number in expected}
    assert noted_history(str(copied)) == replace(history, folder=f"{copied}/history/one")
    assert noted_history(checkpoint) == history


def test_of_a_run_that_died_the_planned_batch_is_copied_too(shop, tmp_path):
    store = FlowStore(shop.home, "totals")
    run = store.begin(1)
    checkpoint = store.checkpoint(1)
    with BatchGate(checkpoint, run.epoch - 1).batch(0):
        pass
    planned(checkpoint, "offsets", 0, 1)
    planned(checkpoint, "commits", 0)
    store.end(run, "failed")
    copy_home(shop, tmp_path / "copy")
    copied = FlowStore(str(tmp_path / "copy"), "totals").checkpoint(1)
    assert sorted(os.listdir(f"{copied}/offsets")) == ["0", "1"]


def test_a_paused_run_keeps_no_later_run_from_its_batches(shop):
    store = FlowStore(shop.home, "totals")
    paused = store.begin(1)
    checkpoint = store.checkpoint(1)
    with BatchGate(checkpoint, paused.epoch).batch(0):
        later = store.begin(1)
        with BatchGate(checkpoint, later.epoch).batch(0):
            done = sorted(name for name in os.listdir(checkpoint) if name.startswith("gate"))
    assert done == [f"gate.{later.epoch}"]


def test_a_flow_that_is_started_again_while_it_is_copied_leaves_no_copy(shop, tmp_path):
    store = FlowStore(shop.home, "totals")
    store.begin(1)
    os.makedirs(store.checkpoint(1))

    def begin_again(step):
        if step == "topics":
            store.begin(1)

    with pytest.raises(Unavailable, match="was restarted while the home was copied"):
        copy_home(shop, tmp_path / "copy", begin_again)
    assert not (tmp_path / "copy" / "mainstem.json").exists()
