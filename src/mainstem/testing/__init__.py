"""For tests of programs: a script of rows, watermarks, times and crashes, run with Spark or without.

results = (
    TestStream("team STRING, score INT, at TIMESTAMP", event_time="at")
    .rows([{"team": "red", "score": 3, "at": "2026-01-01 12:00:30"}])
    .watermark("2026-01-01 12:02:00")
    .run(lambda rows: windowed(rows, tumbling("2 minutes"), by="team", aggregates=["sum(score) AS total"]))
)
"""

from mainstem.testing.scripted_rows import ScriptedRows, TestResults
from mainstem.testing.store_contract import StoreContract
from mainstem.testing.stream_script import TestStream, TestStreams

__all__ = ["ScriptedRows", "StoreContract", "TestResults", "TestStream", "TestStreams"]
