"""Makes the topics of captured tables before a capture runs, so that flows can be built that read them."""

from __future__ import annotations

import logging
from dataclasses import replace

from mainstem.capture.capture import Capture
from mainstem.capture.capture_log import make_topic
from mainstem.capture.captured_table import CapturedTable
from mainstem.errors import Conflict, Unavailable
from mainstem.log.log import Log
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import difference

__all__ = ["find_or_make_topics", "make_topics"]

LOGGER = logging.getLogger("mainstem.capture")


def make_topics(log: Log, home: str, capture: Capture) -> list[Topic]:
    """Make the topics of a capture, or widen them, as its tables are now. The source is only read, and a run of the capture
    in another process goes on."""
    connection = capture.source.open(capture.name, home)
    try:
        described = {table.name: table for table in connection.tables()}
    finally:
        connection.close()
    topics = []
    for captured in capture.source.tables:
        topics.append(topic := make_topic(log, capture, captured, described[captured.name]))
        _check_settings(captured, topic)
    return topics


def _check_settings(captured: CapturedTable, topic: Topic) -> None:
    """A setting that is left out is as the topic has it: it may have been altered."""
    plain = CapturedTable(captured.name)
    given = {
        name: getattr(captured, name)
        for name in ("partitions", "event_time", "keep")
        if getattr(captured, name) != getattr(plain, name)
    }
    if differences := difference(topic.settings, replace(topic.settings, **given)):
        raise Conflict(
            f'topic "{topic.name}" of table "{captured.name}" exists with other settings',
            detail=f"In the existing topic: {'; '.join(differences)}.",
            hint=f"Change the topic: mainstem topic alter {topic.name} ...; or leave the setting out; or capture into a new topic: "
            f"CapturedTable({captured.name!r}, into=...).",
        )


def find_or_make_topics(log: Log, home: str, capture: Capture) -> None:
    """The same for a run: if the source does not answer, topics of an earlier run suffice. The capture waits for it."""
    try:
        make_topics(log, home, capture)
    except Unavailable as error:
        if not set(capture.topics.values()) <= set(log.topic_names()):
            raise
        LOGGER.warning('capture "%s" waits: %s', capture.name, error.summary)
