"""Making, comparing, using and dropping versions of a view, while others read and write it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, ViewNotFound
from mainstem.views.stored_columns import arrow_column, quoted
from mainstem.views.view_connection import connect, translated
from mainstem.views.view_file import ViewFile
from mainstem.views.view_folder import Facts, Segment, ViewFolder

__all__ = ["Difference", "ViewVersions"]

SHOWN_MAX = 10


@dataclass(frozen=True)
class Difference:
    """How one version differs from another: counts, and the first ten rows of each kind, by key.

    A row that changed is shown as a pair, as it was and as it is. A column that one version lacks is null there.
    """

    before: int
    after: int
    same: int
    changed: int
    added: int
    removed: int
    changed_rows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    added_rows: list[dict[str, Any]] = field(default_factory=list)
    removed_rows: list[dict[str, Any]] = field(default_factory=list)


class ViewVersions:
    """The versions of one view."""

    def __init__(self, folder: ViewFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Make an empty version beside the live one; its number."""
        with self._folder.locked():
            numbers = self._folder.facts().numbers()
            made = max(numbers) + 1 if number is None else number
            if made not in numbers:
                self._folder.add_version(schema, made, self._clock.now())
            return made

    def drop(self, number: int) -> None:
        """Remove a version that is not live."""
        with self._folder.locked():
            facts = self._folder.facts()
            self._check_there(facts, number)
            if number == facts.live:
                raise Conflict(
                    f'version {number} of view "{self._folder.view}" is the live one',
                    detail=f"It has the versions {', '.join(map(str, facts.numbers()))}.",
                    hint="Use another one first, or drop the whole view.",
                )
            self._folder.remove_version(number)

    def use(self, number: int) -> None:
        """Make a version the live one. Readers see the one or the other; followers get the difference."""
        with self._folder.locked():
            facts = self._folder.facts()
            self._check_there(facts, number)
            if number == facts.live:
                return
            # Held until view.json is replaced: nothing is committed to the old one between its last change and the flip.
            with self._opened(facts.live) as old, self._opened(number, beside=facts.live) as new:
                old[0].execute("BEGIN IMMEDIATE")
                position = self._last_position(old[0])
                compatible = self._write_difference(new, old[1], facts, position)
                reach("view_version_ready")
                segment = Segment(number, position)
                history = (*facts.history, segment) if compatible else (segment,)
                self._folder.write_facts(replace(facts, live=number, history=history))
                reach("view_version_used")
                old[0].execute("UPDATE progress SET recording = 0")
                old[0].execute("COMMIT")
        self._folder.wake()

    def _write_difference(
        self, new: tuple[sqlite3.Connection, ViewFile], old: ViewFile, facts: Facts, position: int
    ) -> bool:
        """Write the way from the old version to the new one as changes of the new one; False where there is none."""
        connection, file = new
        common = _Common(file, old)
        served = [
            facts.history[index + 1].after
            for index, segment in enumerate(facts.history[:-1])
            if segment.version == file.version
        ]
        connection.execute("BEGIN")
        try:
            # A write first: it takes the lock of the new one. The old one is only read through this connection.
            connection.execute("UPDATE progress SET recording = 1")
            connection.execute("DELETE FROM main.changes WHERE position > ?", (max(served, default=-1),))
            connection.execute("DELETE FROM main.commits WHERE end_position > ?", (max(served, default=-1),))
            connection.execute("INSERT OR IGNORE INTO main.changes (position, change) VALUES (?, 'none')", (position,))
            if common.compatible:
                for statement in common.changes():
                    connection.execute(statement)
            last = self._last_position(connection)
            if last > position:
                connection.execute("INSERT INTO main.commits VALUES (?, ?, 0, -1)", (last, self._clock.now()))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return common.compatible

    def difference(self, before: int, after: int) -> Difference:
        """How version `after` differs from version `before`, each as it is now."""
        facts = self._folder.facts()
        self._check_there(facts, before)
        self._check_there(facts, after)
        with self._opened(after, beside=before) as (connection, file), self._opened(before) as (_, old):
            common = _Common(file, old)
            connection.execute("BEGIN")
            counts = {kind: connection.execute(common.count(kind)).fetchone()[0] for kind in _KINDS}
            rows = {kind: connection.execute(common.first(kind)).fetchall() for kind in _KINDS[1:]}
            connection.execute("ROLLBACK")
        width = len(old.schema)
        changed = rows["changed"]
        return Difference(
            before,
            after,
            **counts,
            changed_rows=list(
                zip(
                    _dicts([row[:width] for row in changed], old.schema),
                    _dicts([row[width:] for row in changed], file.schema),
                    strict=True,
                )
            ),
            added_rows=_dicts(rows["added"], file.schema),
            removed_rows=_dicts(rows["removed"], old.schema),
        )

    @contextmanager
    def _opened(self, number: int, beside: int | None = None) -> Iterator[tuple[sqlite3.Connection, ViewFile]]:
        path = self._folder.version_path(number)
        with translated(path, self._folder.view):
            connection = connect(path)
            try:
                if beside is not None:
                    connection.execute("ATTACH ? AS other", (self._folder.version_path(beside),))
                yield connection, ViewFile.read(connection, path)
            finally:
                connection.close()

    def _last_position(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT max(position) FROM main.changes").fetchone()[0])

    def _check_there(self, facts: Facts, number: int) -> None:
        if number not in facts.numbers():
            raise ViewNotFound(
                f'view "{self._folder.view}" has no version {number}',
                detail=f"It has: {', '.join(map(str, facts.numbers()))}; the live one is {facts.live}.",
                hint="Name one of these.",
                view=self._folder.view,
            )


_KINDS = ("same", "changed", "added", "removed")


class _Common:
    """The rows of two versions side by side: `main` is the newer one, `other` the one before."""

    def __init__(self, file: ViewFile, old: ViewFile) -> None:
        self.file = file
        self.old = old
        types = {one.name: one.type for one in old.schema}
        self.shared = [name for name in file.values if name in types]
        # Where a column changed its type, a row of the old one cannot be shown as a row of the new one.
        self.compatible = all(types[one.name].equals(one.type) for one in file.schema if one.name in types)
        on = " AND ".join(f"n.{quoted(name)} = o.{quoted(name)}" for name in file.key)
        same = [f"n.{quoted(name)} IS o.{quoted(name)}" for name in self.shared]
        same += [f"n.{quoted(name)} IS NULL" for name in file.values if name not in types]
        same += [f"o.{quoted(name)} IS NULL" for name in old.values if name not in file.schema.names]
        equal = " AND ".join(same) or "1"
        self.sources = {
            "same": f"main.rows AS n JOIN other.rows AS o ON {on} WHERE {equal}",
            "changed": f"main.rows AS n JOIN other.rows AS o ON {on} WHERE NOT ({equal})",
            "added": f"main.rows AS n WHERE NOT EXISTS (SELECT 1 FROM other.rows AS o WHERE {on})",
            "removed": f"other.rows AS o WHERE NOT EXISTS (SELECT 1 FROM main.rows AS n WHERE {on})",
        }

    def count(self, kind: str) -> str:
        return f"SELECT count(*) FROM {self.sources[kind]}"

    def first(self, kind: str) -> str:
        """The first rows of a kind, by key."""
        new = [f"n.{quoted(name)}" for name in self.file.schema.names]
        old = [f"o.{quoted(name)}" for name in self.old.schema.names]
        columns = {"changed": old + new, "added": new, "removed": old}[kind]
        order = ", ".join(f"{'o' if kind == 'removed' else 'n'}.{quoted(name)}" for name in self.file.key)
        return f"SELECT {', '.join(columns)} FROM {self.sources[kind]} ORDER BY {order} LIMIT {SHOWN_MAX}"

    def changes(self) -> list[str]:
        """Statements that write what leads from the old rows to the new ones, in the columns of the new version."""
        statements = []
        for kind, change, row, sides in (
            ("removed", "delete", "o", ("old",)),
            ("changed", "update", "n", ("old", "new")),
            ("added", "insert", "n", ("new",)),
        ):
            names = [f"key.{name}" for name in self.file.key]
            values = [f"{row}.{quoted(name)}" for name in self.file.key]
            for side in sides:
                known = self.shared if side == "old" else self.file.values
                names += [f"{side}.{name}" for name in known]
                values += [f"{side[0]}.{quoted(name)}" for name in known]
            statements.append(
                f"INSERT INTO main.changes (change, {', '.join(map(quoted, names))}) "
                f"SELECT '{change}', {', '.join(values)} FROM {self.sources[kind]}"
            )
        return statements


def _dicts(rows: list[tuple[Any, ...]], schema: pa.Schema) -> list[dict[str, Any]]:
    if not rows:
        return []
    columns = [
        arrow_column(list(values), one.type).to_pylist()
        for values, one in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return [dict(zip(schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
