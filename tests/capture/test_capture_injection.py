"""Names and values that would be SQL if they were not quoted: in tables, columns, keys, values and messages.

500 of them in every run, 5,000 before a release. What is captured equals what is in the database; and nothing else
happened: the tables are the same, and one that every payload tries to drop is whole.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from mainstem import Invalid
from mainstem.capture import CapturedTable, outbox
from tests.capture.captured_file import CapturedFile, captured_file
from tests.capture.captured_shop import CapturedShop

EVERY_RUN, BEFORE_A_RELEASE = 500, 5_000
# Payloads of one table: half of them names of its columns, half of them values and keys.
BUNCH = 50
PARTS = [
    "'", '"', "''", '""', "`", "]", "[", ";", "--", "/*", "*/", "\\", "\\'", "%", "%s", "%(id)s", "?", ":id", "$1", "$$", "@x",
    "\n", "\t", "\x00", "\x1a", "\u2019", "\uff07", "\u02bc", "\u00e9", "\U0001f600", "\u202e", "{}", "{0}", "NULL", "null",
    "DROP TABLE canary", "'; DROP TABLE canary; --", '"; DROP TABLE canary; --', "' OR '1'='1", "1); DELETE FROM canary; --",
    "UNION SELECT * FROM canary", "NEW.", "OLD.", "END;", "BEGIN", "x", " ",
]  # fmt: skip
# Names of columns may have no control characters; those of values may have all.
UNPRINTABLE = {"\n", "\t", "\x00", "\x1a", "\u202e"}


def payloads(chance: random.Random, count: int, *, names: bool) -> list[str]:
    """Different ones, also without regard to case."""
    parts = [part for part in PARTS if not (names and part in UNPRINTABLE)]
    found: dict[str, str] = {}
    while len(found) < count:
        text = "".join(chance.choices(parts, k=chance.randint(1, 4)))
        if names:
            # PostgreSQL cuts longer names.
            text = f"{len(found)}{text}".encode()[:60].decode(errors="ignore")
        found.setdefault(text.casefold(), text)
    return list(found.values())


def amount(usual: int) -> list[Any]:
    return [usual, pytest.param(BEFORE_A_RELEASE, marks=pytest.mark.long)]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CapturedFile]:
    with captured_file(tmp_path) as made:
        made.sql("CREATE TABLE canary (id INTEGER PRIMARY KEY)")
        made.sql("INSERT INTO canary VALUES (1), (2), (3)")
        yield made


def check_messages(shop: CapturedFile | CapturedShop, texts: Sequence[str]) -> None:
    found = [
        (row["text"], row["list"], row["record"]["headers"][1:], row["record"]["headers"][0]["value"])
        for row in shop.records("messages")
    ]
    assert found == [(text, [text], [{"key": text, "value": text.encode()}], _id(text)) for text in texts]


def _id(text: str) -> bytes:
    return (text if text.isprintable() else "plain").encode()


def append_messages(connection: Any, texts: Sequence[str]) -> None:
    for text in texts:
        # Most are no name of a topic.
        with suppress(Invalid):
            outbox(connection).append(text, {})
        outbox(connection).append(
            "messages", {"text": text, "list": [text]}, headers={text: text}, id=text if text.isprintable() else "plain"
        )


@pytest.mark.parametrize("count", amount(EVERY_RUN))
def test_nothing_in_a_file_is_taken_for_sql(file: CapturedFile, count: int) -> None:
    chance = random.Random(10)
    file.stem.create_topic("messages", schema="text STRING, list ARRAY<STRING>", key="text")
    quote = lambda name: '"' + name.replace('"', '""') + '"'  # noqa: E731
    shapes = []
    for bunch in range(count // BUNCH):
        names = payloads(chance, BUNCH // 2 - 1, names=True)
        [name] = payloads(chance, 1, names=True)
        shapes.append((f"t{bunch}{name}", names, payloads(chance, BUNCH // 2, names=False)))
    tables = [CapturedTable(quote(name), into=f"t{bunch}") for bunch, (name, _, _) in enumerate(shapes)]
    for number, (name, names, values) in enumerate(shapes):
        columns = ", ".join(f"{quote(one)} TEXT {'UNIQUE' if place == 3 else ''}" for place, one in enumerate(names))
        file.sql(f"CREATE TABLE {quote(name)} ({columns}, PRIMARY KEY ({quote(names[0])}, {quote(names[1])}))")
        insert = f"INSERT INTO {quote(name)} VALUES ({', '.join('?' * len(names))})"
        for place, value in enumerate(values):
            row = [value if one != 3 else f"{value}{place}" for one in range(len(names))]
            # Half of them are read by the snapshot, half are streamed.
            if place == len(values) // 2 and number == 0:
                file.run(*tables[:1], outbox=True)
            file.sql(insert, *row)
    before = file.sql("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'mainstem_%'")
    file.run(*tables, outbox=True)
    for name, names, values in shapes:
        file.sql(f"UPDATE {quote(name)} SET {quote(names[2])} = ? WHERE {quote(names[0])} = ?", "'\0\"", values[0])
        file.sql(f"UPDATE {quote(name)} SET {quote(names[0])} = ? WHERE {quote(names[0])} = ?", "';--", values[1])
        file.sql(f"DELETE FROM {quote(name)} WHERE {quote(names[1])} = ?", values[2])
    texts = [value for _, _, values in shapes for value in values]
    with sqlite3.connect(file.path) as connection:
        append_messages(connection, texts)
    connection.close()
    file.run(*tables, outbox=True)

    for number, (name, names, _) in enumerate(shapes):
        expected = file.rows(f"SELECT * FROM {quote(name)}")
        assert file.replay(f"t{number}") == sorted(expected, key=lambda row: (row[names[0]], row[names[1]]))
    check_messages(file, texts)
    after = file.sql("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'mainstem_%'")
    assert after == before
    assert file.sql("SELECT id FROM canary") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("count", amount(EVERY_RUN))
def test_nothing_in_postgresql_is_taken_for_sql(shop: CapturedShop, count: int) -> None:
    chance = random.Random(11)
    shop.sql("CREATE TABLE canary (id int PRIMARY KEY); INSERT INTO canary VALUES (1), (2), (3)")
    shop.stem.create_topic("messages", schema="text STRING, list ARRAY<STRING>", key="text")
    shapes = []
    for bunch in range(count // BUNCH):
        names = payloads(chance, BUNCH // 2 - 1, names=True)
        [name] = payloads(chance, 1, names=True)
        # PostgreSQL's text has no NUL.
        values = [value.replace("\x00", "0") for value in payloads(chance, BUNCH // 2, names=False)]
        shapes.append((f"t{bunch}{name}"[:50], names, list(dict.fromkeys(values))))
    quote = lambda name: '"' + name.replace('"', '""') + '"'  # noqa: E731
    tables = [CapturedTable(quote(name), into=f"t{bunch}") for bunch, (name, _, _) in enumerate(shapes)]

    def run(statement: str, names: Sequence[str], values: Sequence[str]) -> None:
        # Beside parameters psycopg takes a % for one of them, in names too.
        quoted = [sql.Identifier(name.replace("%", "%%")) for name in names]
        shop.connection.execute(sql.SQL(statement).format(*quoted), values)  # type: ignore[arg-type]

    for number, (name, names, values) in enumerate(shapes):
        columns = ", ".join(["{} text"] * len(names))
        statement = f"CREATE TABLE {{}} ({columns}, PRIMARY KEY ({{}}, {{}}))"
        shop.connection.execute(sql.SQL(statement).format(*map(sql.Identifier, [name, *names, *names[:2]])))  # type: ignore[arg-type]
        for place, value in enumerate(values):
            if place == len(values) // 2 and number == 0:
                shop.run(*tables[:1], outbox=True)
            run(f"INSERT INTO {{}} VALUES ({', '.join(['%s'] * len(names))})", [name], [value] * len(names))
    shop.run(*tables, outbox=True)
    for name, names, values in shapes:
        run("UPDATE {} SET {} = %s WHERE {} = %s", [name, names[2], names[0]], ["'\"", values[0]])
        run("UPDATE {} SET {} = %s WHERE {} = %s", [name, names[0], names[0]], ["';--", values[1]])
        run("DELETE FROM {} WHERE {} = %s", [name, names[1]], [values[2]])
    texts = [value for _, _, values in shapes for value in values]
    with shop.connection.transaction():
        append_messages(shop.connection, texts)
    shop.run(*tables, outbox=True)

    for number, (name, names, _) in enumerate(shapes):
        assert shop.replay(f"t{number}") == shop.rows(name, names[:2])
    check_messages(shop, texts)
    assert shop.sql("SELECT id FROM canary ORDER BY id") == [(1,), (2,), (3,)]
    [(there,)] = shop.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    assert there == len(shapes) + 2


def test_a_value_is_looked_up_in_a_column_whose_name_looks_like_a_parameter(shop: CapturedShop) -> None:
    """PostgreSQL does not send a large value again that did not change: it is read from the table."""
    shop.sql('CREATE TABLE "t%s" ("id%s" text PRIMARY KEY, "large%(x)s" text, "n%" int)')
    shop.sql('ALTER TABLE "t%s" ALTER "large%(x)s" SET STORAGE EXTERNAL')
    shop.sql("""INSERT INTO "t%s" VALUES ('''; DROP TABLE x; --', repeat('x', 9000), 1)""")
    table = CapturedTable('"t%s"', into="t")
    shop.run(table, snapshot="none")
    shop.sql('UPDATE "t%s" SET "n%" = 2')
    shop.run(table, snapshot="none")

    [row] = shop.records("t")
    assert (row["id%s"], row["large%(x)s"], row["n%"]) == ("'; DROP TABLE x; --", "x" * 9000, 2)
