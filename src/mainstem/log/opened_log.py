"""Opens the log of a home by its address, and releases holds without opening it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache

from mainstem.durable_files import REAL_FILES
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.read.holds import Holds
from mainstem.log.log import Log

__all__ = ["opened_log", "release_holds"]


# A Spark worker processes many batches, and opens a log once.
@lru_cache(maxsize=4)
def opened_log(home: str, address: str = "") -> Log:
    """The log with this address (`Log.address`) of a home."""
    if not address:
        return EmbeddedLog(home)
    # Its client library may not be installed.
    from mainstem.log.kafka.kafka_log import KafkaLog

    return KafkaLog(address, home=home)


def release_holds(home: str, holders: re.Pattern[str]) -> None:
    """Release the records that these holders hold in any topic of a home; see `TopicBackend.hold`."""
    with suppress(FileNotFoundError):
        for topic in os.listdir(f"{home}/topics"):
            folder = f"{home}/topics/{topic}"
            held = os.listdir(f"{folder}/holds") if os.path.isdir(f"{folder}/holds") else []
            for holder in filter(holders.fullmatch, held):
                Holds(REAL_FILES, folder).put(holder, {})
