"""Any run of batches, replays, restarts and flips leaves a view as it leaves a dict; changes lead there from anywhere."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.batch import Batch, FlowRun
from mainstem.log.rows.normal_schema import nullable_schema
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.view import View
from tests.contracts.view_rows import SCHEMA, recorded, replayed, rows, shown
from tests.log.schema_strategies import SCHEMAS, rows_of

DELETED = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("change", pa.string())])
STORES = st.sampled_from(["Berlin", "Lisbon", "Osaka", "Quito"])
AMOUNTS = st.integers(0, 3)
PLAIN = st.tuples(st.just("plain"), st.lists(st.tuples(st.none() | STORES, AMOUNTS), max_size=5))
RECORDED = st.tuples(
    st.just("recorded"), st.lists(st.tuples(STORES, AMOUNTS, st.sampled_from(["insert", "delete"])), max_size=5)
).flatmap(lambda step: st.tuples(st.just(step[0]), st.just(step[1]), st.permutations(range(len(step[1])))))
STEPS = st.lists(PLAIN | RECORDED | st.tuples(st.sampled_from(["replay", "restart", "flip", "subscribe"])), max_size=12)


@dataclass
class Model:
    """Two dicts, one for each version, and what was seen at some positions."""

    view: View
    versions: dict[int, dict[str, int]] = field(default_factory=lambda: {1: {}, 2: {}})
    batches: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    live: int = 1
    epoch: int = 1
    seen: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    writers: dict[int, ViewWriter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.epoch += 1
        self.writers = {number: self.view.writer(FlowRun("f", self.epoch, number), SCHEMA) for number in (1, 2)}

    def apply(self, table: pa.Table, expected: dict[str, int | None]) -> None:
        writer = self.writers[self.live]
        writer.apply(table, Batch(self.batches[self.live], writer.run))
        self.batches[self.live] += 1
        for store, amount in expected.items():
            if amount is None:
                self.versions[self.live].pop(store, None)
            else:
                self.versions[self.live][store] = amount

    def replay(self) -> None:
        writer = self.writers[self.live]
        writer.apply(rows(Berlin=99), Batch(self.batches[self.live] - 1, writer.run))

    def flip(self) -> None:
        self.live = 3 - self.live
        self.view.use(self.live)

    def check(self) -> None:
        now = self.versions[self.live]
        assert shown(self.view) == now
        for cursor, seen in self.seen:
            state = seen
            for update in self.view.subscribe(cursor, wait="0 seconds"):
                state = replayed(state, update.rows)
            assert state == now


def check_steps(view: View, steps: list[tuple]) -> None:
    """Whatever happens to the view happens to a dict, and they stay equal."""
    model = Model(view)
    for step in steps:
        match step:
            case ("plain", pairs):
                table = pa.table([[s for s, _ in pairs], [a for _, a in pairs]], schema=SCHEMA)
                model.apply(table, {store: amount for store, amount in pairs if store is not None})
            case ("recorded", triples, order):
                given_rows = [
                    (store, amount, 0, offset, change) for offset, (store, amount, change) in enumerate(triples)
                ]
                latest = {s: None if change == "delete" else a for s, a, change in triples}
                model.apply(recorded(*(given_rows[index] for index in order)), latest)
            case ("replay",):
                model.replay()
            case ("restart",):
                model.restart()
            case ("flip",):
                model.flip()
            case ("subscribe",):
                update = next(model.view.subscribe())
                model.seen.append((update.cursor, dict(zip(*update.rows.to_pydict().values(), strict=True))))
        model.check()


@pytest.mark.thorough
@given(STEPS)
def test_a_view_is_a_dict_whatever_happens_to_it(steps: list[tuple]) -> None:
    with TemporaryDirectory() as folder:
        view = View(folder, "revenue", key="store")
        check_steps(view, steps)
        view.close()


def numbered(schema: pa.Schema, found: list[dict]) -> pa.Table:
    """Rows with a number of their own as the key, so that every one stays; no other column has a name like it."""
    columns = pa.schema([pa.field("number of row", pa.int64()), *nullable_schema(schema)])
    return pa.Table.from_pylist([{"number of row": n, **row} for n, row in enumerate(found)], schema=columns)


def check_rows_come_back(view: View, table: pa.Table, kept: list[int]) -> None:
    """Written and read in every way, rows are as they were; those that are not in `kept` were rejected."""
    run = FlowRun("f", epoch=1)
    writer = view.writer(run, table.schema)
    assert writer.apply(table, Batch(0, run, {"orders": {0: 1}})).rejected == len(table) - len(kept)
    wanted = table.take(pa.array(kept, pa.int64())).to_pylist()
    assert repr(view.to_arrow().to_pylist()) == repr(wanted)
    assert repr(view.changes().rows.drop_columns("record").to_pylist()) == repr(wanted)
    assert writer.apply(table, Batch(1, run)).changes == 0
    for row in wanted:
        assert repr(view.get(row["number of row"])) == repr(row)
    deleted = pa.array([{"partition": 0, "offset": 0, "change": "delete"}] * len(wanted), DELETED)
    gone = table.take(pa.array(kept, pa.int64())).append_column("record", deleted)
    writer.apply(gone, Batch(2, run, {"orders": {0: 2}}))
    assert len(view.to_arrow()) == 0
    assert repr(view.to_arrow(as_of="orders@0:1").to_pylist()) == repr(wanted)
    for row in wanted:
        assert repr(view.get(row["number of row"], as_of="orders@0:1")) == repr(row)
    writer.close()


@pytest.mark.thorough
@given(SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), rows_of(schema))))
def test_rows_of_any_schema_come_back_as_they_were(case: tuple[pa.Schema, list[dict]]) -> None:
    table = numbered(*case)
    with TemporaryDirectory() as folder:
        view = View(Path(folder), "anything", key="number of row", history="1 day")
        check_rows_come_back(view, table, list(range(len(table))))
        view.close()
