"""A page costs what its rows cost, however large the view is: counted, not timed."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.batch import Batch
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.sql.sql_page import SqlPages
from mainstem.views.view import View
from tests.contracts.view_rows import RUN, SCHEMA

LIMIT = 20
FEW, MANY = 1_000, 30_000


def filled(view: View, count: int) -> View:
    """Its rows, each once changed since; one of them often."""
    writer = view.writer(RUN, SCHEMA)
    names = [f"store-{number:06}" for number in range(count)]
    for batch in range(2):
        amounts = pa.array([batch] * count, pa.int64())
        writer.apply(pa.table({"store": names, "amount": amounts}), Batch(batch, RUN, {"orders": {0: batch + 1}}))
    for batch in range(2, 60):
        hot = pa.table({"store": [names[count // 2 + 1]], "amount": pa.array([batch], pa.int64())})
        writer.apply(hot, Batch(batch, RUN, {"orders": {0: batch + 1}}))
    return view


def sqlite_steps(view: View, after: str | None, as_of: str | None) -> int:
    """The steps of SQLite's virtual machine for one page."""
    steps = []
    with view.snapshot() as snapshot:
        connection: Any = snapshot._connection
    connection.set_progress_handler(lambda: steps.append(1), 1)
    assert len(view.page(after=after, limit=LIMIT, as_of=as_of).rows) == LIMIT
    connection.set_progress_handler(None, 0)
    return len(steps)


def test_a_page_of_a_large_view_in_sqlite_takes_no_more_steps_than_one_of_a_small_view(tmp_path: Path) -> None:
    views = [filled(View(tmp_path, f"of_{count}", key="store", history="1 day"), count) for count in (FEW, MANY)]
    for as_of in (None, "orders@0:59"):
        few, many = (
            [sqlite_steps(view, after, as_of) for after in (None, f"store-{count // 2:06}", f"store-{count - 50:06}")]
            for view, count in zip(views, (FEW, MANY), strict=True)
        )
        # The position of an older state is found among the commits, of which both have the same number.
        assert max(many) <= 1.1 * max(few)
    # Reading all of it is what a page must not do.
    assert max(many) < FEW * 10


class Explained:
    """Counts the rows that PostgreSQL looked at for each statement, then runs it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.looked_at = 0

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        ((plan,),) = self._connection.query(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *values)
        self._add(plan[0]["Plan"])
        return self._connection.query(sql, *values)

    def _add(self, node: dict[str, Any]) -> None:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        self.looked_at += round((node["Actual Rows"] + removed) * node["Actual Loops"])
        for part in node.get("Plans", []):
            self._add(part)


def looked_at(view: View) -> list[int]:
    """How many rows each of some pages made the server look at."""
    found = []
    with view.snapshot() as snapshot:
        for after in (None, f"store-{MANY // 2:06}", f"store-{MANY - 50:06}"):
            for position in (None, snapshot.positions()[1] - 1, MANY):
                explained = Explained(snapshot._connection)
                assert len(SqlPages(explained, snapshot._tables).read(after, LIMIT, position)) == LIMIT
                found.append(explained.looked_at)
    return found


def test_a_page_of_a_large_view_in_postgresql_looks_only_at_its_own_rows(tmp_path: Path, views_address: str) -> None:
    view = filled(View(tmp_path, "large", key="store", history="1 day", backend=PostgresBackend(views_address)), MANY)
    # Before and after the server knows how many rows there are.
    assert max(looked_at(view)) < LIMIT * 40
    with view._store.begin_write() as connection:
        schema = view._store.tables(view._store.facts(), 1).name
        for table in ("rows", "changes"):
            connection.execute(f'ANALYZE "{schema}".{table}')
    assert max(looked_at(view)) < LIMIT * 40
