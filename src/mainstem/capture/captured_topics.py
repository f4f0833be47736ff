"""Makes the topics of captured tables before a capture runs, so that flows can be built that read them."""

from __future__ import annotations

import logging

from mainstem.capture.capture import Capture
from mainstem.capture.capture_log import make_topic
from mainstem.errors import Unavailable
from mainstem.log.log import Log
from mainstem.log.topic import Topic

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
    return [make_topic(log, capture, captured, described[captured.name]) for captured in capture.source.tables]


def find_or_make_topics(log: Log, home: str, capture: Capture) -> None:
    """The same for a run: if the source does not answer, topics of an earlier run suffice. The capture waits for it."""
    try:
        make_topics(log, home, capture)
    except Unavailable as error:
        if not set(capture.topics.values()) <= set(log.topic_names()):
            raise
        LOGGER.warning('capture "%s" waits: %s', capture.name, error.summary)
