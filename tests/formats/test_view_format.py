"""Views as earlier versions wrote them: read by this one, row by row and change by change, and written on.

The home in `sqlite_view_v1/` was written once by `python -m tests.formats.test_view_format` and stays as it is.
"""

import json
import shutil
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock
from mainstem.views.view import View
from tests.formats.home_facts import plain

FOLDER = Path(__file__).parent / "sqlite_view_v1"
MOMENT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
RUN = FlowRun("prices", epoch=3)

# A column of every kind that a view holds, each with a value that a careless reader would spoil.
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "yes": (pa.bool_(), True),
    "tiny": (pa.int8(), -128),
    "whole": (pa.int64(), 2**63 - 1),
    "single": (pa.float32(), 0.1),
    "double": (pa.float64(), float("nan")),
    "zero": (pa.float64(), -0.0),
    "amount": (pa.decimal128(38, 18), Decimal("12345678901234567890.000000000000000001")),
    "text": (pa.string(), "Köln\0'\"\n"),
    "bytes": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), date(1969, 12, 31)),
    "daytime": (pa.time64("us"), time(23, 59, 59, 999999)),
    "moment": (pa.timestamp("us", "UTC"), MOMENT),
    "local": (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    "parts": (pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int32())]), {"at": MOMENT, "n": None}),
    "list": (pa.list_(pa.string()), ["a", None, ""]),
    "pairs": (pa.map_(pa.string(), pa.decimal128(5, 2)), [("b", Decimal("1.50")), ("a", None)]),
}
SCHEMA = pa.schema(
    [("store", pa.string()), ("number", pa.int32()), *((name, kind) for name, (kind, _) in VALUES.items())]
)


def rows(*given: tuple[str, int, int | None], text: str = VALUES["text"][1]) -> pa.Table:
    """Rows with all values, or, of a row that has no whole number, with none."""
    made = [
        {
            "store": store,
            "number": number,
            **{name: None if whole is None else value for name, (_, value) in VALUES.items()},
            "whole": whole,
            "text": None if whole is None else text,
        }
        for store, number, whole in given
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def deleted(store: str, number: int) -> pa.Table:
    record = pa.array([{"partition": 0, "offset": 9, "change": "delete"}])
    return rows((store, number, None)).append_column("record", record)


def fill(view: View, text: str = VALUES["text"][1]) -> None:
    """Two versions: one that was live for three batches, and one that was put to use then."""
    writer = view.writer(RUN, SCHEMA)
    writer.apply(
        rows(("A", 1, 2**63 - 1), ("A", 2, None), ("Ö", -1, 7), text=text), Batch(0, RUN, {"orders": {0: 3, 1: 0}})
    )
    writer.apply(rows(("A", 1, 8), text=text), Batch(1, RUN, {"orders": {0: 4, 1: 0}}))
    writer.apply(deleted("A", 2), Batch(2, RUN, {"orders": {0: 5, 1: 2}, "clicks": {0: 1}}))
    writer.close()
    version = view.new_version()
    again = FlowRun("prices", 4, version)
    writer = view.writer(again, SCHEMA)
    writer.apply(rows(("A", 1, 8), ("B", 5, 1), text=text), Batch(0, again, {"orders": {0: 5, 1: 2}}))
    view.use(version)
    writer.apply(rows(("A", 1, 9), text=text), Batch(1, again, {"orders": {0: 6, 1: 2}}))
    writer.close()
    view.close()


def write() -> None:
    fill(View(FOLDER / "home", "prices", key=["store", "number"], clock=ManualClock()))
    (FOLDER / "expected.json").write_text(json.dumps(facts(View(FOLDER / "home", "prices")), indent=1) + "\n")


def facts(view: View) -> dict[str, Any]:
    """All that can be read, as JSON has it."""
    described = view.describe()
    versions = {}
    for version in view.versions():
        with view.snapshot(version.number) as snapshot:
            versions[str(version.number)] = shown(snapshot.to_arrow())
    found = {
        "id": view.id,
        "key": list(view.key),
        "ddl": view.ddl,
        "live": described.live.number,
        "versions": versions,
        "standing": [[it.number, it.flow, it.epoch, it.batch, plain(it.offsets)] for it in view.versions()],
        "positions": [described.first_position, described.last_position],
        "changes": shown(view.changes_between(0, 3, 10).rows) + shown(view.changes_between(5, 100, 100).rows),
        "row": repr(view.get(("A", 1))).replace("zoneinfo.ZoneInfo(key='UTC')", "UTC"),
    }
    view.close()
    return json.loads(json.dumps(found))


def shown(table: pa.Table) -> list[str]:
    """Rows as text that hides nothing: -0.0, NaN and None are told apart. How a zone is named is left to Arrow."""
    return [repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "UTC") for row in table.to_pylist()]


def test_a_view_of_format_1_is_read_as_it_was_written(tmp_path: Path) -> None:
    home = shutil.copytree(FOLDER / "home", tmp_path / "home")
    assert facts(View(home, "prices")) == json.loads((FOLDER / "expected.json").read_text())


def test_it_is_written_on_and_its_cursors_hold(tmp_path: Path) -> None:
    write_on(View(shutil.copytree(FOLDER / "home", tmp_path / "home"), "prices"))


def write_on(view: View, text: str = VALUES["text"][1]) -> None:
    """A next batch goes in, a cursor from before holds, and the version before can be put to use."""
    before = view.last_position()
    run = FlowRun("prices", 5, 2)
    with_writer = view.writer(run, SCHEMA)
    assert with_writer.committed_batch == 1
    with_writer.apply(rows(("C", 1, 1), text=text), Batch(2, run, {"orders": {0: 7, 1: 2}}))
    with_writer.close()
    changes = view.changes_between(before, view.last_position(), 10)
    assert [(row["store"], row["record"]["change"]) for row in changes.rows.to_pylist()] == [("C", "insert")]
    view.use(1)
    assert [row["store"] for row in view.to_arrow().to_pylist()] == ["A", "Ö"]
    view.close()


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 200_000


if __name__ == "__main__":
    write()
