"""Late rows into their topic: once for each batch, and nothing of them lost where columns do not fit."""

import json
from pathlib import Path

import pyarrow as pa

import mainstem
from mainstem.batch import FlowRun
from mainstem.flows.late_topic import LateTopic


def test_late_rows_are_appended_once_and_what_does_not_fit_is_kept_as_text(tmp_path: Path) -> None:
    stem = mainstem.open(tmp_path / "home", upkeep="manual")
    (tmp_path / "metadata").write_text('{"id": "checkpoint"}')
    late = LateTopic(stem.log, FlowRun("totals", 1), str(tmp_path))
    first = pa.table({"store": ["Berlin"], "amount": [5], "stage": ["windowed-0"]})
    other = pa.table({"store": [17, 18], "amount": [6, 7], "stage": ["windowed-1", "windowed-1"]})

    for batch, tables in ((0, [first]), (1, [first, other]), (1, [first, other]), (2, [])):
        late.append(tables, batch)

    rows = stem.topic("totals.late").to_arrow().to_pylist()
    assert [(row["store"], row["amount"], row["stage"], row["batch"]) for row in rows] == [
        ("Berlin", 5, "windowed-0", 0), ("Berlin", 5, "windowed-0", 1), (None, 6, "windowed-1", 1), (None, 7, "windowed-1", 1)
    ]  # fmt: skip
    assert [row["other"] and json.loads(row["other"]) for row in rows] == [None, None, {"store": 17}, {"store": 18}]
    stem.close()
