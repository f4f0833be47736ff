"""C7: tables that are altered while they are captured. Afterwards the topic has the table's rows, or the capture stopped and
says what to do; no row is wrong."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from mainstem import Invalid
from mainstem.capture import CapturedTable, capture_run, snapshots
from mainstem.capture.capture_status import StatusFile
from tests.capture.captured_shop import CapturedShop

TABLE = """
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v int, w varchar(20), m numeric(10, 2), big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, i, i, 'w' || i, i + 0.5, repeat('b', 3000) FROM generate_series(1, 9) i
"""
BEFORE = (
    "UPDATE t SET n = n + 1 WHERE id < 4",
    "INSERT INTO t (id, n, big) VALUES (20, 1, repeat('c', 4000))",
    "DELETE FROM t WHERE id = 9",
)
AFTER = (
    "UPDATE t SET n = n + 10 WHERE id IN (2, 5, 20)",
    "INSERT INTO t (id, n) VALUES (30, 1)",
    "DELETE FROM t WHERE id = 8",
    "UPDATE t SET id = 40 WHERE id = 7",
)


@dataclass(frozen=True)
class Alteration:
    """Statements, and with what the capture stops, if it must; "maybe": if it does, between two of them, it goes on at the next start.
    `or_stops`: with this, if it notices earlier or later. `after`: changes of rows that the table still allows."""

    statements: tuple[str, ...]
    stops: str = ""
    or_stops: str = ""
    after: tuple[str, ...] = AFTER


FITS = 'the columns of table "t" no longer fit topic "shop.t"'
SECONDS = 10
ALTERATIONS = {
    "column added": Alteration(("ALTER TABLE t ADD x int",)),
    "column added with a constant": Alteration(("ALTER TABLE t ADD x int DEFAULT 7",)),
    "column added with a constant, not null": Alteration(("ALTER TABLE t ADD x text NOT NULL DEFAULT 'a'",)),
    "column added with a volatile default": Alteration(("ALTER TABLE t ADD x uuid DEFAULT gen_random_uuid()",)),
    "column added, default dropped": Alteration(
        ("ALTER TABLE t ADD x int DEFAULT 7", "ALTER TABLE t ALTER x DROP DEFAULT")
    ),
    "volatile default dropped": Alteration(
        ("ALTER TABLE t ADD x uuid DEFAULT gen_random_uuid()", "ALTER TABLE t ALTER x DROP DEFAULT")
    ),
    "column added and set": Alteration(("ALTER TABLE t ADD x int", "UPDATE t SET x = n WHERE id < 6")),
    "column dropped": Alteration(("ALTER TABLE t DROP v",)),
    "two columns dropped, one after the other": Alteration(
        ("ALTER TABLE t DROP v", "UPDATE t SET n = n + 100 WHERE id = 1", "ALTER TABLE t DROP w")
    ),
    "large column dropped": Alteration(("ALTER TABLE t DROP big",)),
    "column dropped and added again": Alteration(("ALTER TABLE t DROP v", "ALTER TABLE t ADD v int")),
    "column dropped and added again, wider": Alteration(("ALTER TABLE t DROP v", "ALTER TABLE t ADD v bigint DEFAULT 5")),
    "column dropped and added with another type": Alteration(
        ("ALTER TABLE t DROP v", "ALTER TABLE t ADD v boolean"), FITS
    ),
    "column renamed": Alteration(
        ("ALTER TABLE t RENAME v TO x",), 'column "v" of table "t" was renamed to "x"'
    ),
    "column renamed twice": Alteration(
        ("ALTER TABLE t RENAME v TO x", "UPDATE t SET x = 99 WHERE id = 1", "ALTER TABLE t RENAME x TO y"),
        'column "v" of table "t" was renamed to "y"',
        'column "v" of table "t" was renamed to "x"',
    ),
    "column renamed and back": Alteration(
        ("ALTER TABLE t RENAME v TO x", "UPDATE t SET x = 99 WHERE id = 1", "ALTER TABLE t RENAME x TO v"), "maybe"
    ),
    "column exchanged inside a transaction": Alteration(
        (("BEGIN; UPDATE t SET w = 'x' WHERE id = 3; ALTER TABLE t DROP w, ADD w int; UPDATE t SET w = 4 WHERE id < 3; COMMIT"),),
        FITS,
    ),
    "column exchanged and back": Alteration(
        ("ALTER TABLE t DROP v, ADD v text", "UPDATE t SET v = 'x' WHERE id < 3", "ALTER TABLE t DROP v, ADD v int"),
        'changes of table "t" do not fit topic "shop.t"', FITS,
    ),
    "int to bigint": Alteration(("ALTER TABLE t ALTER v TYPE bigint",)),
    "int to bigint and a large value": Alteration(
        ("ALTER TABLE t ALTER v TYPE bigint", "UPDATE t SET v = 1 << 31 WHERE id = 3", "UPDATE t SET v = 5000000000 WHERE id = 4")
    ),
    "varchar to text": Alteration(("ALTER TABLE t ALTER w TYPE text",)),
    "int to text": Alteration(("ALTER TABLE t ALTER v TYPE text",), FITS),
    "numeric to a wider one": Alteration(
        ("ALTER TABLE t ALTER m TYPE numeric(12, 2)", "UPDATE t SET m = 1234567890.25 WHERE id = 3")
    ),
    "numeric to a larger scale": Alteration(("ALTER TABLE t ALTER m TYPE numeric(12, 4)",), FITS),
    "values changed with the type": Alteration(("ALTER TABLE t ALTER v TYPE bigint USING v * 10",)),
    "values changed under the same type": Alteration(("ALTER TABLE t ALTER v TYPE int USING v * 10",)),
    "text changed under the same type": Alteration(("ALTER TABLE t ALTER big TYPE text USING upper(big)",)),
    "another key": Alteration(
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)",),
        'the key of table "t" changed',
    ),
    "key column renamed": Alteration(
        ("ALTER TABLE t RENAME id TO number",), 'column "id" of table "t" was renamed to "number"',
        after=("INSERT INTO t (number, n) VALUES (30, 1)",),
    ),
    "key column renamed and back": Alteration(
        ("ALTER TABLE t RENAME id TO number", "UPDATE t SET n = 99 WHERE number = 1", "ALTER TABLE t RENAME number TO id"),
        'changes of table "t" lack its key', 'column "id" of table "t" was renamed to "number"',
    ),
    "no key any more": Alteration(
        ("ALTER TABLE t DROP CONSTRAINT t_pkey",), 'table "t" has no key', after=("INSERT INTO t (id, n) VALUES (30, 1)",)
    ),
    "key of another type": Alteration(("ALTER TABLE t ALTER id TYPE bigint",)),
    "replica identity full": Alteration(("ALTER TABLE t REPLICA IDENTITY FULL",)),
    "replica identity full and default": Alteration(
        ("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 5 WHERE id = 1", "ALTER TABLE t REPLICA IDENTITY DEFAULT")
    ),
    "replica identity of another index": Alteration(
        ("CREATE UNIQUE INDEX by_n ON t (n, id)", "ALTER TABLE t REPLICA IDENTITY USING INDEX by_n"),
        'the key of table "t" changed',
    ),
    "replica identity nothing": Alteration(
        ("ALTER TABLE t REPLICA IDENTITY NOTHING",), 'table "t" has no key', after=("INSERT INTO t (id, n) VALUES (30, 1)",)
    ),
    "table renamed": Alteration(
        ("ALTER TABLE t RENAME TO u",), 'table "t" was renamed to "u"', 'table "t" does not exist', ("UPDATE u SET n = 77 WHERE id = 1",)
    ),
    "table renamed and back": Alteration(
        ("ALTER TABLE t RENAME TO u", "UPDATE u SET n = 77 WHERE id = 1", "ALTER TABLE u RENAME TO t"), "maybe"
    ),
    "table dropped": Alteration(("DROP TABLE t",), 'table "t" does not exist', after=()),
    "table dropped and made again": Alteration(
        ("DROP TABLE t", TABLE, "UPDATE t SET n = 88 WHERE id = 2"), "maybe"
    ),
    "table exchanged for another": Alteration(
        ("CREATE TABLE s (LIKE t INCLUDING ALL)", "INSERT INTO s SELECT id + 1, n + 1 FROM t",
         "BEGIN; ALTER TABLE t RENAME TO r; ALTER TABLE s RENAME TO t; COMMIT", "DELETE FROM r"),
    ),
    "altered inside a transaction": Alteration(
        (("BEGIN; UPDATE t SET v = 50 WHERE id = 1; ALTER TABLE t ADD x int DEFAULT 3; UPDATE t SET x = 4 WHERE id = 2; "
         "ALTER TABLE t DROP w; INSERT INTO t (id, n, x) VALUES (50, 1, 6); COMMIT"),)
    ),
    "retyped inside a transaction": Alteration(
        (("BEGIN; UPDATE t SET v = 50 WHERE id = 1; ALTER TABLE t ALTER v TYPE bigint; "
         "UPDATE t SET v = 6000000000 WHERE id = 2; COMMIT"),)
    ),
    "altered and rolled back": Alteration(
        ("BEGIN; UPDATE t SET v = 50 WHERE id = 1; ALTER TABLE t ADD x int DEFAULT 3; ROLLBACK",)
    ),
    "truncated and vacuumed": Alteration(
        ("TRUNCATE t", "INSERT INTO t (id, n) VALUES (2, 2), (5, 5)", "VACUUM FULL t")
    ),
}  # fmt: skip


def wrong_rows(shop: CapturedShop, topic: str = "shop.t", table: str = "t") -> list[object]:
    """Keys whose row in the topic has not the table's values."""
    there = shop.rows(table)
    kept = shop.replay(topic)

    def shown(row: dict[str, Any] | None, names: set[str]) -> object:
        values = {} if row is None else {name: row.get(name, "lacks it") for name in names}
        return row and {name: _short(one) for name, one in values.items()}

    names = set(next(iter(there.values()), {}))
    return [
        (key, shown(kept.get(key), names), shown(there.get(key), names))
        for key in sorted(kept.keys() | there.keys())
        if shown(kept.get(key), names) != shown(there.get(key), names)
    ]


def _short(value: Any) -> object:
    if isinstance(value, uuid.UUID):
        return str(value)
    return (value[:3], len(value)) if isinstance(value, str) and len(value) > 100 else value


def alter(shop: CapturedShop, *statements: str) -> None:
    for statement in statements:
        shop.sql(statement)


def is_streaming(shop: CapturedShop) -> bool:
    status = StatusFile(shop.home, "shop").read()
    return status is not None and status.state == "running"


def stopped(shop: CapturedShop, one: Alteration, *, quiet: bool) -> None:
    """Everything happens while nothing captures."""
    alter(shop, *BEFORE, *one.statements, *(() if quiet else one.after))
    shop.run("t")


def streaming(shop: CapturedShop, one: Alteration, *, quiet: bool) -> None:
    """Everything happens while the capture streams."""
    with shop.background("t"):
        shop.wait(lambda: is_streaming(shop))
        alter(shop, *BEFORE, *one.statements)
        if not quiet:
            alter(shop, *one.after)
        # What must stop does so by itself.
        with suppress(AssertionError):
            shop.wait(lambda: one.stops in ("", "maybe") and not wrong_rows(shop), SECONDS)


MODES = {
    "stopped": (stopped, False),
    "stopped, then quiet": (stopped, True),
    "streaming": (streaming, False),
    "streaming, then quiet": (streaming, True),
}


@pytest.mark.parametrize(
    "mode", [pytest.param(one, marks=pytest.mark.long) if one.startswith("streaming") else one for one in MODES]
)
@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_table_is_captured_on_or_stops(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, name: str, mode: str, fault_report: Callable[..., None]
) -> None:
    monkeypatch.setattr(capture_run, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 4)
    one = ALTERATIONS[name]
    shop.sql(TABLE)
    shop.run("t")
    run, quiet = MODES[mode]
    stop = None
    try:
        run(shop, one, quiet=quiet)
    except Invalid as error:
        stop = error
    violations: list[object] = []
    if stop is None:
        violations = wrong_rows(shop)
        # And nothing else comes when it is started again.
        shop.run("t")
        violations += wrong_rows(shop)
        if one.stops not in ("", "maybe"):
            violations.append(f"did not stop: {one.stops}")
    else:
        between = one.stops == "maybe" and run is streaming
        if not between and stop.summary not in (one.stops, one.or_stops):
            violations.append(f"stopped with {stop.summary}, not with {one.stops}")
        if not (stop.detail and stop.hint):
            violations.append(f"{stop.summary}: no detail or no hint")
        if between:
            shop.run("t")
            violations += wrong_rows(shop)
    fault_report("C7", points=1, compared=len(shop.records("shop.t")), violations=violations)


PARTITIONED = """
CREATE TABLE t (id int, n int NOT NULL, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);
CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200);
INSERT INTO t SELECT i, i FROM generate_series(95, 105) i
"""
PARTITIONS = {
    "made": ("CREATE TABLE more PARTITION OF t FOR VALUES FROM (200) TO (300)", "INSERT INTO t VALUES (201, 1)"),
    "attached": (
        "CREATE TABLE more (LIKE t INCLUDING ALL)", "INSERT INTO more VALUES (201, 1), (202, 2)",
        "ALTER TABLE t ATTACH PARTITION more FOR VALUES FROM (200) TO (300)", "INSERT INTO t VALUES (203, 1)",
    ),
    "detached": ("UPDATE t SET n = 5 WHERE id > 103", "ALTER TABLE t DETACH PARTITION high", "UPDATE high SET n = 3"),
    "dropped": ("UPDATE t SET n = 5 WHERE id > 103", "DROP TABLE high"),
    "truncated": ("UPDATE t SET n = 5 WHERE id > 103", "TRUNCATE high", "INSERT INTO t VALUES (105, 1)"),
    "retyped": ("UPDATE t SET n = 5 WHERE id > 103", "ALTER TABLE t ALTER n TYPE bigint USING n * 10"),
    "widened": ("ALTER TABLE t ADD x int DEFAULT 4", "UPDATE t SET n = 5 WHERE id > 103"),
    "moved between": ("UPDATE t SET id = id + 20 WHERE id < 97",),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["stopped", "streaming"])
@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_that_come_and_go(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, name: str, mode: str, fault_report: Callable[..., None]
) -> None:
    monkeypatch.setattr(capture_run, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 4)
    shop.sql(PARTITIONED)
    shop.run("t")
    if mode == "stopped":
        alter(shop, *PARTITIONS[name])
        shop.run("t")
    else:
        with shop.background("t"), suppress(AssertionError):
            shop.wait(lambda: is_streaming(shop))
            alter(shop, *PARTITIONS[name])
            shop.wait(lambda: not wrong_rows(shop), SECONDS)
    violations = wrong_rows(shop)
    shop.run("t")
    violations += wrong_rows(shop)
    if name == "made" and any(row["origin"]["snapshot"] for row in shop.records("shop.t")[11:]):
        violations.append("a new partition alone is no reason to read the table again")
    fault_report("C7", points=1, compared=len(shop.records("shop.t")), violations=violations)


def test_tables_that_are_added_removed_and_added_again(shop: CapturedShop, fault_report: Callable[..., None]) -> None:
    shop.sql(TABLE)
    shop.sql("CREATE TABLE o (id int PRIMARY KEY, n int); INSERT INTO o SELECT i, i FROM generate_series(1, 5) i")
    violations = []
    shop.run("t")
    for tables in (["t", "o"], ["t"], ["o"], ["o", "t"]):
        shop.sql("UPDATE o SET n = n + 1 WHERE id > 2")
        shop.sql("DELETE FROM o WHERE id = (SELECT min(id) FROM o)")
        shop.sql("UPDATE t SET n = n + 1 WHERE id < 4")
        shop.sql("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
        shop.run(*tables)
        for table in tables:
            violations += wrong_rows(shop, f"shop.{table}", table)
    fault_report("C7", points=4, compared=len(shop.records("shop.o")), violations=violations)


def test_a_transaction_that_is_open_while_its_table_is_added_is_not_lost(
    shop: CapturedShop, fault_report: Callable[..., None]
) -> None:
    """What it changed before the table was published is not in the stream."""
    shop.sql(TABLE)
    shop.sql("CREATE TABLE o (id int PRIMARY KEY, n int)")
    shop.run("t")
    with psycopg.connect(shop.url) as other:
        other.execute("INSERT INTO o VALUES (1, 1)")
        with shop.background("t", "o"):
            shop.wait(lambda: is_streaming(shop))
            other.commit()
            with suppress(AssertionError):
                shop.wait(lambda: "shop.o" in shop.stem.topics() and not wrong_rows(shop, "shop.o", "o"), SECONDS)
    fault_report("C7", points=1, compared=1, violations=wrong_rows(shop, "shop.o", "o"))


def test_a_dropped_column_is_null_from_then_on(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    shop.sql("ALTER TABLE t DROP v")
    shop.sql("UPDATE t SET n = 5 WHERE id = 1")
    shop.run("t")
    rows = shop.replay("shop.t")
    assert (rows[1,]["v"], rows[2,]["v"]) == (None, 2)


def test_a_renamed_table_is_captured_on_when_it_has_its_name_again(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    shop.sql("ALTER TABLE t RENAME TO u")
    shop.sql("UPDATE u SET n = 70 WHERE id = 1")
    with pytest.raises(Invalid):
        shop.run("t")
    shop.sql("ALTER TABLE u RENAME TO t")
    shop.run("t")
    assert wrong_rows(shop) == []
    # Under its new name, in the same topic.
    shop.sql("ALTER TABLE t RENAME TO u")
    shop.sql("UPDATE u SET n = 71 WHERE id = 1")
    shop.run(CapturedTable("u", into="shop.t"))
    assert wrong_rows(shop, table="u") == []


def test_a_renamed_column_is_captured_on_in_a_new_topic(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    alter(shop, *BEFORE, "ALTER TABLE t RENAME v TO x", *AFTER)
    with pytest.raises(Invalid, match="into="):
        shop.run("t")
    shop.run(CapturedTable("t", into="again"))
    assert wrong_rows(shop, "again") == []


def test_changes_from_before_a_column_had_another_type_do_not_fit_a_new_topic(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    alter(
        shop, "UPDATE t SET w = 'x' WHERE id = 1", "ALTER TABLE t DROP w, ADD w int", "UPDATE t SET w = 4 WHERE id = 2"
    )
    with pytest.raises(Invalid) as caught:
        shop.run(CapturedTable("t", into="again"))
    assert caught.value.summary == 'changes of table "t" do not fit topic "again"'
    assert 'Column "w" is STRING in them, and INT in the topic' in caught.value.detail
    assert "mainstem capture drop PROGRAM.py shop" in caught.value.hint


def test_a_column_that_was_dropped_for_a_while_has_no_former_values(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    shop.sql("ALTER TABLE t DROP v")
    shop.run("t")
    shop.sql("ALTER TABLE t ADD v int")
    shop.run("t")
    assert wrong_rows(shop) == []
