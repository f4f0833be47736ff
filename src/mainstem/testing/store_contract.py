"""StoreContract: what every store promises, as tests for pytest.

class TestMyStore(StoreContract):
    def opens_with(self, folder):
        return "shop.my_store:MyStore", {"path": str(folder / "rows.db")}

    def save(self, folder):
        return (folder / "rows.db").read_bytes()

    def restore(self, folder, saved):
        (folder / "rows.db").write_bytes(saved)
"""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import SystemClock
from mainstem.crash_points import VARIABLE
from mainstem.errors import Conflict, Fenced, Invalid, MainstemError, SchemaMismatch, Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks.store import Store
from mainstem.sinks.store_backend import StoreBackend
from mainstem.sinks.store_writer import StoreWriter

__all__ = ["StoreContract", "StoreTrial"]

SCHEMA = pa.schema([("id", pa.int64()), ("title", pa.string()), ("record", RECORD)])
ROWS = 10


@contextmanager
def _raises(kind: type[MainstemError]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert error.detail, f"{kind.__name__} has no detail"
        assert error.hint, f"{kind.__name__} has no hint"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def changes(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA, first: int = 0) -> pa.Table:
    """Rows as a flow gives them; the last value of each is the change."""
    names = [name for name in schema.names if name != "record"]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    records = [
        {"partition": 0, "offset": first + number, "appended_at": 0, "change": row[-1], "headers": None}
        for number, row in enumerate(rows)
    ]
    return pa.table({**columns, "record": pa.array(records, RECORD)}, schema)


class StoreTrial:
    """A store with a home, and a flow that writes it without Spark."""

    def __init__(self, folder: Path, way: str, arguments: dict[str, Any], key: tuple[str, ...] = ("id",)) -> None:
        self.home = str(folder / "home")
        self.backend = _open(way, arguments)
        self.store = Store(self.home, "tried", self.backend, key=key, identity="home of the trial", clock=SystemClock())

    def begin(self, epoch: int, *, version: int = 1, flow: str = "tried", schema: pa.Schema = SCHEMA) -> StoreWriter:
        store = self.store.at_version(version)
        store.accept(schema)
        return store.table_writer(FlowRun(flow, epoch, version), schema)

    def write(self, writer: StoreWriter, number: int, rows: pa.Table) -> int:
        """Commit a batch; the number of rows that were rejected."""
        prepared = writer.prepare(rows)
        writer.commit(prepared, Batch(number, writer._run, {"orders": {0: number + 1}}))
        return len(prepared.rejections)

    def go_on(self, epoch: int, last: int) -> None:
        """What a run does: each batch up to the last one that the store does not have yet."""
        writer = self.begin(epoch)
        for number in range(writer.committed_batch + 1, last + 1):
            self.write(writer, number, batch_of(number))
        writer.close()

    def rows(self) -> dict[Any, Any]:
        return {row["id"]: row["title"] for row in self.store.to_arrow().to_pylist()}

    def close(self) -> None:
        self.backend.close()


def _open(way: str, arguments: dict[str, Any]) -> StoreBackend:
    module, _, name = way.partition(":")
    backend: StoreBackend = getattr(importlib.import_module(module), name)(**arguments)
    return backend


def batch_of(number: int) -> pa.Table:
    """A batch that changes rows of those before it, and deletes one."""
    rows: list[tuple[Any, ...]] = [(key, f"batch {number}", "insert") for key in range(number, number + ROWS)]
    return changes([*rows, (number, None, "delete")], first=number * 100)


def rows_after(number: int) -> dict[Any, Any]:
    """What a store has after that batch."""
    found: dict[Any, Any] = {}
    for batch in range(number + 1):
        found |= dict.fromkeys(range(batch, batch + ROWS), f"batch {batch}")
        del found[batch]
    return found


ODD = [
    "", " ", "'", '"', "`", "\\", ";", "%s", "$1", "--", "/* */", "'; DROP TABLE tried; --", "*", "a:b", "a b", "\n", "\r\n", "\t",
    "NaN", "null", "None", "ä", "ß", "\u202e", "\ufeff", "🜚", "𒀀", "e\u0301", "AND", "OR NOT", "title:x", "+x -y", "(", "[a TO b]",
    "x^2", "~", "\\u0000", "{}", "$$", "{{x}}", "%00", "*3\r\n$3\r\nDEL\r\n", "../../x", "x" * 1000,
]  # fmt: skip


class StoreContract(ABC):
    """Each batch once, whole or not at all, by the latest run alone; what it lost is noticed; what it shows is exact.

    A subclass says how the store that belongs to a folder is opened, and how it is saved and set back. Its name begins with
    "Test", so that pytest finds it. A process of its own is killed `kills` times at each of the `points`.

    >>> class TestMyStore(StoreContract):
    ...     def opens_with(self, folder):
    ...         return "shop.my_store:MyStore", {"path": str(folder / "rows.db")}
    ...     def save(self, folder):
    ...         return (folder / "rows.db").read_bytes()
    ...     def restore(self, folder, saved):
    ...         (folder / "rows.db").write_bytes(saved)
    """

    kills: ClassVar[int] = 3
    points: ClassVar[tuple[str, ...]] = (
        "before_sink_commit",
        "sink_committed",
        "before_store_switch",
        "store_switched",
    )

    @abstractmethod
    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """The import path of the backend's class ("module:Name"), and its arguments, which JSON can hold."""

    @abstractmethod
    def save(self, folder: Path) -> Any:
        """A copy of all that the store has now."""

    @abstractmethod
    def restore(self, folder: Path, saved: Any) -> None:
        """Set the store back to a copy."""

    def trial(self, folder: Path, key: tuple[str, ...] = ("id",)) -> StoreTrial:
        way, arguments = self.opens_with(folder)
        return StoreTrial(folder, way, arguments, key)

    # Rows

    def test_rows_are_inserted_replaced_and_deleted(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = trial.store.status
        assert (before.state, before.batch) == ("empty", -1)
        writer = trial.begin(1)
        assert (writer.committed_batch, trial.rows()) == (-1, {})
        for number in range(3):
            trial.write(writer, number, batch_of(number))
            assert trial.rows() == rows_after(number)
        assert trial.store.get(5) == {"id": 5, "title": "batch 2"}
        assert trial.store.get(0) is None
        assert trial.store.get({"id": 99}) is None
        status = trial.store.status
        assert (status.state, status.next_version) == ("filling", None)
        assert writer.finish()
        status = trial.store.status
        assert (status.state, status.batch, status.offsets) == ("current", 2, {"orders": {0: 3}})
        trial.close()

    def test_ten_thousand_random_changes_leave_what_a_dictionary_has(self, tmp_path: Path) -> None:
        self.check_random_changes(tmp_path, 10_000)

    def check_random_changes(self, folder: Path, count: int, seed: int = 17) -> None:
        """Batches of random inserts, updates and deletes, with restarts in between."""
        chance, trial = random.Random(seed), self.trial(folder)
        expected: dict[Any, Any] = {}
        writer, epoch, offset, number = trial.begin(1), 1, 0, 0
        while offset < count:
            rows: list[tuple[Any, ...]] = []
            for _ in range(chance.choice([0, 1, 7, 100, 1000])):
                key, deleted = chance.randrange(60), chance.random() < 0.3
                rows.append((key, None if deleted else chance.choice([None, *ODD]), "delete" if deleted else "insert"))
                if deleted:
                    expected.pop(key, None)
                else:
                    expected[key] = rows[-1][1]
            trial.write(writer, number, changes(rows, first=offset))
            offset, number = offset + len(rows), number + 1
            if chance.random() < 0.1:
                epoch += 1
                writer.close()
                writer = trial.begin(epoch)
                assert writer.committed_batch == number - 1
                assert trial.rows() == expected
        assert trial.rows() == expected
        trial.close()

    def test_odd_keys_and_values_are_values_and_nothing_else(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        schema = pa.schema([("id", pa.string()), ("title", pa.string()), ("record", RECORD)])
        writer = trial.begin(1, schema=schema)
        assert not trial.write(writer, 0, changes([(odd, odd, "insert") for odd in ODD], schema))
        assert trial.rows() == {odd: odd for odd in ODD}
        assert all((trial.store.get(odd) or {}).get("title") == odd for odd in ODD)
        trial.write(writer, 1, changes([(odd, None, "delete") for odd in ODD[::2]], schema))
        assert trial.rows() == {odd: odd for odd in ODD[1::2]}
        trial.close()

    def test_odd_names_of_columns_are_refused_or_names_and_nothing_else(self, tmp_path: Path) -> None:
        for number, name in enumerate(ODD):
            schema = pa.schema([("id", pa.int64()), (name, pa.string()), ("record", RECORD)])
            (folder := tmp_path / str(number)).mkdir()
            trial = self.trial(folder)
            try:
                writer = trial.begin(1, schema=schema)
            except (Invalid, SchemaMismatch) as error:
                assert error.hint, name
                continue
            trial.write(writer, 0, changes([(1, "x", "insert")], schema))
            assert trial.store.to_arrow().to_pylist() == [{"id": 1, name: "x"}]
            trial.close()

    def test_values_of_every_type_come_back_as_they_were(self, tmp_path: Path) -> None:
        for number, (data_type, values) in enumerate(VALUES):
            schema = pa.schema([("id", pa.int64()), ("value", data_type), ("record", RECORD)])
            (folder := tmp_path / str(number)).mkdir()
            trial = self.trial(folder)
            try:
                writer = trial.begin(1, schema=schema)
            except Invalid as error:
                assert error.hint, str(data_type)
                continue
            given = [*values, None]
            rows = changes([(place, value, "insert") for place, value in enumerate(given)], schema)
            rejected = writer.prepare(rows).rejections
            assert all(rejection.reason for rejection in rejected)
            trial.write(writer, 0, rows)
            fit = [place for place in range(len(given)) if place not in {rejection.row for rejection in rejected}]
            found = trial.store.to_arrow()
            assert found.column("id").to_pylist() == fit
            assert repr(found.column("value").to_pylist()) == repr(rows.column("value").take(fit).to_pylist()), str(
                data_type
            )
            one = trial.store.get(fit[0])
            assert one is not None
            assert repr(one["value"]) == repr(rows.column("value")[fit[0]].as_py())
            trial.close()

    def test_keys_of_several_columns(self, tmp_path: Path) -> None:
        kinds: list[tuple[pa.DataType, Any, Any]] = [
            (pa.int64(), 1, 2),
            (pa.string(), "1", "2"),
            (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
        ]
        for number, (data_type, one, other) in enumerate(kinds):
            (folder := tmp_path / str(number)).mkdir()
            trial = self.trial(folder, ("id", "at"))
            schema = pa.schema([("id", pa.string()), ("at", data_type), ("title", pa.string()), ("record", RECORD)])
            try:
                writer = trial.begin(1, schema=schema)
            except Invalid as error:
                assert data_type == pa.date32(), f"{data_type} is needed in a key"
                assert error.hint
                continue
            keys = [("a", one), ("a", other), (f"a:{one}", one), ("", one)]
            trial.write(writer, 0, changes([(*key, "x", "insert") for key in keys], schema))
            trial.write(writer, 1, changes([(*keys[0], None, "delete"), (None, one, "x", "insert")], schema, 9))
            found = {(row["id"], row["at"]) for row in trial.store.to_arrow().to_pylist()}
            assert found == set(keys[1:])
            assert trial.store.get(keys[1]) is not None
            assert trial.store.get(keys[0]) is None
            trial.close()

    def test_columns_may_be_added_later_and_no_others_changed(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.write(trial.begin(1), 0, changes([(1, "a", "insert")]))
        wider = pa.schema([*list(SCHEMA)[:2], ("price", pa.int32()), SCHEMA.field("record")])
        writer = trial.begin(2, schema=wider)
        trial.write(writer, 1, changes([(2, "b", 7, "insert")], wider))
        assert trial.store.to_arrow().to_pylist() == [
            {"id": 1, "title": "a", "price": None},
            {"id": 2, "title": "b", "price": 7},
        ]
        with _raises(SchemaMismatch):
            trial.begin(3)
        other = wider.set(2, pa.field("price", pa.string()))
        with _raises(SchemaMismatch):
            trial.begin(3, schema=other)
        trial.close()

    # Once

    def test_an_older_run_writes_nothing_any_more(self, tmp_path: Path) -> None:
        one, other = self.trial(tmp_path), self.trial(tmp_path)
        older = one.begin(1)
        one.write(older, 0, batch_of(0))
        newer = other.begin(2)
        assert newer.committed_batch == 0
        with _raises(Fenced):
            one.write(older, 1, batch_of(1))
        assert other.rows() == rows_after(0)
        other.write(newer, 1, batch_of(1))
        with _raises(Fenced):
            one.begin(1)
        assert other.rows() == rows_after(1)
        one.close()
        other.close()

    def test_a_flow_does_not_write_what_another_one_writes(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.write(trial.begin(1), 0, batch_of(0))
        with _raises(Conflict):
            trial.begin(2, flow="another")
        trial.close()

    def test_killed_at_each_point_it_has_whole_batches_each_once(self, tmp_path: Path) -> None:
        for point in (point for point in self.points if "switch" not in point):
            (folder := tmp_path / point).mkdir()
            for kill in range(self.kills):
                before = self._reached(folder)
                self.kill(folder, f"{point}:2", epoch=10 * kill + 1, last=before + 3)
                reached = self._reached(folder)
                assert reached in (before + 1, before + 2), f"{point}: batch {reached} after {before}"
                trial = self.trial(folder)
                assert trial.rows() == (rows_after(reached) if reached >= 0 else {}), point
                trial.go_on(10 * kill + 5, before + 3)
                assert trial.rows() == rows_after(before + 3), point
                trial.close()

    def _reached(self, folder: Path) -> int:
        trial = self.trial(folder)
        reached = trial.store.reached(1)
        trial.close()
        return reached

    def kill(self, folder: Path, point: str, **facts: Any) -> None:
        """A process of its own goes on with the flow, and is killed at a named point."""
        way, arguments = self.opens_with(folder)
        spec = json.dumps({"folder": str(folder), "way": way, "arguments": arguments, "key": ["id"], **facts})
        path = os.pathsep.join(filter(None, sys.path))
        program = ["env", f"{VARIABLE}={point}", f"PYTHONPATH={path}", sys.executable, "-m", __name__, spec]
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == -9, f"{point} was not reached: {done.stderr[-2000:]}"

    # Losing and filling

    def test_a_store_that_was_set_back_is_noticed(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        saved = [self.save(tmp_path)]
        writer = trial.begin(1)
        for number in range(3):
            trial.write(writer, number, batch_of(number))
            saved.append(self.save(tmp_path))
        assert writer.find_change() is None
        trial.close()
        for back, copy in enumerate(reversed(saved[:-1]), start=1):
            self.restore(tmp_path, saved[-1])
            running = self.trial(tmp_path)
            writer = running.begin(10 * back)
            self.restore(tmp_path, copy)
            assert isinstance(writer.find_change(), Unavailable), f"{back} batches"
            with _raises(Unavailable):
                running.write(writer, 3, batch_of(3))
            assert running.store.reached(1) == 2 - back
            running.close()

    def test_the_next_version_is_filled_beside_and_switched_to_in_one_step(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(key, "old", "insert") for key in range(5)]))
        writer.finish()
        following = trial.begin(2, version=2)
        trial.write(following, 0, changes([(key, "new", "insert") for key in range(3, 8)]))
        status = trial.store.status
        assert (status.state, status.version, status.next_version) == ("filling", 1, 2)
        assert trial.rows() == dict.fromkeys(range(5), "old")
        # The one that readers see goes on meanwhile, and then has applied more.
        trial.write(writer, 1, changes([(0, "older", "insert")]))
        assert not following.finish()
        trial.write(following, 1, changes([(9, "new", "insert")]))
        assert following.finish()
        assert trial.rows() == {**dict.fromkeys(range(3, 8), "new"), 9: "new"}
        status = trial.store.status
        assert (status.state, status.version, status.batch, status.next_version) == ("current", 2, 1, None)
        with _raises(Unavailable):
            trial.write(writer, 2, changes([(1, "late", "insert")]))
        trial.write(following, 2, changes([(9, None, "delete")]))
        assert trial.rows() == dict.fromkeys(range(3, 8), "new")
        trial.close()

    def test_killed_at_the_switch_it_has_one_version_or_the_other(self, tmp_path: Path) -> None:
        for point in (point for point in self.points if "switch" in point):
            (folder := tmp_path / point).mkdir()
            trial = self.trial(folder)
            writer = trial.begin(1)
            trial.write(writer, 0, changes([(1, "old", "insert"), (2, "old", "insert")]))
            writer.finish()
            trial.close()
            self.kill(folder, point, epoch=2, last=0, version=2)
            trial = self.trial(folder)
            seen = trial.rows()
            assert seen in ({1: "old", 2: "old"}, rows_after(0)), point
            writer = trial.begin(3, version=2)
            assert writer.committed_batch == 0
            if writer.filling:
                writer.finish()
            assert trial.rows() == rows_after(0)
            trial.close()

    def test_a_next_version_that_was_given_up_is_replaced(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(1, "old", "insert")]))
        trial.write(trial.begin(2, version=2), 0, changes([(2, "given up", "insert")]))
        following = trial.begin(3, version=3)
        assert following.committed_batch == -1
        trial.write(following, 0, changes([(3, "new", "insert")]))
        assert following.finish()
        assert trial.rows() == {3: "new"}
        trial.close()


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(1 << 15), (1 << 15) - 1]),
    (pa.int32(), [-(1 << 31), (1 << 31) - 1]),
    (pa.int64(), [-(1 << 63), (1 << 53) + 1, (1 << 63) - 1]),
    (pa.float32(), [0.1, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 1e-45]),
    (pa.float64(), [0.1, -0.0, math.inf, -math.inf, math.nan, 1.7976931348623157e308, 5e-324]),
    (pa.decimal128(38, 10), [Decimal(0), Decimal("-1.5"), Decimal("9999999999999999999999999999.9999999999")]),
    (pa.string(), ["", "\0", "a\0b", *ODD]),
    (pa.binary(), [b"", b"\0", bytes(range(256))]),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2026, 1, 1, 12, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
    (pa.list_(pa.int32()), [[], [1, None, 2]]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
    (pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]), [{"a": 1, "b": {"c": "\0"}}, {"a": None, "b": None}]),
]  # fmt: skip


def main(spec: str) -> None:
    """In a process of its own, which a test kills: write the batches up to one; a later version is also switched to."""
    facts = json.loads(spec)
    trial = StoreTrial(Path(facts["folder"]), facts["way"], facts["arguments"], tuple(facts["key"]))
    if "version" not in facts:
        trial.go_on(facts["epoch"], facts["last"])
        return
    writer = trial.begin(facts["epoch"], version=facts["version"])
    trial.write(writer, 0, batch_of(0))
    writer.finish()


if __name__ == "__main__":
    main(sys.argv[1])
