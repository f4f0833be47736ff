"""An append that a crash or an error left in some partitions only is known, completed by its repeat, and never doubled."""

import os
import random
import signal
import traceback
from pathlib import Path

import pytest

import mainstem
from mainstem.durable_files import RealFiles
from mainstem.errors import AppendConflict, IncompleteAppend, Invalid, LockHeld, Unavailable
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.write.active_segment import ActiveSegment
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition import Partition, Pending
from mainstem.log.embedded.write.publisher import Publisher
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem

BATCH = 64
SEED = 1_202


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stem(home):
    with mainstem.open(home) as opened:
        opened.create_topic("orders", schema="k string, n bigint", key="k", partitions=4)
        yield opened


def rows(first: int, count: int = 12) -> list[dict[str, object]]:
    return [{"k": f"key-{number}", "n": number} for number in range(first, first + count)]


def found(topic: Topic) -> list[int]:
    return sorted(topic.to_arrow().column("n").to_pylist())


class Refusing:
    """Some partitions do not take what is appended to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partitions: set[int] = set()
        append = Partition.append

        def refusing(partition: Partition, pending: object) -> None:
            if partition.slot in self.partitions and partition.title.startswith('"orders"'):
                raise Unavailable("no", detail="Not now.", hint="Later.")
            append(partition, pending)  # type: ignore[arg-type]

        monkeypatch.setattr(Partition, "append", refusing)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


def fail_at(sequence: int, stem: Mainstem, refusing: Refusing, *partitions: int) -> None:
    producer = stem.producer("loader")
    producer.append("orders", rows(0), sequence=3)
    refusing.partitions = set(partitions)
    with pytest.raises(IncompleteAppend):
        producer.append("orders", rows(100), sequence=sequence)
    refusing.partitions = set()


def test_the_process_that_holds_a_lock_is_named(stem, monkeypatch):
    append = Partition.append

    def held(partition: Partition, pending: Pending) -> None:
        if partition.slot == 1:
            detail = "Process 4711 (python) holds it."
            raise LockHeld("the lock is held by a stopped process", detail=detail, hint="Let it go on.", pid=4711)
        append(partition, pending)

    monkeypatch.setattr(Partition, "append", held)
    with pytest.raises(IncompleteAppend, match="reached 3 of 4 partitions") as incomplete:
        stem.topic("orders").append(rows(0))
    assert (incomplete.value.pid, incomplete.value.topic, incomplete.value.not_written) == (4711, "orders", (1,))
    assert "Process 4711 (python) holds it." in incomplete.value.detail
    assert incomplete.value.hint.startswith("Let it go on. Then append again")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("partitions_added", [0, 3])
def test_it_is_known_and_completed_by_its_repeat(stem, refusing, restart, partitions_added):
    producer = stem.producer("loader")
    producer.append("orders", rows(0), sequence=3)
    refusing.partitions = {1, 2}
    with pytest.raises(IncompleteAppend):
        producer.append("orders", rows(100), sequence=7)
    refusing.partitions = set()
    if partitions_added:
        stem.topic("orders").backend.alter({"partitions": 4 + partitions_added})
    if restart:
        producer = stem.producer("loader")

    assert (producer.last_sequence("orders"), producer.incomplete_sequence("orders")) == (3, 7)
    with pytest.raises(AppendConflict, match=r"sequence 7 .* is incomplete, so 8 cannot follow") as refused:
        producer.append("orders", rows(200), sequence=8)
    assert "sequence 7 again" in refused.value.hint
    assert producer.append("orders", rows(100), sequence=7).appended
    assert not producer.append("orders", rows(100), sequence=7).appended
    assert (producer.last_sequence("orders"), producer.incomplete_sequence("orders")) == (7, None)
    assert producer.append("orders", rows(200), sequence=8).appended
    assert found(stem.topic("orders")) == [*range(12), *range(100, 112), *range(200, 212)]


def test_a_row_without_a_key_is_completed_where_it_went(stem, refusing):
    """By sequence 7 they go to partition 3 of 4; of 7 partitions that would be partition 0."""
    fail = [*rows(100), {"k": None, "n": 999}]
    producer = stem.producer("loader")
    refusing.partitions = {1}
    with pytest.raises(IncompleteAppend):
        producer.append("orders", fail, sequence=7)
    refusing.partitions = set()
    stem.topic("orders").backend.alter({"partitions": 7})
    stem.producer("loader").append("orders", fail, sequence=7)
    assert found(stem.topic("orders")) == [*range(100, 112), 999]


def test_other_rows_do_not_complete_it(stem, refusing):
    fail_at(7, stem, refusing, 1)
    producer = stem.producer("loader")
    with pytest.raises(AppendConflict, match="repeated with other rows"):
        producer.append("orders", rows(100, 1), sequence=7)
    with pytest.raises(AppendConflict, match="out of order"):
        producer.append("orders", rows(100), sequence=6)
    assert producer.append("orders", rows(100), sequence=7).appended
    assert found(stem.topic("orders")) == [*range(12), *range(100, 112)]


def test_who_does_not_number_goes_on_and_the_incomplete_one_is_no_repeat(stem, refusing):
    """Liveness: such a program cannot repeat what it does not know."""
    fail_at(7, stem, refusing, 1, 2)
    producer = stem.producer("loader")
    assert producer.append("orders", rows(200, 1)).appended
    for restart in (False, True):
        again = stem.producer("loader") if restart else producer
        assert (again.last_sequence("orders"), again.incomplete_sequence("orders")) == (8, None)
        with pytest.raises(AppendConflict, match="out of order"):
            again.append("orders", rows(100), sequence=7)
        assert not again.append("orders", rows(0), sequence=3).appended


def test_in_a_transaction_it_is_completed_or_aborted(stem, refusing):
    producer = stem.producer("loader")
    producer.append("orders", rows(0), sequence=3)
    for outcome in ("abort", "commit"):
        transaction = producer.transaction()
        refusing.partitions = {2}
        with pytest.raises(IncompleteAppend):
            transaction.append("orders", rows(100), sequence=7)
        refusing.partitions = set()
        with pytest.raises(AppendConflict, match="incomplete"):
            transaction.append("orders", rows(200), sequence=8)
        if outcome == "commit":
            assert transaction.append("orders", rows(100), sequence=7).appended
            assert transaction.append("orders", rows(200), sequence=8).appended
        getattr(transaction, outcome)()
        last = 3 if outcome == "abort" else 8
        assert (producer.last_sequence("orders"), producer.incomplete_sequence("orders")) == (last, None)
    assert found(stem.topic("orders")) == [*range(12), *range(100, 112), *range(200, 212)]


def test_an_append_beside_an_open_transaction_is_refused_also_by_the_log(stem):
    """A thread may begin one after another thread has looked."""
    producer = stem.producer("loader")
    transaction = producer.transaction()
    transaction.append("orders", rows(0))
    with pytest.raises(Invalid, match="is in a transaction"):
        producer.append_in("orders", rows(100), None, 0)
    transaction.abort()
    assert producer.append_in("orders", rows(100), 0, 0).appended
    assert not producer.append("orders", rows(100), sequence=0).appended
    assert found(stem.topic("orders")) == list(range(100, 112))


def test_it_is_still_known_after_segments_were_rolled_and_sealed(stem, refusing):
    fail_at(7, stem, refusing, 1, 2)
    orders = stem.topic("orders")
    orders.seal()
    orders.append(rows(500))
    orders.seal()
    producer = stem.producer("loader")
    assert (producer.last_sequence("orders"), producer.incomplete_sequence("orders")) == (3, 7)
    producer.append("orders", rows(100), sequence=7)
    assert found(orders) == [*range(12), *range(100, 112), *range(500, 512)]


def test_what_counts_as_there_is_on_disk(stem, home, monkeypatch):
    """A writer that was killed before its fsync leaves blocks that others can see, and that a power cut could take."""
    publish = Publisher.publish

    def killed(publisher: Publisher, end: End, segment: ActiveSegment | None = None) -> None:
        if publisher._title == '"orders" partition 1':
            raise Unavailable("no", detail="Not now.", hint="Later.")
        publish(publisher, end, segment)

    found(stem.topic("orders"))
    with mainstem.open(home) as other, monkeypatch.context() as patched:
        producer = other.producer("loader")
        patched.setattr(Publisher, "publish", killed)
        with pytest.raises(IncompleteAppend):
            producer.append("orders", rows(100), sequence=7)
        patched.undo()
        assert stem.producer("loader").last_sequence("orders") == 7
        # What is read is what is synced.
        assert found(stem.topic("orders")) == list(range(100, 112))


class KillingFiles(RealFiles):
    """Kills its process in front of the how-manieth write or fsync."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def pwritev(self, handle, buffers, position):
        self._step()
        super().pwritev(handle, buffers, position)

    def sync(self, handle):
        self._step()
        super().sync(handle)

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def load(home: Path, more: int, files: RealFiles | None = None) -> int:
    """The loop of the guide: so many batches of lines from the one after the last that is in; how many lines are in then."""
    with Mainstem(EmbeddedLog(home, files=files)) as stem:
        producer = stem.producer("loader")
        start = producer.last_sequence("orders") + 1
        end = start + more * BATCH
        for first in range(start, end, BATCH):
            producer.append("orders", rows(first, BATCH), sequence=first + BATCH - 1)
    return end


def kill_often(home: Path, kills: int, chance: random.Random) -> None:
    """Kill the loop over and over, each time a little further on; partitions are added meanwhile."""
    for number in range(kills):
        if number % (kills // 4) == kills // 8:
            with mainstem.open(home) as stem:
                orders = stem.topic("orders")
                orders.backend.alter({"partitions": orders.settings.partitions + 3})
        pid = os.fork()
        if pid == 0:
            try:
                load(home, 1_000, KillingFiles(1 + chance.randrange(60)))
            except BaseException:  # noqa: BLE001 - told by its status
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == signal.SIGKILL, f"kill {number}: status {status}"


@pytest.mark.forks
@pytest.mark.parametrize("kills", [16, pytest.param(200, marks=pytest.mark.long)])
def test_the_loop_of_the_guide_has_every_row_once_however_often_it_is_killed(home, kills):
    with mainstem.open(home) as stem:
        stem.create_topic("orders", schema="k string, n bigint", key="k", partitions=4)
        # What is imported at the first use then need not be imported in every child.
        stem.create_topic("before", schema="k string, n bigint").append(rows(0))
    kill_often(home, kills, random.Random(SEED))
    lines = load(home, 2)
    with mainstem.open(home) as stem:
        assert found(stem.topic("orders")) == list(range(lines))
