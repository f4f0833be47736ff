"""RealTimeWatch: sees to what the batches of a flow in real time leave to do.

Values that cannot be read are left out and counted by Spark. When a batch tells of some, the log has them noted where all
unreadable values are; a run that goes on from an earlier one looks through that one's last batch, of which nobody may have
been told.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainstem.errors import MainstemError
from mainstem.log_on_spark.checkpoint_offsets import batch_offsets, last_batch
from mainstem.log_on_spark.real_time_note import UNREADABLE

if TYPE_CHECKING:
    from mainstem.log.log import Log

__all__ = ["look_through_last_batch", "note_unreadable", "unreadable_in"]


def unreadable_in(said: dict[str, Any]) -> int:
    """How many values of a batch could not be read, by what Spark tells of it."""
    observed = said.get("observedMetrics") or {}
    return sum(int(values.get("values") or 0) for name, values in observed.items() if name.startswith(UNREADABLE))


def note_unreadable(log: Log, checkpoint: str, batch: int) -> None:
    """Have all that cannot be read before the end of a batch lie in the topics of the unreadable."""
    from mainstem.log.kafka.kafka_log import KafkaLog

    assert isinstance(log, KafkaLog)
    for name, ends in batch_offsets(checkpoint, batch).items():
        topic = log.open_topic(name)
        for partition, end in ends.items():
            log.unreadable(topic, partition, end)


def look_through_last_batch(log: Log, checkpoint: str) -> None:
    """Read what the last batch read; what of it cannot be read is noted by reading it."""
    last = last_batch(checkpoint)
    if last is None:
        return
    before = batch_offsets(checkpoint, last - 1) if last else {}
    for name, ends in batch_offsets(checkpoint, last).items():
        topic = log.open_topic(name)
        for partition, end in ends.items():
            start = max(before.get(name, {}).get(partition, 0), topic.earliest(partition))
            # It is there to tell of what others may have missed; what is gone meanwhile cannot be told of any more.
            with suppress(MainstemError):
                for _ in topic.moment().read(partition, start, end, []):
                    pass
