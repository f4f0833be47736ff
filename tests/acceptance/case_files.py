"""Where the cases lie: answers from outside, one JSON file each, which no runner may change.

The directory in MAINSTEM_ACCEPTANCE if it is set, else the copies kept beside this file.
"""

import json
import os
from pathlib import Path
from typing import Any

# Which runner answers which case.
RUNNERS = {
    "A01": "test_team_scores.py",
    "A03": "test_patterns.py",
    "A05": "test_window_kinds.py",
    "A07": "test_stream_joins.py",
    "A10": "test_log_compaction.py",
    "A12": "test_outbox_events.py",
    "A13": "test_change_feeds.py",
    "A15": "test_tutorial_windows.py",
    "A18": "test_broker_semantics.py",
}


def folder() -> Path:
    given = os.environ.get("MAINSTEM_ACCEPTANCE")
    return Path(given) if given else Path(__file__).parent / "cases"


def files() -> list[Path]:
    return sorted(folder().glob("*.json"))


def number_of(path: Path) -> str:
    """The case's number: A10 of A10_kafka_log_compaction.json."""
    return path.stem.partition("_")[0]


def case(number: str) -> dict[str, Any]:
    [path] = [path for path in files() if number_of(path) == number]
    content: dict[str, Any] = json.loads(path.read_text())
    return content
