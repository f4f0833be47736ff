"""mainstem view ... on views in PostgreSQL: found by what the home remembers, and never a word of the password."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.stem import Mainstem
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD
from tests.workbench.conftest import ORDERS, Cli

SCHEMA = pa.schema({"store": pa.string(), "revenue": pa.decimal128(10, 2)})
RUN = FlowRun("revenue", epoch=1)


def rows(**revenue: str) -> pa.Table:
    return pa.table([list(revenue), pa.array(revenue.values()).cast(SCHEMA.field(1).type)], schema=SCHEMA)


@pytest.fixture
def shop(place, views_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mainstem]:
    """A home whose view is in PostgreSQL. It was opened with the address once; commands get the password alone."""
    with mainstem.open("shop", views=views_address, upkeep="manual") as stem:
        stem.create_topic("orders", schema=ORDERS)
        view = stem.view("revenue", key="store")
        for run in (RUN, FlowRun("revenue", epoch=1, version=2)):
            mainstem.View.writer(view, run, SCHEMA).apply(rows(Berlin="12.50", Paris="0.00"), Batch(0, run))
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        yield stem


def test_every_command_about_views_finds_them_in_the_database(shop: Mainstem, cli: Cli) -> None:
    said = [
        listed := cli("view", "list"),
        described := cli("view", "describe", "revenue"),
        read := cli("view", "read", "revenue", "--format", "json"),
        got := cli("view", "get", "revenue", "Berlin", "--json"),
        used := cli("view", "versions", "revenue", "--use", "2", "--json"),
        asked := cli("query", "SELECT sum(revenue) AS total FROM revenue", "--format", "json"),
        cli("view", "list", "--json"),
        cli("view", "describe", "revenue", "--json"),
        dropped := cli("view", "drop", "revenue", "--yes"),
        missing := cli("view", "get", "revenue", "Berlin"),
    ]
    assert "revenue" in listed.out
    assert "kept in" in described.out
    assert "postgresql://shop@127.0.0.1" in described.out
    assert [line["store"] for line in read.lines] == ["Berlin", "Paris"]
    assert got.json == {"store": "Berlin", "revenue": "12.50"}
    assert [(one["version"], one["live"]) for one in used.json] == [(1, False), (2, True)]
    assert asked.lines == [{"total": "12.50"}]
    assert dropped.out == "dropped view revenue\n"
    assert missing.error[0] == 'mainstem.ViewNotFound: view "revenue" does not exist'
    for one in said:
        assert PASSWORD not in one.out + one.err
        assert QUOTED_PASSWORD not in one.out + one.err


def test_the_environment_says_where_the_views_are_if_the_home_does_not(
    place, cli: Cli, views_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mainstem.open("shop", upkeep="manual") as stem:
        stem.create_topic("orders", schema=ORDERS)
        assert not (place / "shop" / "views.toml").exists()
    monkeypatch.setenv("MAINSTEM_VIEWS", views_address)
    assert cli("view", "list") == (0, "no views yet\n", "")
    monkeypatch.setenv("MAINSTEM_VIEWS", "postgresql://shop:wrong-canary@127.0.0.1:1/shop")
    first, detail, _ = cli("view", "list").error
    assert first == 'mainstem.DatabaseUnavailable: the database "postgresql://shop@127.0.0.1:1/shop" cannot be reached'
    assert "canary" not in detail
