"""G10, G14: names and values with SQL in them are names and values; the password is nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from mainstem.errors import Invalid, MainstemError
from mainstem.log.record import RECORD
from mainstem.sinks import postgres_store
from mainstem.testing.store_trial import ODD, StoreTrial, changes
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer

pytestmark = pytest.mark.starts_servers

SEED = 4_110
WAY = "mainstem.sinks.postgres_store:PostgresStore"
PIECES = [
    *ODD, "'", '"', "';", '";', "--", "/*", "*/", "$$", "DROP TABLE others", "; DELETE FROM others", "' OR '1'='1", "E'\\''",
    "\\", "%s", "$1", "%(x)s", "COPY others TO PROGRAM 'true'", "pg_sleep(9)", "\u02bc", "\uff07", "{", "}", ")", "(", ",",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def payloads(count: int, bytes_max: int = 1_000) -> list[str]:
    chance, made = random.Random(SEED), dict.fromkeys(PIECES)
    while len(made) < 2 * count:
        made["".join(chance.choices(PIECES, k=chance.randint(2, 4)))] = None
    return [text for text in made if 0 < len(text.encode()) <= bytes_max and "\0" not in text][:count]


def try_payloads(server: PostgresServer, folder: Path, count: int) -> tuple[int, list[str]]:
    """Values in one table; then some as the names of tables and columns."""
    url, compared, violations = server.new_address(), 0, []
    with psycopg.connect(url, autocommit=True) as others:
        others.execute("CREATE TABLE others (id INT); INSERT INTO others VALUES (1)")
        schema = pa.schema([("id", pa.string()), ("title", pa.string()), ("record", RECORD)])
        trial = StoreTrial(folder, WAY, {"url": url, "table": "tried"})
        given = payloads(count)
        writer = trial.begin(1, schema=schema)
        trial.write(writer, 0, changes([(text, text, "insert") for text in given], schema))
        compared += len(given)
        if trial.rows() != {text: text for text in given}:
            violations.append("values came back otherwise")
        trial.write(writer, 1, changes([(text, None, "delete") for text in given[::2]], schema))
        violations += [text for text in given[::2] if trial.store.get(text) is not None]
        trial.close()
        for number, name in enumerate(payloads(count // 10, bytes_max=50)):
            if "." in name or name.startswith("mainstem"):
                continue
            columns = pa.schema([("id", pa.int64()), (name, pa.string()), ("record", RECORD)])
            trial = StoreTrial(folder / f"{number}", WAY, {"url": url, "table": name})
            try:
                trial.write(trial.begin(1, schema=columns), 0, changes([(1, "x", "insert")], columns))
                compared += 1
                if trial.store.to_arrow().to_pylist() != [{"id": 1, name: "x"}]:
                    violations.append(f"the table and column {name!r}")
            except Invalid:
                pass  # not a name of a column
            trial.close()
        compared += 1
        if others.execute("SELECT id FROM others").fetchall() != [(1,)]:
            violations.append("another table was changed")
    return compared, violations


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_payloads_are_names_and_values_and_nothing_else(
    server: PostgresServer, tmp_path: Path, count: int, fault_report: Callable[..., None]
) -> None:
    compared, violations = try_payloads(server, tmp_path, count)
    fault_report(
        "G10 payloads for a store in PostgreSQL", points=count, compared=compared, violations=violations, seed=SEED
    )


def test_a_name_that_is_not_quoted_is_caught(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "quote_name", lambda name: f'"{name}"')
    with pytest.raises((psycopg.Error, AssertionError)):
        assert not try_payloads(server, tmp_path, 500)[1]


def test_the_password_is_nowhere(server: PostgresServer, tmp_path: Path) -> None:
    said = []
    address = server.address()
    for url in (address.replace(f":{server.port}/", ":1/"), address.replace("shop:", "nobody:"), address):
        trial = StoreTrial(tmp_path, WAY, {"url": url, "table": "tried"})
        said += [repr(trial.store), trial.store.location, repr(trial.backend)]
        try:
            said.append(repr(trial.store.status))
        except MainstemError as error:
            said += [*error.parts(), repr(error), str(error.__cause__)]
        trial.close()
    assert not [text for text in said if PASSWORD in text or QUOTED_PASSWORD in text]
