"""A process that stands still inside a lock keeps writers out, and names itself to them; readers need no lock."""

import os
import shutil
import signal
from pathlib import Path

import pytest

import mainstem
from mainstem import file_locks as partition_lock
from mainstem.errors import LockHeld
from mainstem.log.upkeep_report import TakeOverReport
from mainstem.processes import process_name
from tests.log.embedded.stopped_process import calls_inside, stopped_at

pytestmark = pytest.mark.forks


@pytest.fixture(autouse=True)
def soon_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_lock, "SUSPECT_AFTER_SECONDS", 0.005)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n bigint")
        orders.append([{"n": 1}])
        orders.join_group("readers").leave()
        orders.queue("work")
        with stem.transaction() as transaction:
            transaction.append(orders, [{"n": 1}])
    return tmp_path / "home"


def read_everything(home: Path) -> list[list[int]]:
    """What readers of a home see, each in its own way."""
    with mainstem.open(home, upkeep="manual") as stem:
        orders = stem.topic("orders")
        orders.group("readers").describe()
        orders.open_queue("work").describe()
        assert (stem.topics(), orders.groups(), orders.queues()) == (
            ["orders", "orders.work.rejected"],
            ["readers"],
            ["work"],
        )
        return [
            orders.to_arrow().column("n").to_pylist(),
            stem.query("SELECT n FROM orders ORDER BY record.offset").column("n").to_pylist(),
            [
                n
                for batch in orders.follow(start="earliest", wait="1 millisecond")
                for n in batch.column("n").to_pylist()
            ],
        ]


def check_stopped_at(home: Path, folder: Path, calls: list[int]) -> None:
    for call in calls:
        copy = folder / str(call)
        shutil.copytree(home, copy)
        with stopped_at(copy, call):
            seen = read_everything(copy)
        # Committed or not yet; never blocked.
        assert seen[0] == seen[1], call
        assert all(rows in ([1, 1], [1, 1, 2], [1, 1, 2, 3]) for rows in seen), (call, seen)


def test_readers_need_no_lock_that_a_stopped_process_can_hold(home, tmp_path):
    shutil.copytree(home, tmp_path / "counted")
    inside = calls_inside(tmp_path / "counted")
    by_lock: dict[str, list[int]] = {}
    for call, path in inside.items():
        by_lock.setdefault(path.removeprefix(str(tmp_path)), []).append(call)
    # Of each lock some calls.
    check_stopped_at(
        home,
        tmp_path,
        sorted({call for calls in by_lock.values() for call in (*calls[:: len(calls) // 2], calls[-1])}),
    )


@pytest.mark.long
def test_readers_need_no_lock_that_a_stopped_process_can_hold_at_any_call(home, tmp_path):
    shutil.copytree(home, tmp_path / "counted")
    check_stopped_at(home, tmp_path, sorted(calls_inside(tmp_path / "counted")))


def last_calls(home: Path, folder: Path) -> dict[str, int]:
    """For each lock the last call at which it is held: what it guards is written by then, and not yet published."""
    shutil.copytree(home, folder)
    return {path.removeprefix(f"{folder}/"): call for call, path in calls_inside(folder).items()}


def test_a_take_over_says_what_it_did_and_the_home_can_be_written_again(home, tmp_path):
    for lock, call in last_calls(home, tmp_path / "counted").items():
        copy = tmp_path / str(call)
        shutil.copytree(home, copy)
        with stopped_at(copy, call) as pid, mainstem.open(copy, upkeep="manual") as stem:
            orders = stem.topic("orders")
            if lock.startswith("ledgers/transactions"):
                with pytest.raises(LockHeld) as held, stem.transaction():
                    pass
                assert held.value.pid == pid
            seen = orders.to_arrow().num_rows

            done = stem.take_over()

            assert done.ended == (f"{pid} ({process_name(os.getpid())})",), lock
            assert done.taken == (TITLES[lock],)
            assert stem.take_over() == TakeOverReport()
            with stem.transaction() as transaction:
                transaction.append(orders, [{"n": 9}])
            with orders.join_group("readers") as member:
                member.commit()
            assert orders.to_arrow().num_rows > seen


TITLES = {
    "topics/orders/0/tail": '"orders" partition 0',
    "topics/orders/groups/readers/0/tail": 'group "readers" of "orders"',
    "ledgers/transactions/0/tail": "transactions",
}


def test_a_topic_that_is_taken_over_takes_the_ledgers_of_the_home_with_it(home, tmp_path):
    call = last_calls(home, tmp_path / "counted")["ledgers/transactions/0/tail"]
    with stopped_at(home, call) as pid, mainstem.open(home, upkeep="manual") as stem:
        done = stem.topic("orders").take_over()

        assert done.ended == (f"{pid} ({process_name(os.getpid())})",)
        assert set(done.taken) == {"transactions", '"orders" partition 0'}
        with stem.transaction() as transaction:
            transaction.append("orders", [{"n": 9}])


def test_a_ledger_that_was_taken_over_again_and_again_keeps_its_state(home):
    with mainstem.open(home, upkeep="manual") as stem:
        ledger = stem.log.transactions.ledger()
        begun = ledger.current().begun
        for _ in range(3):
            ledger.partition._publisher.fence(ledger.partition.published_end())
            assert stem.take_over().taken == ("transactions",)
        assert len([*(home / "ledgers" / "transactions" / "0").glob("*.blocks")]) == 4
    with mainstem.open(home, upkeep="manual") as stem:
        assert stem.log.transactions.ledger().current().begun == begun
        with stem.transaction() as transaction:
            transaction.append("orders", [{"n": 9}])
        assert transaction.id == begun + 1


def test_a_process_stopped_in_the_lock_of_the_home_is_ended(home):
    pid = os.fork()
    if pid == 0:
        with mainstem.open(home, upkeep="manual").log.home.lock_topics():
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    with mainstem.open(home, upkeep="manual") as stem:
        with pytest.raises(LockHeld):
            stem.topic("orders").alter(partitions=2)
        assert stem.take_over().taken == ("the home",)
        stem.topic("orders").alter(partitions=2)
    os.waitpid(pid, 0)
