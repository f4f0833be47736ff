"""The names in a home, from its directories alone: for completion, which must neither take long nor import Arrow.

A topic on Kafka and a view in PostgreSQL are not in the home, and not found.
"""

from __future__ import annotations

import os

__all__ = ["capture_names", "flow_names", "group_names", "queue_names", "topic_names", "view_names"]


def topic_names(home: str) -> list[str]:
    """The topics of a home."""
    return _folders(f"{home}/topics", "topic.json")


def view_names(home: str) -> list[str]:
    """The views of a home."""
    return _folders(f"{home}/views", "view.json")


def flow_names(home: str) -> list[str]:
    """The flows that ever ran in a home."""
    return _folders(f"{home}/flows", "flow.json")


def capture_names(home: str) -> list[str]:
    """The captures that were ever set up or ran in a home."""
    return _folders(f"{home}/captures", "status.json")


def group_names(home: str, topic: str) -> list[str]:
    """The groups of a topic."""
    return _folders(f"{home}/topics/{topic}/groups")


def queue_names(home: str, topic: str) -> list[str]:
    """The queues of a topic."""
    return _folders(f"{home}/topics/{topic}/queues")


def _folders(path: str, file: str = "") -> list[str]:
    """The folders in a folder, sorted, that have this file."""
    try:
        found = os.listdir(path)
    except OSError:
        return []
    return sorted(name for name in found if not name.startswith(".") and os.path.exists(f"{path}/{name}/{file}"))
