"""Producer: appends that can be repeated and are there once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.arguments import named
from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.log.log import Log
from mainstem.log.placed import Placed
from mainstem.log.producer_run import ProducerRun
from mainstem.log.rows import check_rows
from mainstem.log.topic import Topic

if TYPE_CHECKING:
    from mainstem.durations import Duration
    from mainstem.log.transaction import Transaction

__all__ = ["Producer"]


class Producer:
    """A run of a named producer; made by `stem.producer(name)`. Opening it fences every older run of that name.

    Each append has a sequence, a number that rises (gaps are allowed). The same sequence again is acknowledged and
    appended once, also after a restart: so who does not know whether an append went through, does it again.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     orders = stem.create_topic("orders", schema="order_id STRING")
    ...     producer = stem.producer("checkout")
    ...     first = producer.append(orders, [{"order_id": "o-1"}], sequence=1)
    ...     again = producer.append(orders, [{"order_id": "o-1"}], sequence=1)
    ...     len(orders.to_arrow()), first.appended, again.appended
    (1, True, False)
    """

    def __init__(self, log: Log, run: ProducerRun) -> None:
        self._log = log
        self.run = run
        self._transaction: Transaction | None = None

    @property
    def name(self) -> str:
        """The producer's name."""
        return self.run.name

    @property
    def epoch(self) -> int:
        """The how-manieth run this is."""
        return self.run.epoch

    def append(self, topic: Topic | str, rows: Any, *, sequence: int | None = None) -> Placed:
        """Append rows under a sequence; without one, under the next after the last that this topic has of us."""
        self._check_free()
        return self.append_in(topic, rows, sequence, 0)

    def append_in(self, topic: Topic | str, rows: Any, sequence: int | None, transaction: int) -> Placed:
        """As `append`, within a transaction if it is not 0."""
        topic = self._topic(topic)
        checked = check_rows(rows, topic.settings)
        if sequence is None:
            sequence = self.last_sequence(topic) + 1
        elif isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < 1 << 63:
            raise Invalid(
                f"sequence {sequence!r} is not a whole number from 0 on",
                detail="A sequence numbers the appends of a producer to a topic; it rises, gaps are allowed.",
                hint="Count your appends, or use the position in what you read from.",
            )
        return topic.backend.append(checked, producer=self.run, sequence=sequence, transaction=transaction)

    def last_sequence(self, topic: Topic | str) -> int:
        """The highest sequence that a topic has of this producer, of all its runs; -1 if none."""
        return self.run.last_sequence(named(topic, "topic", Topic))

    def kept_sequence(self, topic: Topic | str) -> int:
        """The highest sequence that a topic has of this producer, without those of aborted transactions; -1 if none."""
        return self.run.kept_sequence(named(topic, "topic", Topic))

    def state_watermark(self, topic: Topic | str, at: datetime) -> None:
        """State that nothing with an event time earlier than `at` will come from this producer any more."""
        self.run.state(named(topic, "topic", Topic), as_us(at))

    def transaction(self, *, timeout: Duration = "1 minute") -> Transaction:
        """A transaction whose appends carry this producer's sequences. Until it has ended, there is no other way in."""
        from mainstem.log.transaction import Transaction

        self._check_free()
        self._transaction = Transaction(self._log, timeout=timeout, producer=self)
        return self._transaction

    def _check_free(self) -> None:
        """Sequences that may yet be aborted say nothing about the ones that come after them: one after the other."""
        if self._transaction is not None and self._transaction.state == "open":
            raise Invalid(
                f'producer "{self.name}" is in a transaction',
                detail=f"Transaction {self._transaction.id} is open.",
                hint="Append through the transaction, or commit or abort it first.",
            )

    def _topic(self, topic: Topic | str) -> Topic:
        return (
            topic if isinstance(topic, Topic) else Topic(self._log, self._log.open_topic(named(topic, "topic", Topic)))
        )
