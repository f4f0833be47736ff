"""State of stages as earlier versions wrote it: read by this one, row by row.

The files in `stage_v1/`, `stage_v2/` were written once, by `python -m tests.formats.test_stage_format` of their time, and
stay as they are.
"""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mainstem.errors import Corrupt
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, BatchClock, Step
from mainstem.operators.stage.stage_task import BucketState
from mainstem.operators.stage.state_run_file import RunFile
from mainstem.operators.stage.state_runs import StageManifests, StateRuns

FOLDERS = Path(__file__).parent
NEWEST = "stage_v2"
SCHEMA = pa.schema(
    [*STATE_COLUMNS, ("by_0", pa.string()), ("a0_sum", pa.decimal128(12, 2)), ("seen", pa.timestamp("us", "UTC"))]
)
CLOCK = BatchClock(watermark=100, now=100, watermark_before=50, now_before=50)


def rows_of(*rows: tuple) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.table([pa.array(values, at.type) for values, at in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def write() -> None:
    """Three batches: rows put, one of them changed, one let go."""
    manifests = StageManifests(str(FOLDERS / NEWEST))
    bucket = BucketState()
    steps = [
        Step(
            SCHEMA.empty_table(),
            rows_of((7, 1, 60, NEVER, "Köln", Decimal("1.50"), 1), (7, 2, 200, 90, None, Decimal("-2.00"), None)),
        ),
        Step(
            SCHEMA.empty_table(),
            rows_of((-3, 1, NEVER, NEVER, "Paris", None, 5), (7, 2, 150, NEVER, "x", Decimal("3.25"), 9)),
        ),
        Step(SCHEMA.empty_table(), None, rows_of((7, 1, 0, 0, None, None, None)).select(["group", "item"])),
    ]
    for number, step in enumerate(steps):
        manifests.begin(number, "attempt", {"windowed-0": {}})
        folder = f"{manifests.folder}/windowed-0"
        runs = StateRuns(folder, bucket.runs, SCHEMA, bucket.live)
        bucket = BucketState(tuple(runs.after(step, number)), runs.live, number)
        stage = {
            "operator": "windowed",
            "described": {},
            "buckets": 1,
            "counts": {},
            "late": {"rows": 0},
            "state": {"0": bucket.to_json()},
        }
        manifests.write(number, {"clock": {"watermark": 50 * number, "now": 1}, "stages": {"windowed-0": stage}})
    (FOLDERS / NEWEST / "expected.json").write_text(json.dumps(facts(NEWEST), indent=1, default=str) + "\n")


def facts(folder: str) -> dict:
    """What is in the files."""
    manifests = StageManifests(str(FOLDERS / folder))
    found = {}
    for batch in (1, 2):
        state = BucketState.from_json(manifests.read(batch)["stages"]["windowed-0"]["state"]["0"])
        runs = StateRuns(f"{manifests.folder}/windowed-0", state.runs, SCHEMA, state.live)
        everything = runs.find(np.array([-3, 7]))
        found[str(batch)] = {
            "live": runs.live,
            "rows": everything.to_pylist(),
            "due": runs.due(CLOCK).column("item").to_pylist(),
        }
    return found


@pytest.mark.parametrize("folder", ["stage_v1", "stage_v2"])
def test_state_is_read_as_it_was_written(folder: str) -> None:
    found = json.loads(json.dumps(facts(folder), default=str))
    assert found == json.loads((FOLDERS / folder / "expected.json").read_text())


def test_state_of_a_later_format_is_refused(tmp_path: Path) -> None:
    table = pa.table({"group": [1], "item": [1], "gone": [False]}).replace_schema_metadata({"mainstem.format": "3"})
    with pa.ipc.new_file(str(tmp_path / "run.arrow"), table.schema) as writer:
        writer.write_table(table)

    with pytest.raises(Corrupt, match="the state of a flow has format 3, which this version cannot read"):
        RunFile(str(tmp_path / "run.arrow"), 0)


if __name__ == "__main__":
    write()
