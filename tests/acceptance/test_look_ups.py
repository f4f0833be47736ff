"""Cases A07 and A15: rows of a stream looked up in a table, of Kafka Streams' documentation and of ksqlDB's tutorials.

The records of A07 are processed in the order of their times: each is looked up as the table was at its time. A record of the
stream is put out when the watermark is past its time, so the answers are compared by the record and not by the moment.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mainstem.operators import enrich, latest, table
from mainstem.testing import TestResults, TestStream, TestStreams
from tests.acceptance.case_files import case
from tests.acceptance.stream_sides import START, as_written, facts_of, out_of_order, versions_of

CASE = case("A07")
ENTRIES = CASE["input"]
EXPECTED = {kind: rows for kind, rows in CASE["stream_table"].items() if kind != "note"}
SEEDS = range(6)
END = "2026-02-01"


def looked_up(how: str) -> Any:
    return lambda rows: enrich(facts_of(rows, "L"), table(versions_of(rows), key="key"), on="key", at="at", how=how)


def answers(results: TestResults) -> dict[str, list[Any]]:
    assert all(change == "insert" for change, _ in results.changes)
    found = {}
    for row in results.rows:
        found[str(int((row["at"] - START).total_seconds()))] = [row["value"], row["other"]]
    assert len(found) == len(results.rows)
    return found


@pytest.mark.parametrize("how", EXPECTED)
def test_each_record_is_looked_up_as_the_documentation_says(how: str) -> None:
    ways: list[TestResults] = [
        as_written(ENTRIES).watermark(END).run(looked_up(how)),
        as_written(ENTRIES, killed=True).watermark(END).run(looked_up(how)),
        as_written(ENTRIES).watermark(END).run(looked_up(how), batches="one"),
        *(out_of_order(ENTRIES, seed).watermark(END).run(looked_up(how)) for seed in SEEDS),
    ]
    for results in ways:
        assert answers(results) == EXPECTED[how]


# Ratings of movies

MOVIES = case("A15")["stream_table_left_join"]


def rating_script(*, killed: bool = False, seed: int | None = None) -> TestStreams:
    script = TestStreams(
        movies=TestStream("id INT, title STRING, release_year INT"), ratings=TestStream("movie INT, rating DOUBLE")
    )
    movies = [dict(zip(("id", "title", "release_year"), movie, strict=True)) for movie in MOVIES["movies"]]
    ratings = [dict(zip(("movie", "rating"), rating, strict=True)) for rating in MOVIES["ratings"]]
    for stream, rows in (("movies", movies), ("ratings", ratings)):
        if seed is not None:
            Random(seed).shuffle(rows)
        for row in rows:
            script = script.rows(stream, [row])
            script = script.kill() if killed else script
    return script


def rated(movies: Any, ratings: Any) -> Any:
    return enrich(ratings, table(movies, key="id"), on={"movie": "id"}, at=latest())


def told(results: TestResults) -> list[tuple[Any, ...]]:
    return [(row["movie"], row["rating"], row["title"], row["release_year"]) for row in results.rows]


def test_each_rating_has_the_title_of_its_movie() -> None:
    titles = {id: (title, year) for id, title, year in MOVIES["movies"]}
    expected = [(movie, rating, *titles[movie]) for movie, rating in MOVIES["ratings"]]
    assert told(rating_script().run(rated)) == expected
    assert told(rating_script(killed=True).run(rated)) == expected
    assert told(rating_script().run(rated, batches="one")) == expected
    for seed in SEEDS:
        assert sorted(told(rating_script(seed=seed).run(rated))) == sorted(expected)
