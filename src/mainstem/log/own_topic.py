"""Topics that Mainstem itself writes: reports on flows, activity. Created on first use."""

from __future__ import annotations

import pyarrow as pa

from mainstem.errors import TopicNotFound
from mainstem.log.log import Log, TopicBackend
from mainstem.log.topic_settings import TopicSettings

__all__ = ["own_topic"]


def own_topic(log: Log, name: str, *, schema: str, keep: str, event_time: str = "at") -> TopicBackend:
    """The topic; if an earlier version created it, missing columns are added."""
    settings = TopicSettings.of(name, schema=schema, event_time=event_time, keep=keep)
    try:
        known = log.open_topic(name)
    except TopicNotFound:
        return log.create_topic(settings)
    missing = [field for field in settings.schema if field.name not in known.settings.schema.names]
    if missing:
        known.alter({"schema": pa.schema([*known.settings.schema, *missing])})
    return known
