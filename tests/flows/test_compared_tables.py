"""Comparisons of topics, views and stores, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem import Mainstem, View
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Invalid
from mainstem.flows.compared_tables import compare_tables, table_to_compare
from mainstem.workbench.cli.main import run

SCHEMA = "id BIGINT, city STRING, tags ARRAY<STRING>"


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        yield stem


def fill_view(stem: Mainstem, name: str, rows: list[dict[str, Any]], end: int, batch: int = 0) -> View:
    view = View(stem.home, name, key="id")
    flow = FlowRun(name, epoch=batch + 1)
    schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("tags", pa.list_(pa.string()))])
    writer = view.writer(flow, schema)
    writer.apply(pa.Table.from_pylist(rows, schema), Batch(batch, flow, {"orders": {0: end}}))
    writer.close()
    return view


def row(key: int, city: str | None = "Berlin", tags: list[str] | None = None) -> dict[str, Any]:
    return {"id": key, "city": city, "tags": tags}


def test_the_latest_rows_of_a_topic_are_compared_with_a_view_at_one_position(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema=SCHEMA, key="id")
    orders.append([row(1), row(2), row(3, tags=["a"]), row(4)])
    orders.append([row(2, "Tunis")])
    orders.delete([4])
    view = fill_view(stem, "now", [row(1), row(2, "Tunis"), row(3, tags=["a"])], 6)
    found = stem.compare(orders, view)
    assert (found.equal, found.at_one_position, found.same) == (True, True, 3)
    other = fill_view(stem, "other", [row(1), row(2, "Lisbon"), row(3, tags=["b"]), row(5, None)], 6)
    found = stem.compare(orders, other)
    assert (found.same, found.changed, found.only_first, found.only_second) == (1, 2, 0, 1)
    assert [dict(one.key) for one in found.differences] == [{"id": 2}, {"id": 3}, {"id": 5}]
    assert found.differences[0].first == row(2, "Tunis")
    assert found.differences[0].second == row(2, "Lisbon")
    assert (found.differences[2].first, found.differences[2].second) == (None, row(5, None))


def test_a_side_that_is_behind_is_waited_for(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema=SCHEMA, key="id")
    orders.append([row(1), row(2)])
    view = fill_view(stem, "now", [row(1)], 1)
    looks: list[float] = []

    def catch_up(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            fill_view(stem, "now", [row(2)], 2, batch=1)

    found = compare_tables(table_to_compare(orders), table_to_compare(view), wait_seconds=60, sleep=catch_up)
    assert (found.equal, found.at_one_position, len(looks)) == (True, True, 3)
    # One that never catches up differs, and it is said that this is not at one position.
    orders.append([row(3)])
    found = compare_tables(table_to_compare(orders), table_to_compare(view), wait_seconds=0)
    assert (found.only_first, found.at_one_position) == (1, False)


def test_what_keeps_changing_is_undecided(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema=SCHEMA, key="id")
    copies = stem.create_topic("copies", schema=SCHEMA, key="id")
    orders.append([row(1), row(2)])
    copies.append([row(1, "Tunis"), row(2)])

    looks: list[float] = []

    def change(seconds: float) -> None:
        looks.append(seconds)
        orders.append([row(2, f"city {len(looks)}")])

    found = compare_tables(
        table_to_compare(orders), table_to_compare(copies), wait_seconds=3, sleep=change, now=lambda: len(looks)
    )
    # Nothing in common says how far they are: key 1 stayed different, key 2 was never the same twice.
    assert (found.changed, found.undecided) == (1, 1)
    assert dict(found.differences[0].key) == {"id": 1}


def test_other_columns_are_left_out_and_other_types_compared_by_value(stem: Mainstem) -> None:
    one = stem.create_topic("one", schema="id BIGINT, n INT, only STRING", key="id")
    other = stem.create_topic("other", schema="id BIGINT, n BIGINT, other STRING", key="id")
    one.append([{"id": 1, "n": 7, "only": "x"}, {"id": 2, "n": 8, "only": None}])
    other.append([{"id": 1, "n": 7, "other": "y"}, {"id": 2, "n": 9, "other": None}])
    found = stem.compare(one, other, wait="0 seconds")
    assert (found.same, found.changed, found.left_out) == (1, 1, ("only", "other"))


def test_tables_that_cannot_be_compared_are_refused(stem: Mainstem) -> None:
    one = stem.create_topic("one", schema="id BIGINT, n INT", key="id")
    other = stem.create_topic("other", schema="id BIGINT, n INT", key="n")
    without = stem.create_topic("without", schema="m INT")
    with pytest.raises(Invalid, match="different keys"):
        stem.compare(one, other)
    assert stem.compare(one, other, key="id").equal
    with pytest.raises(Invalid, match='no column "id"'):
        stem.compare(one, without)
    with pytest.raises(Invalid, match="have no key"):
        stem.compare(without, without)
    with pytest.raises(Invalid, match="cannot be compared"):
        stem.compare(one, {"id": 1})


def test_nothing_is_said_of_how_rows_lie_in_memory(stem: Mainstem, capfd: pytest.CaptureFixture[str]) -> None:
    topics = [stem.create_topic(name, schema="id BIGINT, title STRING", key="id") for name in ("products", "copies")]
    for number, topic in enumerate(topics):
        for title in ("a" * number, "bc"):
            topic.append([{"id": 1, "title": title}, {"id": 2, "title": title}])
            stem.compare(*topics, wait="0 seconds")
    assert stem.compare(*topics).equal
    assert capfd.readouterr().err == ""


# The command


def test_the_command_tells_by_its_status_and_shows_both_rows(
    stem: Mainstem, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = stem.create_topic("orders", schema=SCHEMA, key="id")
    orders.append([row(1), row(2, "Tunis")])
    fill_view(stem, "now", [row(1), row(2, "Lisbon")], 2)
    fill_view(stem, "right", [row(1), row(2, "Tunis")], 2)
    assert run(["compare", "orders", "view:right", "--home", stem.home]) == 0
    assert "are equal, at one position: 2 same" in capsys.readouterr().out
    assert run(["compare", "topic:orders", "now", "--home", stem.home]) == 1
    said = capsys.readouterr().out
    assert "1 same, 1 different" in said
    assert "Tunis" in said
    assert "Lisbon" in said
    assert run(["compare", "orders", "nwo", "--home", stem.home]) == 1
    assert "Did you mean" in capsys.readouterr().err


def test_watching_tells_since_when_and_for_how_long(
    stem: Mainstem, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainstem.workbench.cli import compare_command

    orders = stem.create_topic("orders", schema=SCHEMA, key="id")
    copies = stem.create_topic("copies", schema=SCHEMA, key="id")
    orders.append([row(1)])
    copies.append([row(1)])
    steps = iter([lambda: orders.append([row(2)]), lambda: None, lambda: copies.append([row(2)]), lambda: None])
    now = [0.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += 2.0
            next(steps)()

        @staticmethod
        def strftime(_: str) -> str:
            return "12:00:00"

    monkeypatch.setattr(compare_command, "time", Time)
    assert run(["compare", "orders", "copies", "--watch", "--for", "8 seconds", "--home", stem.home]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "differ: 1 same, 0 different, 1 only in the first" in lines[0]
    assert "equal again: they differed for 4" in lines[1]
