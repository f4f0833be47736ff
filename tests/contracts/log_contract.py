"""The contract of a log: whatever keeps `mainstem.log.log.Log` passes this suite, and a backend's test file is this:

    class TestEmbeddedLog(LogContract):
        @pytest.fixture
        def opener(self, tmp_path, clock):
            return lambda: Mainstem(EmbeddedLog(tmp_path / "home", clock=clock))

`opener()` opens the same log, empty at first, as often as it is called: each time as another process would, and also in
other processes, which a test forks. `clock` is what the log is to take for time, where it can; a log with clocks of its
own overrides that fixture with one whose `advance` waits.

Each test names the promise it checks. A log leaves out of `promises` what it does not promise; its test file names the same
in `promised`, and in `left_out` single tests with the reason why a promise does not go as far. Those are not collected.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.append_contract import AppendContract
from tests.contracts.group_contract import GroupContract
from tests.contracts.keep_contract import KeepContract
from tests.contracts.other_process import Opener, OtherProcess, Work
from tests.contracts.producer_contract import ProducerContract
from tests.contracts.promises import Promise, promises_of, tests_of
from tests.contracts.queue_contract import QueueContract
from tests.contracts.queue_rejected_contract import QueueRejectedContract
from tests.contracts.read_contract import ReadContract
from tests.contracts.shifted_clock import ShiftedClock
from tests.contracts.sql_contract import SqlContract
from tests.contracts.topic_contract import TopicContract
from tests.contracts.transaction_contract import TransactionContract
from tests.contracts.watermark_contract import WatermarkContract


# From Python 3.12 on a fork of a process with threads is warned of; the children here use nothing their parent opened.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
class LogContract(
    TopicContract,
    AppendContract,
    ReadContract,
    GroupContract,
    ProducerContract,
    TransactionContract,
    KeepContract,
    QueueContract,
    QueueRejectedContract,
    SqlContract,
    WatermarkContract,
):
    """Everything a log promises. A subclass gives `opener`."""

    promised: ClassVar[frozenset[Promise]] = frozenset(Promise)
    left_out: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def clock(self) -> ShiftedClock:
        return ShiftedClock()

    @pytest.fixture
    def stem(self, opener: Opener) -> Iterator[Mainstem]:
        """The log, opened."""
        with opener() as stem:
            yield stem

    @pytest.fixture
    def other(self, opener: Opener, stem: Mainstem) -> Iterator[Mainstem]:
        """The same log, opened once more."""
        with opener() as other:
            yield other

    @pytest.fixture
    def elsewhere(self, opener: Opener, stem: Mainstem) -> Iterator[Callable[..., OtherProcess]]:
        """Does some work in another process, which opens the log by itself."""
        processes: list[OtherProcess] = []

        def start(work: Work, *arguments: Any) -> OtherProcess:
            processes.append(OtherProcess(opener, work, *arguments))
            return processes[-1]

        yield start
        for process in processes:
            process.close()

    @pytest.fixture
    def single(self, stem: Mainstem) -> Topic:
        """A topic of one partition."""
        return stem.create_topic("single", schema="k string, n bigint", key="k")

    @pytest.fixture
    def spread(self, stem: Mainstem) -> Topic:
        """A topic of four."""
        return stem.create_topic("spread", schema="k string, n bigint", key="k", partitions=4)

    # The contract itself

    def test_every_promise_has_a_test_and_every_test_names_one(self) -> None:
        tests = [test for test in tests_of(type(self)) if test.__qualname__.split(".")[0] != LogContract.__name__]
        assert {promise for test in tests for promise in promises_of(test)} == set(Promise)
        assert [test.__name__ for test in tests if not promises_of(test)] == []

    def test_what_is_left_out_is_a_test(self) -> None:
        assert set(self.left_out) <= {test.__name__ for test in tests_of(type(self))}
