"""The rows that are appended: orders of a shop, in a topic with a key and an event time."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa

from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem

SCHEMA = "order_id string, store string, amount double, placed_at timestamp"
STORES = np.array(["Berlin", "Lisbon", "Osaka", "Quito", "Tunis"])
FIRST_PLACED_AT = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)

# What one append of many rows has.
BATCH_ROWS = 10_000


def open_home(folder: str, *, synced: Callable[[], None] | None = None) -> Mainstem:
    """A home whose fsyncs are told to `synced`."""
    return Mainstem(EmbeddedLog(folder, synced=synced))


def create_orders(stem: Mainstem, name: str = "orders", **settings: Any) -> Topic:
    """A topic for orders."""
    return stem.create_topic(name, schema=SCHEMA, key="order_id", event_time="placed_at", **settings)


def order_batch(topic: Topic, rows: int = BATCH_ROWS, *, seed: int = 0) -> pa.RecordBatch:
    """So many orders, as the topic stores them."""
    chance = np.random.default_rng(seed)
    numbers = chance.integers(0, 10_000_000, rows)
    columns = [
        pa.array([f"order-{number:08d}" for number in numbers.tolist()]),
        pa.array(STORES[chance.integers(0, len(STORES), rows)]),
        pa.array(chance.uniform(1, 500, rows).round(2)),
        pa.array(FIRST_PLACED_AT + np.arange(rows) * 1000).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=topic.settings.stored_schema)


def partitions_of(topic: Topic) -> list[Partition]:
    """A topic's partitions, to look at its files."""
    return cast(EmbeddedTopic, topic.backend).store.partitions


def files_in(topic: Topic, suffix: str) -> list[str]:
    """The paths of a topic's files that end so, in order."""
    folders = [partition.folder for partition in partitions_of(topic)]
    return [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(folder)) if name.endswith(suffix)]
