"""Views in PostgreSQL as earlier versions wrote them: read by this one, row by row and change by change, and written on.

The tables in `postgres_view_v1/` were written once by `python -m tests.formats.test_postgres_format` and stay as they are.
They are SQL, as `pg_dump` gives it: what lies in a user's database, whatever the server's release.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from mainstem.clock import ManualClock
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.view import View
from tests.formats.test_view_format import VALUES, facts, fill, write_on
from tests.postgres_server import PASSWORD, PostgresServer

FOLDER = Path(__file__).parent / "postgres_view_v1"
# A text in PostgreSQL cannot hold a zero: a row with one is rejected.
TEXT = VALUES["text"][1].replace("\0", "")


@contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """The address of a database with nothing in it."""
    name = f"format_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    address = server.address(name)
    try:
        yield address
    finally:
        PostgresBackend(address).close()


@contextmanager
def restored(server: PostgresServer) -> Iterator[View]:
    with database(server) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            restore(connection, (FOLDER / "tables.sql").read_text().splitlines(keepends=True))
        yield View("", "prices", backend=PostgresBackend(address))


def restore(connection: psycopg.Connection, lines: list[str]) -> None:
    """What psql does with a dump: statements, and rows between COPY and a line with a dot."""
    statements: list[str] = []
    while lines:
        line = lines.pop(0)
        if not line.startswith("COPY "):
            statements.append(line)
            continue
        connection.execute("".join(statements).encode())
        statements = []
        end = lines.index("\\.\n")
        with connection.cursor().copy(line.encode()) as copied:
            copied.write("".join(lines[:end]))
        del lines[: end + 1]
    connection.execute("".join(statements).encode())


def write() -> None:
    with PostgresServer() as server, database(server) as address:
        place = PostgresBackend(address)
        fill(View("", "prices", key=["store", "number"], clock=ManualClock(), place=place), TEXT)
        FOLDER.mkdir()
        (FOLDER / "expected.json").write_text(json.dumps(facts(View("", "prices", place=place)), indent=1) + "\n")
        dump = [
            server.program("pg_dump"), "--host=127.0.0.1", f"--port={server.port}", "--username=shop", "--no-owner",
            "--no-comments", address.rpartition("/")[2],
        ]  # fmt: skip
        said = subprocess.run(
            dump, env={**os.environ, "PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=True
        ).stdout
        # Without what is for people, or for psql alone, or for one release of the server.
        of_others = ("--", "\\restrict", "\\unrestrict", "SET transaction_timeout", "\n")
        kept = [line for line in said.splitlines(keepends=True) if not line.startswith(of_others)]
        (FOLDER / "tables.sql").write_text("".join(kept))


def test_a_view_of_format_1_is_read_as_it_was_written(postgres: PostgresServer) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())
    with restored(postgres) as view:
        found = facts(view)
    assert found == expected
    # The same as in a file, but for that zero and what each calls itself.
    in_a_file = (FOLDER.parent / "sqlite_view_v1" / "expected.json").read_text().replace(r"ln\\x00", "ln")
    assert {**found, "id": ""} == {**json.loads(in_a_file), "id": ""}


def test_it_is_written_on_and_its_cursors_hold(postgres: PostgresServer) -> None:
    with restored(postgres) as view:
        write_on(view, TEXT)


if __name__ == "__main__":
    write()
