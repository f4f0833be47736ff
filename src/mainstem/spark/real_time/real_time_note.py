"""The topics of a real-time flow's checkpoint: Spark's own Kafka source knows topics only by their names on the brokers.

    <checkpoint>/real_time.json     {"format": 2, "topics": {"shop.orders": {"topic": "orders", "id": "5f.."}}, "crc32c": ...}
    <checkpoint>/offsets/<batch>    {"shop.orders": {"0": 512, "1": 498}}       as Spark writes it

With it such an offset can be read like those of our own source. Spark writes both `offsets` and `commits` when a real-time
batch ends: rows after the last of them are read again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.spark.checkpoint.checkpoint_location import damaged_note

__all__ = ["UNREADABLE", "NotedTopic", "note_real_time", "noted_topics", "own_offset", "starting_offsets"]

# 2: it has a checksum.
FORMAT = 2
FILE = "real_time.json"
# The prefix of the metric of unreadable values, followed by the number of the leaf.
UNREADABLE = "unreadable_"


class NotedTopic(Protocol):
    """The recorded facts of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def kafka_name(self) -> str: ...


def note_real_time(checkpoint: str, topics: Iterable[NotedTopic]) -> None:
    """Record the topics by their names on the brokers; durable when this returns."""
    known = {topic.kafka_name: {"topic": topic.name, "id": topic.id} for topic in topics}
    replace_file(REAL_FILES, f"{checkpoint}/{FILE}", encode_checked({"format": FORMAT, "topics": known}))


def noted_topics(checkpoint: str) -> dict[str, dict[str, str]]:
    """The topics by their names on the brokers; empty if the checkpoint is not of a real-time flow."""
    path = f"{checkpoint}/{FILE}"
    try:
        with open(path, "rb") as file:
            found: dict[str, dict[str, str]] = decode_checked(file.read(), since=2, known=FORMAT)["topics"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise damaged_note(path, error) from error
    return found


def own_offset(offset: Mapping[str, Any], known: Mapping[str, Mapping[str, str]]) -> dict[str, Any] | None:
    """An offset of Spark's Kafka source in the format of our own; None if it is not one."""
    if len(offset) != 1:
        return None
    [(name, ends)] = offset.items()
    return {**known[name], "offsets": ends} if name in known and isinstance(ends, dict) else None


def starting_offsets(kafka_name: str, offsets: Mapping[int, int]) -> str:
    """The start offsets for Spark's Kafka source."""
    return json.dumps({kafka_name: {str(number): at for number, at in sorted(offsets.items())}})
