"""What can be read from a home, as plain values that go into JSON: the same for whoever wrote it and whoever reads it."""

import hashlib
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from mainstem import Mainstem


def facts(stem: Mainstem) -> dict[str, Any]:
    """All topics with their rows, their groups and queues, and how far the producer has come."""
    topics = {name: topic_facts(stem, name) for name in stem.topics()}
    return {"topics": topics, "last_sequence": {name: last_sequence(stem, name) for name in ("payments", "booked")}}


def topic_facts(stem: Mainstem, name: str) -> dict[str, Any]:
    topic = stem.topic(name)
    rows = plain(topic.to_arrow().to_pylist())
    counted = stem.query(f'SELECT count(*) AS rows FROM "{name}"').to_pylist()
    return {
        "schema": topic.ddl,
        "partitions": topic.settings.partitions,
        "rows": rows,
        "sha256": hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest(),
        "rows_in_sql": counted[0]["rows"],
        "groups": {group: committed(topic, group) for group in topic.groups()},
        "queues": {queue: queue_facts(topic, queue) for queue in topic.queues()},
    }


def committed(topic: Any, group: str) -> list[int]:
    return [partition.committed for partition in topic.group(group).describe().partitions]


def queue_facts(topic: Any, name: str) -> dict[str, Any]:
    described = topic.queue(name).describe()
    return {
        "settings": described.settings.to_json(),
        "counts": dict(sorted(described.counts.items())),
        "cursors": plain(described.cursors),
        # Whoever held anything when it was written is gone.
        "not_done": described.held + described.returned,
    }


def last_sequence(stem: Mainstem, topic: str) -> int:
    return stem.producer("checkout").last_sequence(topic)


def plain(value: Any) -> Any:
    """The value as JSON has it, without losing anything."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
