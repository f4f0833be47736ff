"""Every query of Nexmark gives DuckDB's answer, in Mainstem and in plain Spark, over several batches."""

from pathlib import Path

import pytest

from benchmarks.nexmark_events import Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_program import PLAIN_SIDES, SIDES, Ours, PlainSpark
from benchmarks.nexmark_queries import QUERIES
from benchmarks.nexmark_topics import fill_home

pytestmark = [pytest.mark.long, pytest.mark.starts_servers]

# A session window must end: 20 seconds are 200,000 events.
MARKET = Nexmark(events=250_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = str(tmp_path_factory.mktemp("nexmark"))
    NexmarkFiles(f"{made}/files", MARKET, file_events=15_000).write()
    fill_home(f"{made}/home", MARKET, sealed=True)
    return made


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_is_duckdb_s(folder: str, tmp_path: Path, query: str, side: str) -> None:
    files = NexmarkFiles(f"{folder}/files", MARKET, file_events=15_000)
    asked = QUERIES[query]
    running: Ours | PlainSpark
    if side == "ours":
        running = Ours(files, asked, f"{folder}/home", "nowhere", str(tmp_path))
    else:
        running = PlainSpark(files, asked, PLAIN_SIDES[side], "nowhere", str(tmp_path))
    try:
        assert running.check() > 0
        assert running.run() > 1
    finally:
        running.close()
