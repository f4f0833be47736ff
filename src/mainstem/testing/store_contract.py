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

import json
import os
import random
import subprocess
import sys
import unittest
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mainstem.crash_points import VARIABLE
from mainstem.errors import Conflict, Fenced, Invalid, MainstemError, SchemaMismatch, Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks.store_backend import FenceMoved, Fences
from mainstem.testing.store_trial import (
    ODD,
    SCHEMA,
    VALUES,
    StoreTrial,
    batch_of,
    changes,
    look_at_each_step,
    rows_after,
)

__all__ = ["StoreContract"]


@contextmanager
def _raises(kind: type[MainstemError]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert error.detail, f"{kind.__name__} has no detail"
        assert error.hint, f"{kind.__name__} has no hint"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


class StoreContract(ABC):
    """Each batch once, whole or not at all, by the latest run alone; what it lost is noticed; what it shows is exact.

    A subclass says how the store that belongs to a folder is opened, and how it is saved and set back. Its name begins with
    "Test", so that pytest finds it. A process of its own is killed `kills` times at each of the `points`; two processes try to commit at the same moment
    `attempts` times.

    >>> class TestMyStore(StoreContract):
    ...     def opens_with(self, folder):
    ...         return "shop.my_store:MyStore", {"path": str(folder / "rows.db")}
    ...     def save(self, folder):
    ...         return (folder / "rows.db").read_bytes()
    ...     def restore(self, folder, saved):
    ...         (folder / "rows.db").write_bytes(saved)
    """

    kills: ClassVar[int] = 3
    attempts: ClassVar[int] = 30
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

    def put_foreign(self, folder: Path) -> bool:
        """Put something that no flow has written where the rows would be; False, the default, if the store cannot tell."""
        return False

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

    def test_of_commits_at_the_same_moment_one_succeeds(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.begin(1)
        facts = [self._process(tmp_path, name=name, attempts=self.attempts) for name in ("one", "other")]
        racers = [
            subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for program in facts
        ]
        committed: set[str] = set()
        unknown: set[str] = set()
        try:
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n", "the store cannot be opened by another process"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("\n")
                racer.stdin.flush()
            for racer in racers:
                outcomes = json.loads(racer.communicate(timeout=120)[0])
                committed.update(outcomes["committed"])
                unknown.update(outcomes["unknown"])
        finally:
            for racer in racers:
                racer.kill()
                racer.communicate()
        titles = set(trial.rows().values())
        assert committed, "no commit succeeded"
        assert committed <= titles, f"a commit was overwritten by another one: {sorted(committed - titles)}"
        assert titles <= committed | unknown, f"a commit was refused, and has written: {sorted(titles - committed)}"
        assert trial.store.status.batch == len(titles) - 1
        trial.close()

    def test_at_each_step_of_a_commit_readers_see_whole_batches(self, tmp_path: Path) -> None:
        trial, reader = self.trial(tmp_path), self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, batch_of(0))
        seen = look_at_each_step(lambda: trial.write(writer, 1, batch_of(1)), reader.look)
        assert (1, 0, rows_after(0)) in seen, "no reader saw anything while the store was written"
        for version, batch, rows in seen:
            assert (version, rows) == (1, rows_after(batch)), f"readers saw a part of batch {batch + 1}"
        assert reader.look() == (1, 1, rows_after(1))
        reader.close()
        trial.close()

    def test_a_flow_does_not_write_what_another_one_writes(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.write(trial.begin(1), 0, batch_of(0))
        with _raises(Conflict):
            trial.begin(2, flow="another")
        trial.close()

    def test_foreign_content_is_refused(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        if not self.put_foreign(tmp_path):
            raise unittest.SkipTest("put_foreign puts nothing")
        for epoch in (1, 2):
            with _raises(Conflict):
                trial.begin(epoch)
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
        program = ["env", f"{VARIABLE}={point}", *self._process(folder, **facts)]
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == -9, f"{point} was not reached: {done.stderr[-2000:]}"

    def _process(self, folder: Path, **facts: Any) -> list[str]:
        way, arguments = self.opens_with(folder)
        spec = json.dumps({"folder": str(folder), "way": way, "arguments": arguments, "key": ["id"], **facts})
        path = os.pathsep.join(filter(None, sys.path))
        code = "import sys; from mainstem.testing.store_trial import main; main(sys.argv[1])"
        return ["env", f"PYTHONPATH={path}", sys.executable, "-c", code, spec]

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

    def test_at_each_step_of_a_fill_readers_see_the_whole_old_or_the_whole_new_version(self, tmp_path: Path) -> None:
        trial, reader = self.trial(tmp_path), self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(key, "old", "insert") for key in range(5)]))
        writer.finish()

        def fill() -> None:
            following = trial.begin(2, version=2)
            trial.write(following, 0, changes([(key, "new", "insert") for key in range(3, 9)]))
            assert following.finish()

        versions = {1: dict.fromkeys(range(5), "old"), 2: dict.fromkeys(range(3, 9), "new")}
        seen = look_at_each_step(fill, reader.look)
        assert (1, 0, versions[1]) in seen, "no reader saw anything while the store was filled"
        for version, _, rows in seen:
            assert rows == versions[version], f"readers saw a part of a version: {rows}"
        assert reader.look() == (2, 0, versions[2])
        reader.close()
        trial.close()

    def test_a_switch_after_a_fence_has_moved_changes_nothing(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(1, "old", "insert")]))
        writer.finish()
        following = trial.begin(2, version=2)
        trial.write(following, 0, changes([(2, "new", "insert")]))
        before = trial.backend.fences()
        trial.write(writer, 1, changes([(3, "later", "insert")]))
        trial.write(following, 1, changes([(4, "new", "insert")]))
        now = trial.backend.fences()
        assert now.beside is not None
        switched = replace(now.beside, filling=False)
        stale = {
            "both": before,
            "the live copy": Fences(before.live, now.beside),
            "the copy beside": Fences(now.live, before.beside),
            "no live copy": Fences(None, now.beside),
        }
        for what, expected in stale.items():
            try:
                trial.backend.switch(expected, switched)
            except FenceMoved:
                pass
            else:
                raise AssertionError(f"switched although another fence was expected: {what}")
            assert trial.backend.fences() == now, what
            assert trial.rows() == {1: "old", 3: "later"}, what
        trial.backend.switch(now, switched)
        assert trial.rows() == {2: "new", 4: "new"}
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
