"""The outbox: a message and the rows of an application in one transaction, relayed once and in order; what is rejected."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainstem import Invalid, InvalidName, InvalidRows
from mainstem.capture import outbox, outbox_relay
from mainstem.capture.outbox_table import sqlite_outbox_sql
from tests.capture.captured_file import ACCOUNTS, CapturedFile, captured_file
from tests.capture.captured_shop import CapturedShop
from tests.needs import cannot_run

SEATS = "seat INT, holder STRING"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CapturedFile]:
    with captured_file(tmp_path) as made:
        made.sql(ACCOUNTS)
        made.run("accounts", outbox=True)
        yield made


def append(file: CapturedFile, *messages: tuple[str, dict[str, Any]], **settings: Any) -> None:
    """Messages of one transaction, captured."""
    with application(file) as connection:
        for topic, row in messages:
            outbox(connection).append(topic, row, **settings)
    file.run("accounts", outbox=True)


def application(file: CapturedFile) -> sqlite3.Connection:
    return sqlite3.connect(file.path)


def rows(file: CapturedFile, topic: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "record"} for row in file.records(topic)]


def rejected(file: CapturedFile | CapturedShop) -> list[tuple[str, str]]:
    return [(row["topic"], row["reason"]) for row in file.records("mainstem.capture.shop.rejected")]


def headers(record: dict[str, Any]) -> dict[str, bytes]:
    return {one["key"]: one["value"] for one in record["record"]["headers"]}


# What reaches a topic


def test_a_row_and_its_event_are_one_transaction(file: CapturedFile) -> None:
    file.stem.create_topic("seats_reserved", schema=SEATS)
    with application(file) as connection:
        connection.execute("INSERT INTO accounts VALUES (1, 'x', 1, NULL)")
        outbox(connection).append("seats_reserved", {"seat": 12, "holder": "x"})
        connection.rollback()
        connection.execute("INSERT INTO accounts VALUES (2, 'y', 1, NULL)")
        outbox(connection).append("seats_reserved", {"seat": 13, "holder": "y"})
    file.run("accounts", outbox=True)
    file.run("accounts", outbox=True)

    assert rows(file, "seats_reserved") == [{"seat": 13, "holder": "y"}]
    assert [row["id"] for row in file.replay()] == [2]
    assert file.sql("SELECT count(*) FROM mainstem_outbox") == [(0,)]
    last = [row for row in file.records("mainstem.capture.shop.transactions") if row["transaction"] is not None][-1]
    assert dict(last["changes"]) == {"accounts": 1, "mainstem_outbox": 1}


def test_every_type_survives(file: CapturedFile) -> None:
    schema = (
        "flag BOOLEAN, small SMALLINT, large BIGINT, ratio DOUBLE, price DECIMAL(20, 4), name STRING, raw BINARY, day DATE, "
        "at TIMESTAMP, wall TIMESTAMP_NTZ, sizes ARRAY<INT>, place STRUCT<x: DOUBLE, tags: MAP<STRING, STRING>>, "
        "counts MAP<INT, DECIMAL(5, 2)>"
    )
    file.stem.create_topic("all_types", schema=schema)
    row = {
        "flag": True, "small": -3, "large": 2**62, "ratio": 0.1, "price": Decimal("1234567890123456.7891"),
        "name": "K\u00f6ln \0 \u2028 \U0001f600 '; DROP TABLE x; --", "raw": bytes(range(256)), "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC), "wall": datetime(2026, 1, 31, 9),  # noqa: DTZ001
        "sizes": [1, None, 3], "place": {"x": 1.5, "tags": [("a", "b")]}, "counts": [(1, Decimal("1.50"))],
    }  # fmt: skip
    given = {**row, "place": {"x": 1.5, "tags": {"a": "b"}}, "counts": {1: Decimal("1.50")}}
    append(file, ("all_types", given), ("all_types", dict.fromkeys(row)), ("all_types", {"ratio": float("inf")}))

    found = rows(file, "all_types")
    assert found[0] == row
    assert found[1:] == [dict.fromkeys(row), {**dict.fromkeys(row), "ratio": float("inf")}]


def test_messages_have_their_id_and_headers(file: CapturedFile) -> None:
    file.stem.create_topic("events", schema=SEATS)
    append(file, ("events", {"seat": 1}), id="m-1", headers={"trace": "7\u00e9", "token": b"\x00\xff"})
    append(file, ("events", {"seat": 2}), headers=[("a", "1"), ("a", "2")])

    first, second = file.records("events")
    assert headers(first) == {"id": b"m-1", "trace": "7\u00e9".encode(), "token": b"\x00\xff"}
    assert [one["value"] for one in second["record"]["headers"][1:]] == [b"1", b"2"]
    assert len(headers(second)["id"]) == 36


def test_a_key_fills_the_columns_of_the_topic_s_key(file: CapturedFile) -> None:
    file.stem.create_topic("keyed", schema=SEATS, key="seat")
    file.stem.create_topic("two", schema=SEATS, key=["seat", "holder"])
    file.stem.create_topic("keyless", schema=SEATS)
    append(file, ("keyed", {"holder": "x"}), ("keyed", {"seat": 5, "holder": "x"}), ("keyless", {"seat": 9}), key=5)
    append(file, ("keyed", {"seat": 6}), ("two", {}), key=5)
    append(file, ("two", {"holder": "y"}), key={"seat": 1, "holder": "y"})

    assert rows(file, "keyed") == [{"seat": 5, "holder": "x"}] * 2
    assert rows(file, "two") == [{"seat": 1, "holder": "y"}]
    assert headers(file.records("keyless")[0])["key"] == b"5"
    assert sorted(rejected(file)) == [
        ("keyed", 'column "seat" of the row is 6, but 5 in the key of the message'),
        ("two", "the key of the message is 5, that of the topic has the columns seat, holder"),
    ]


def test_the_order_of_a_topic_is_that_of_commits(file: CapturedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_relay, "ROWS_MAX", 7)
    for name in ("even", "odd"):
        file.stem.create_topic(name, schema=SEATS)
    for first in range(0, 60, 20):
        append(file, *((("odd" if n % 2 else "even"), {"seat": n}) for n in range(first, first + 20)))

    assert [row["seat"] for row in rows(file, "even")] == list(range(0, 60, 2))
    assert [row["seat"] for row in rows(file, "odd")] == list(range(1, 60, 2))


# What is rejected


def test_what_no_topic_accepts_is_rejected_alone(file: CapturedFile) -> None:
    file.stem.create_topic("seats", schema="seat INT NOT NULL, holder STRING")
    file.stem.create_topic("timed", schema="seat INT, at TIMESTAMP", event_time="at")
    good = [("seats", {"seat": n}) for n in range(20)]
    append(
        file, *good[:10], ("nothing", {"seat": 1}), ("seats", {"seat": "x"}), ("seats", {"chair": 1}), ("seats", {}),
        ("seats", {"seat": 2**40}), ("timed", {"seat": 1}), ("timed", {"seat": 1, "at": "2026-01-01T00:00:00Z"}),
        ("shop.accounts", {"id": 1}), *good[10:],
    )  # fmt: skip

    assert [row["seat"] for row in rows(file, "seats")] == list(range(20))
    assert len(rows(file, "timed")) == 1
    reasons = dict.fromkeys(rejected(file))
    assert [(topic, reason) for topic, reason in reasons if topic != "seats"] == [
        ("nothing", 'topic "nothing" does not exist'),
        ("timed", 'column "at" is missing, the event time of topic "timed"'),
        ("shop.accounts", 'topic "shop.accounts" has the rows of a captured table'),
    ]
    seats = [reason for topic, reason in reasons if topic == "seats"]
    assert seats[0] == 'column "seat" is INT, got the text "x"'
    assert len(seats) == 4
    assert "chair" in seats[1]
    [first] = [row for row in file.records("mainstem.capture.shop.rejected") if row["topic"] == "nothing"]
    assert (json.loads(first["payload"]), first["position"]) == ({"seat": 1}, "28")


@pytest.mark.parametrize(
    ("topic", "key", "payload", "given", "reason"),
    [
        ("seats", None, "{", None, "the payload is not JSON"),
        ("seats", None, "[1]", None, "the payload is not a JSON object"),
        ("seats", None, '{"seat": NaN}', None, "NaN is not JSON"),
        ("seats", None, "[" * 100_000, None, "the payload is not JSON"),
        ("seats", None, '{"record": {}}', None, "reserved"),
        ("seats", "{", "{}", None, "the key is not JSON"),
        ("seats", None, "{}", "3", "neither a list nor an object"),
        ("seats", None, "{}", '[["a"]]', "not a pair"),
        ("seats", None, "{}", '[["a", {"base64": "?"}]]', "not base64"),
        ("mainstem.capture.shop.state", None, "{}", None, 'begins with "mainstem."'),
        ("../etc", None, "{}", None, 'holds "/"'),
        ("", None, "{}", None, "is empty"),
        ("seats", None, '{"holder": "\\ud800"}', None, ""),
    ],
)  # fmt: skip
def test_messages_that_others_wrote_into_the_table(
    file: CapturedFile, topic: str, key: str | None, payload: str, given: str | None, reason: str
) -> None:
    file.stem.create_topic("seats", schema=SEATS, key="seat" if key else None)
    for number, values in enumerate([("seats", None, '{"seat": 1}', None), (topic, key, payload, given)]):
        file.sql("INSERT INTO mainstem_outbox VALUES (?, ?, ?, ?, ?)", f"m-{number}", *values[:1], *values[1:])
    file.sql("DELETE FROM mainstem_outbox")
    file.run("accounts", outbox=True)

    [(found, why)] = rejected(file)
    assert found == topic
    assert reason in why
    assert len(rows(file, "seats")) == 1


def test_a_message_that_is_too_large_is_rejected_and_cut(file: CapturedFile) -> None:
    file.stem.create_topic("small", schema="text STRING", record_bytes_max=2000)
    append(file, ("small", {"text": "x" * 3000}), ("small", {"text": "y"}), ("nothing", {"text": "z" * 5_000_000}))

    assert rows(file, "small") == [{"text": "y"}]
    reasons = dict(rejected(file))
    assert "more than the maximum size of a record" in reasons["small"]
    assert "payload was cut from 5000012 to 2396745 bytes" in reasons["nothing"]


def test_a_key_that_is_too_large_to_be_shown_is_cut_in_the_reason(file: CapturedFile) -> None:
    file.stem.create_topic("pairs", schema="a STRING, b STRING", key=["a", "b"])
    with application(file) as connection:
        outbox(connection).append("pairs", {"a": "x", "b": "y"}, key="z" * 3_000_000)
    file.run("accounts", outbox=True)

    [(_, reason)] = rejected(file)
    assert "reason was cut from" in reason
    assert "key was cut from 3000002 to" in reason


@pytest.mark.parametrize("value", ["CAST('[]' AS BLOB)", "x'ff00'", "CAST(x'ff61' AS TEXT)"])
def test_a_value_that_is_no_text_is_rejected(file: CapturedFile, value: str) -> None:
    file.stem.create_topic("seats", schema=SEATS)
    message = {"id": "'m-1'", "topic": "'seats'", "key": "NULL", "payload": """'{"seat": 1}'""", "headers": "NULL"}
    for column in message:
        for one in (message, {**message, "id": "'m-2'", column: value}):
            file.sql(f"INSERT INTO mainstem_outbox VALUES ({', '.join(one.values())})")
        file.sql("DELETE FROM mainstem_outbox")
    file.run("accounts", outbox=True)

    assert [row["seat"] for row in rows(file, "seats")] == [1] * len(message)
    assert [reason for _, reason in rejected(file)] == [
        f"the {one} is not text, but a BLOB or damaged" for one in message
    ]


# Connections


def test_wrong_arguments_insert_nothing(file: CapturedFile) -> None:
    with application(file) as connection:
        box = outbox(connection)
        with pytest.raises(InvalidName):
            box.append("../x", {})
        with pytest.raises(InvalidName):
            box.append("mainstem.metrics", {})
        with pytest.raises(InvalidRows, match="row is list, not a dict"):
            box.append("x", [1])  # type: ignore[arg-type]
        with pytest.raises(InvalidRows, match="not text"):
            box.append("x", {1: 2})  # type: ignore[dict-item]
        with pytest.raises(Invalid, match="is not an id"):
            box.append("x", {}, id="")
        with pytest.raises(Invalid, match="is not a header"):
            box.append("x", {}, headers={"a": 1})  # type: ignore[dict-item]
        assert not connection.in_transaction


@pytest.mark.parametrize("connection", [None, "postgresql://db", sqlite3.connect(":memory:").cursor()])
def test_what_is_no_connection_is_refused(connection: Any) -> None:
    with pytest.raises(Invalid, match="has no outbox"):
        outbox(connection)


def test_autocommit_is_refused(file: CapturedFile) -> None:
    connection = sqlite3.connect(file.path, isolation_level=None)
    with pytest.raises(Invalid, match="autocommit"):
        outbox(connection).append("seats", {"seat": 1})
    connection.execute("BEGIN")
    outbox(connection).append("seats", {"seat": 1})
    connection.execute("COMMIT")
    connection.close()


def test_without_the_table_the_application_is_told() -> None:
    with pytest.raises(Invalid) as caught:
        outbox(sqlite3.connect(":memory:")).append("seats", {})

    assert caught.value.summary == 'the table of the outbox, "mainstem_outbox", does not exist'
    assert "mainstem capture setup" in str(caught.value)


def test_an_outbox_that_nobody_reads_any_more_is_not_left_behind(file: CapturedFile) -> None:
    file.run("accounts")

    assert file.sql("SELECT 1 FROM sqlite_master WHERE name = 'mainstem_outbox'") == []


# SQLAlchemy


@pytest.fixture
def sqlalchemy() -> Any:
    try:
        import sqlalchemy
        import sqlalchemy.orm
    except ImportError as error:
        cannot_run("SQLAlchemy", str(error))
    return sqlalchemy


def check_sqlalchemy(engine: Any, orm: Any, run: Callable[[], None]) -> None:
    with engine.begin() as connection:
        outbox(connection).append("seats", {"seat": 1, "holder": "'; --"})
    with orm.Session(engine) as session:
        outbox(session).append("seats", {"seat": 2})
        session.rollback()
        outbox(session).append("seats", {"seat": 3})
        session.commit()
    run()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(Invalid, match="autocommit"):
            outbox(connection).append("seats", {"seat": 4})


def test_sqlalchemy_with_sqlite(file: CapturedFile, sqlalchemy: Any) -> None:
    file.stem.create_topic("seats", schema=SEATS)
    engine = sqlalchemy.create_engine(f"sqlite:///{file.path}")
    check_sqlalchemy(engine, sqlalchemy.orm, lambda: file.run("accounts", outbox=True))
    assert rows(file, "seats") == [{"seat": 1, "holder": "'; --"}, {"seat": 3, "holder": None}]
    file.run("accounts")
    with engine.begin() as connection, pytest.raises(Invalid, match="does not exist"):
        outbox(connection).append("seats", {"seat": 4})
    engine.dispose()


def test_sqlalchemy_with_postgresql(shop: CapturedShop, sqlalchemy: Any) -> None:
    shop.stem.create_topic("seats", schema=SEATS)
    engine = sqlalchemy.create_engine(shop.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection, pytest.raises(Invalid, match="does not exist"):
        outbox(connection).append("seats", {"seat": 4})
    shop.run(outbox=True)
    check_sqlalchemy(engine, sqlalchemy.orm, lambda: shop.run(outbox=True))
    assert [row["seat"] for row in shop.records("seats")] == [1, 3]
    engine.dispose()


# PostgreSQL


def test_messages_of_postgresql_are_relayed_once_and_in_the_order_of_commits(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE seats (id int PRIMARY KEY, holder text); INSERT INTO seats VALUES (12, NULL), (13, NULL)")
    shop.stem.create_topic("seats_reserved", schema=SEATS)
    shop.run("seats", outbox=True)
    early, late = psycopg.connect(shop.url), psycopg.connect(shop.url)
    for connection, seat in ((early, 12), (late, 13)):
        connection.execute("UPDATE seats SET holder = %s WHERE id = %s", ["x", seat])
        outbox(connection).append("seats_reserved", {"seat": seat, "holder": "x"}, id=f"m-{seat}")
        outbox(connection).append("nothing", {"seat": seat})
    late.commit()
    early.commit()
    early.execute("UPDATE seats SET holder = 'y'")
    outbox(early).append("seats_reserved", {"seat": 99})
    early.rollback()
    shop.run("seats", outbox=True)
    shop.run("seats", outbox=True)

    found = shop.records("seats_reserved")
    assert [(row["seat"], row["record"]["change"], headers(row)["id"]) for row in found] == [
        (13, "insert", b"m-13"),
        (12, "insert", b"m-12"),
    ]
    assert [row["holder"] for row in shop.replay("shop.seats").values()] == ["x", "x"]
    assert rejected(shop) == [("nothing", 'topic "nothing" does not exist')] * 2
    assert shop.sql("SELECT count(*) FROM mainstem_outbox") == [(0,)]
    for connection in (early, late):
        connection.close()


def test_psycopg_outside_of_a_transaction_is_refused(shop: CapturedShop) -> None:
    shop.stem.create_topic("seats", schema=SEATS)
    with pytest.raises(Invalid, match="does not exist") as caught, shop.connection.transaction():
        outbox(shop.connection).append("seats", {"seat": 1})
    assert "CREATE TABLE IF NOT EXISTS public.mainstem_outbox" in str(caught.value)
    shop.run(outbox=True)
    with pytest.raises(Invalid, match="autocommit"):
        outbox(shop.connection).append("seats", {"seat": 1})
    with shop.connection.transaction():
        outbox(shop.connection).append("seats", {"seat": 2})
    shop.run(outbox=True)

    assert [row["seat"] for row in shop.records("seats")] == [2]


def test_without_the_right_to_make_the_table_the_sql_is_shown(shop: CapturedShop) -> None:
    user = f"{shop.database}_reader"
    shop.sql(f"CREATE ROLE {user} LOGIN REPLICATION PASSWORD 'p'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    shop.url = f"postgresql://{user}:p@127.0.0.1:{shop.server.port}/{shop.database}"
    try:
        with pytest.raises(Invalid) as caught:
            shop.run(outbox=True)
    finally:
        shop.sql(f"DROP ROLE {user}")
    assert "CREATE TABLE IF NOT EXISTS public.mainstem_outbox" in str(caught.value)


def test_the_table_of_a_file_has_no_more_than_messages() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(sqlite_outbox_sql())
    assert outbox(connection).append("seats", {"seat": 1}, id="m-1") == "m-1"
    assert connection.execute("SELECT * FROM mainstem_outbox").fetchall() == []


@pytest.mark.parametrize("point", ["capture_before_commit", "capture_after_commit"])
def test_a_killed_relay_relays_each_message_once(file: CapturedFile, point: str) -> None:
    file.stem.create_topic("seats", schema=SEATS)
    expected = []
    for first in range(0, 12, 4):
        with application(file) as connection:
            for seat in range(first, first + 4):
                outbox(connection).append("seats", {"seat": seat})
                outbox(connection).append("unknown", {"seat": seat})
                expected.append(seat)
        # The commit of its start is the first one.
        assert file.run_process("accounts", crash_at=f"{point}:2") == -9
    file.run("accounts", outbox=True)

    assert [row["seat"] for row in rows(file, "seats")] == expected
    assert len(rejected(file)) == len(expected)


def test_an_emptied_table_of_the_outbox_does_not_stop_the_relay(shop: CapturedShop) -> None:
    shop.stem.create_topic("seats", schema=SEATS)
    shop.run(outbox=True)
    # Others may leave rows in it; a change of them is no message.
    shop.sql("INSERT INTO mainstem_outbox VALUES ('m-1', 'seats', NULL, '{\"seat\": 1}', NULL)")
    shop.sql("UPDATE mainstem_outbox SET topic = 'unknown'")
    shop.sql("TRUNCATE mainstem_outbox")
    with shop.connection.transaction():
        outbox(shop.connection).append("seats", {"seat": 2})
    shop.run(outbox=True)

    assert [row["seat"] for row in shop.records("seats")] == [1, 2]
