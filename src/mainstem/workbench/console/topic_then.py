"""A topic as it was at a time, by append time: the records that were there, and where its partitions ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime, as_us
from mainstem.log.lag import Lag
from mainstem.log.watermark import times_of
from mainstem.workbench.cli.flow_facts import known_flows
from mainstem.workbench.cli.list_entry import Unreadable, try_look
from mainstem.workbench.cli.topic_commands import topic_facts
from mainstem.workbench.console.flow_then import flow_then, past_rows

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.log.upkeep_report import PartitionFacts
    from mainstem.stem import Mainstem

__all__ = ["topic_then"]


def topic_then(stem: Mainstem, topic: Topic, at: datetime) -> dict[str, Any]:
    """The object of `mainstem topic describe --json` as it was. What has no history is null: bytes, segments, groups and
    queues."""
    facts = topic_facts(topic)
    parts = [_partition(topic, it, at) for it in facts.partitions]
    times = [part["appended_at"] for part in parts if part["appended_at"] is not None]
    return {
        **facts.to_json(),
        "then": True,
        "records": sum(part["records"] for part in parts),
        "bytes": None,
        "appended_at": max(times, default=None),
        "partitions": parts,
        "groups": None,
        "queues": None,
        "flows": _readers(stem, topic.name, at),
    }


def _partition(topic: Topic, now: PartitionFacts, at: datetime) -> dict[str, Any]:
    backend, number = topic.backend, now.partition
    end = max(now.start, min(now.end, backend.at_time(number, as_us(at) + 1)))
    records = backend.count_records(number, now.start, end)
    last = None if end <= now.start else backend.read(number, end - 1, 1)
    appended_at = None if last is None else as_datetime(int(times_of(last.column("record").field("appended_at"))[0]))
    return {
        "partition": number, "start": now.start, "end": end, "records": records, "bytes": None, "segments": None,
        "sealed": None, "appended_at": appended_at, "damage": now.damage,
    }  # fmt: skip


def _readers(stem: Mainstem, topic: str, at: datetime) -> list[dict[str, Any]]:
    past, found = past_rows(stem, at), []
    for name in known_flows(stem):
        facts = try_look({}, flow_then, stem, name, past)
        if isinstance(facts, Unreadable):
            continue
        lags = [part.lag for part in facts.sources if part.source == topic]
        if lags:
            found.append({"flow": name, "state": facts.state, "lag": Lag.total(lags)})
    return found
