"""The harness of Nexmark compares what it says. What its figures are is no test: the machine is shared."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import nexmark
from benchmarks.measured_run import Measured
from benchmarks.nexmark import Result, fallen, save, table
from benchmarks.nexmark_events import Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_program import PLAIN_SIDES, SIDES, kept_rows
from benchmarks.nexmark_queries import QUERIES


def measured(rate: float) -> Measured:
    return Measured(
        rows=1_000, seconds=1, cpu_seconds=1_000 / rate, start_cpu_seconds=0, bytes_peak=2 * 10**9, bytes_read=0,
        facts={"batches": 4, "answer_rows": 7}, bytes_mapped=10**9,
        cpu_by_kind={"java": 750 / rate, "workers": 200 / rate, "driver": 50 / rate},
    )  # fmt: skip


def result(query: str, ours: list[float], spark6: list[float]) -> Result:
    runs = {"ours": [measured(rate) for rate in ours], "spark6": [measured(rate) for rate in spark6]}
    return Result(query, runs)


def test_every_query_of_the_harness_is_there() -> None:
    names = ["q0", "q1", "q2", "q3", "q5", "q7", "q8", "q11", "q13", "q18", "q20"]
    assert list(QUERIES) == [query.name for query in QUERIES.values()] == names
    assert [side.files for side in PLAIN_SIDES.values()] == [2, 6, 6]
    assert all(QUERIES[name].key for name in nexmark.STORED_QUERIES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> NexmarkFiles:
    written = NexmarkFiles(str(tmp_path_factory.mktemp("nexmark")), Nexmark(events=200_000), file_events=60_000)
    written.write()
    return written


@pytest.mark.parametrize("query", QUERIES)
def test_duckdb_has_an_answer_with_rows(files: NexmarkFiles, query: str) -> None:
    assert files.check(QUERIES[query], QUERIES[query].answer) > 0


def test_the_files_of_all_kinds_are_from_the_same_events(files: NexmarkFiles) -> None:
    counts = {kind: len(list(Path(files.of(kind)).iterdir())) for kind in ("people", "auctions", "bids")}
    assert counts == {"people": 4, "auctions": 4, "bids": 4}
    assert files.rows(QUERIES["q20"]) == 184_000 + 12_000
    assert files.rows_of_files(QUERIES["q20"], 6) == 331_200
    assert files.rows_of_files(QUERIES["q3"], 6) == 21_600


def test_of_rows_that_replace_each_other_the_last_counts(files: NexmarkFiles, tmp_path: Path) -> None:
    first = pa.table({"bidder": [1, 1, 2], "auction": [5, 5, 5], "at": [10, 11, 12], "place": [0, 1, 2]})
    second = pa.table({"bidder": [2], "auction": [5], "at": [13], "place": [0]})
    for number, rows in enumerate([first, second]):
        (tmp_path / f"batch={number}").mkdir()
        pq.write_table(rows, tmp_path / f"batch={number}" / "part.parquet")
    rows = kept_rows(QUERIES["q18"], str(tmp_path))
    kept = duckdb.sql(f'SELECT bidder, "at" FROM ({rows}) ORDER BY bidder')
    assert kept.fetchall() == [(1, 11), (2, 13)]


def test_a_ratio_is_of_one_round_and_its_spread_is_over_the_rounds() -> None:
    one = result("q0", [100, 240, 90], [100, 200, 100])
    assert one.ratios() == pytest.approx([1.0, 1.2, 0.9])
    assert one.ratios("rocksdb") == []
    lines = table([one], ["ours", "spark6"]).splitlines()
    assert lines[2].split() == [
        "q0",
        "pass-through",
        "0",
        "0",
        "1.00",
        "0.30",
        "4",
        "/",
        "4",
        "2.0",
        "/",
        "2.0",
        "1.0",
        "/",
        "1.0",
        "75%",
        "20%",
        "5%",
    ]


@pytest.mark.parametrize(("ratios", "slower"), [([0.71], False), ([0.69], True), ([0.69, 0.85], False)])
def test_a_query_is_slower_if_it_fell_by_more_than_the_spread(ratios: list[float], slower: bool) -> None:
    assert fallen(ratios, [0.8, 0.9, 1.0]) is slower


def test_saved_ratios_stay_until_the_same_query_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nexmark, "STORED", tmp_path / "nexmark.json")
    save("quick", 300, [result("q5", [90], [100])])
    save("quick", 300, [result("q0", [70], [100])])
    save("quick", 300, [result("q5", [80], [100])])
    kept = json.loads((tmp_path / "nexmark.json").read_text())
    ratios = {name: facts["ratios"] for name, facts in kept["quick"]["queries"].items()}
    assert ratios == {"q0": {"spark6": [0.7]}, "q5": {"spark6": [0.8]}}
    # Other sizes are no measure for these.
    save("quick", 600, [result("q20", [50], [100])])
    assert list(json.loads((tmp_path / "nexmark.json").read_text())["quick"]["queries"]) == ["q20"]


def test_the_sides_are_those_of_the_page(repository: Path) -> None:
    page = (repository / "docs" / "internals" / "performance.md").read_text()
    assert [side for side in SIDES if f"| {side} |" not in page] == []
