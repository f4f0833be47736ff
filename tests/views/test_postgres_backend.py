"""What a user of the database sees of a view, and what nobody ever sees: the password."""

import os
import stat
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Conflict, DatabaseUnavailable, Invalid, LockHeld, MainstemError
from mainstem.postgres import postgres_pool
from mainstem.postgres.postgres_address import PostgresAddress
from mainstem.views.home_views import backend_of_home
from mainstem.views.postgres import postgres_backend
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.sqlite.sqlite_backend import SqliteBackend
from mainstem.views.view import View
from tests.contracts.view_rows import RUN, SCHEMA, rows, shown
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer

SECOND = FlowRun("revenue", epoch=1, version=2)


@pytest.fixture
def revenue(tmp_path: Path, views_address: str) -> View:
    view = View(tmp_path, "revenue", key="store", backend=PostgresBackend(views_address))
    view.writer(RUN, SCHEMA).apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN))
    return view


# For those who have only SQL


def test_a_plain_view_shows_the_live_version_and_keeps_its_grants(revenue: View, views_address: str) -> None:
    with psycopg.connect(views_address, autocommit=True) as anyone:
        select = "SELECT * FROM revenue ORDER BY store"
        assert anyone.execute(select).fetchall() == [("Berlin", 1), ("Lisbon", 2)]
        anyone.execute("DROP ROLE IF EXISTS analyst")
        anyone.execute("CREATE ROLE analyst")
        anyone.execute("GRANT SELECT ON revenue TO analyst")
        anyone.execute("GRANT SELECT ON revenue TO PUBLIC")
        revenue.writer(SECOND, SCHEMA).apply(rows(Berlin=7), Batch(0, SECOND))
        revenue.use(2)
        assert anyone.execute(select).fetchall() == [("Berlin", 7)]
        # Another column in another place: the plain view has to be made anew.
        third = FlowRun("revenue", epoch=1, version=3)
        window = pa.struct([("start", pa.timestamp("us", "UTC"))])
        wider = pa.schema([("window", window), *((field.name, field.type) for field in SCHEMA)])
        writer = revenue.writer(third, wider)
        writer.apply(
            pa.Table.from_pylist([{"window": {"start": 0}, "store": "a", "amount": 3}], wider), Batch(0, third)
        )
        revenue.use(3)
        shown_now = anyone.execute("SELECT \"window\"->>'start', store, amount FROM revenue").fetchall()
        assert shown_now == [("1970-01-01T00:00:00.000000Z", "a", 3)]
        granted = "SELECT grantee FROM information_schema.role_table_grants WHERE table_name = 'revenue' AND grantee <> 'shop'"
        assert sorted(anyone.execute(granted).fetchall()) == [("PUBLIC",), ("analyst",)]
        left = f"SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, 'mainstem_revenue_{revenue.id[:8]}_v')"
        assert anyone.execute(left).fetchone() == (3,)
        revenue.drop()
        assert anyone.execute(left).fetchone() == (0,)
        assert anyone.execute("SELECT to_regclass('revenue')").fetchone() == (None,)
        anyone.execute("DROP ROLE analyst")


def test_somebody_s_own_table_of_the_name_and_views_on_ours_are_named(
    revenue: View, views_address: str, tmp_path: Path
) -> None:
    with psycopg.connect(views_address, autocommit=True) as anyone:
        anyone.execute("CREATE TABLE orders (n integer)")
        anyone.execute("CREATE VIEW best AS SELECT max(amount) FROM revenue")
    taken = View(tmp_path, "orders", key="store", backend=PostgresBackend(views_address))
    with pytest.raises(Conflict, match='another object with the name of view "orders"') as refused:
        taken.writer(RUN, SCHEMA)
    assert "search_path" in refused.value.hint
    assert not taken.exists
    with pytest.raises(Conflict, match='depends on view "revenue"') as refused:
        revenue.drop()
    assert "best" in refused.value.detail
    assert shown(revenue) == {"Berlin": 1, "Lisbon": 2}


def test_a_session_that_holds_the_view_is_not_waited_for_without_end(
    revenue: View, views_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_backend, postgres_pool):
        monkeypatch.setattr(module, "LOCK_MS_MAX", 50)
    with psycopg.connect(views_address) as anyone:
        with revenue.snapshot() as snapshot:
            anyone.execute(f"SELECT 1 FROM {snapshot._tables.table('progress')} FOR UPDATE")
        for ask in (lambda: revenue.writer(FlowRun("revenue", 2), SCHEMA), revenue.drop):
            with pytest.raises(LockHeld, match="is locked by another session") as error:
                ask()
            assert "pg_stat_activity" in error.value.hint
    assert shown(revenue) == {"Berlin": 1, "Lisbon": 2}


# Where views are


def test_a_home_remembers_where_its_views_are_without_the_password(tmp_path: Path, views_address: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert isinstance(backend_of_home(str(home)), SqliteBackend)
    assert backend_of_home(str(home), views_address).address == views_address
    file = home / "views.toml"
    assert QUOTED_PASSWORD not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = backend_of_home(str(home))
    assert again.address == views_address.replace(f":{QUOTED_PASSWORD}", "")
    # A password that somebody wrote there is used, and stays.
    file.write_text(f'url = "{views_address}"\n')
    assert backend_of_home(str(home)).names() == []
    backend_of_home(str(home), "postgresql://elsewhere/shop")
    assert backend_of_home(str(home)).address == views_address
    for broken in ("url = ", "address = 1", f'"{PASSWORD}'):
        file.write_text(broken)
        with pytest.raises(Invalid, match=r"views\.toml.* cannot be read") as refused:
            backend_of_home(str(home))
        assert PASSWORD not in told(refused.value)


# The password


def told(error: BaseException) -> str:
    """All that a person could ever see of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(getattr(error, "__dict__", ""))


WRONG = [
    "postgresql://shop:canary/x@127.0.0.1/shop",
    "postgresql://shop:canary@x@127.0.0.1/shop",
    "postgresql://shop:canary:5@127.0.0.1:x/shop",
    "postgresql://shop:canary%zz@127.0.0.1/shop",
    "postgresql://shop:1#canary@127.0.0.1/shop",
    "postgresql://127.0.0.1/shop?password=canary&nothing=1",
    "mysql://shop:canary@127.0.0.1/shop",
    "canary",
]


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_cannot_be_read_is_not_repeated(tmp_path: Path, address: str) -> None:
    with pytest.raises((Invalid, DatabaseUnavailable)) as refused:
        mainstem.open(tmp_path / "home", views=address, upkeep="manual").views()
    assert "canary" not in told(refused.value)
    assert refused.value.hint


def test_the_password_is_in_nothing_that_is_shown(
    tmp_path: Path, revenue: View, views_address: str, postgres: PostgresServer
) -> None:
    wrong = PostgresBackend(postgres.address().replace(QUOTED_PASSWORD, "wrong%2Fcanary"))
    nowhere = PostgresBackend(postgres.address(port=1))
    asked: list[Callable[[], object]] = [
        wrong.names,
        nowhere.names,
        View(tmp_path, "other", backend=wrong).to_arrow,
        View(tmp_path, "other", backend=nowhere).to_arrow,
        lambda: View(tmp_path, "other", backend=PostgresBackend(views_address)).to_arrow(),
        lambda: revenue.use(9),
    ]
    seen = [
        repr(revenue),
        repr(revenue.describe()),
        repr(revenue.versions()),
        repr(wrong),
        repr(revenue._store.pool.address),
    ]
    for ask in asked:
        with pytest.raises(MainstemError) as refused:
            ask()
        seen.append(told(refused.value))
    with mainstem.open(tmp_path / "home", views=views_address, upkeep="manual") as stem:
        seen += [repr(stem), repr(stem.view_backend), repr(stem.view("revenue").describe())]
    with psycopg.connect(views_address) as anyone:
        seen.append(repr(anyone.execute("SELECT * FROM pg_stat_activity").fetchall()))
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            # Programs of tests that run beside this one are given the address.
            seen.append("" if "\0-m\0tests." in command else command)
    seen += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (PASSWORD, QUOTED_PASSWORD, "canary"):
        assert not [text for text in seen if secret in text]


def test_a_password_in_the_options_is_not_written_down_either() -> None:
    address = PostgresAddress.parse("postgresql://db/shop?user=a&password=canary&sslmode=disable")
    assert address.without_password == "postgresql://db/shop?user=a&sslmode=disable"
    assert "canary" not in repr(address)
    assert address.safe("it is canary\n here.") == "it is *** here"
