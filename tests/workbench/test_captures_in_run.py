"""mainstem check and mainstem run of a program with captures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import mainstem
from mainstem import Capture, Invalid
from mainstem.capture import postgres as postgres_source
from tests.capture.shop_database import ShopDatabase, shop_database
from tests.postgres_server import PostgresServer
from tests.workbench.conftest import Cli

FLOWS = """
def flows(stem):
    from mainstem import Flow
    from mainstem.operators import aggregate, table

    orders = table(stem.topic("shop.orders").stream(), key="id")
    totals = aggregate(orders, by="customer", aggregates=["count(*) AS orders", "sum(amount) AS revenue"])
    yield Flow(totals, into=stem.view("per_customer", key="customer"))
"""


@pytest.fixture
def shop(place: Path, postgres: PostgresServer) -> Iterator[ShopDatabase]:
    """A database, and the program `shop.py` that captures it; there is no home yet."""
    with shop_database(postgres) as made:
        (place / "shop.py").write_text(made.program(flows=FLOWS))
        yield made


@pytest.mark.usefixtures("spark")
def test_check_makes_the_topics_and_a_run_fills_them_and_the_view(shop: ShopDatabase, cli: Cli) -> None:
    checked = cli("check", "shop.py")
    assert (checked.status, checked.err) == (0, "")
    assert "  into   topic shop.orders, from table orders" in checked.out.splitlines()
    assert checked.out.splitlines()[-1] == "1 capture, 1 flow, 0 warnings; nothing was started"
    assert cli("check", "shop.py", "--json").json["captures"][0]["topics"]["orders"] == "shop.orders"
    assert (shop.slots(), shop.publications()) == ([], [])

    ran = cli("run", "shop.py", "--until-idle")
    assert (ran.status, ran.err) == (0, "")
    expected = shop.execute("SELECT customer, count(*), sum(amount)::text FROM orders GROUP BY 1 ORDER BY 1")
    found = cli("view", "read", "per_customer", "--format", "json").lines
    assert [(row["customer"], row["orders"], row["revenue"]) for row in found] == expected


def test_a_source_that_does_not_answer_is_said_before_spark_starts(
    place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.stem.spark_session", lambda address: pytest.fail("Spark was started"))
    (place / "shop.py").write_text(
        "from mainstem import Capture\nfrom mainstem.capture import postgres\n"
        'def captures(stem):\n    yield Capture("shop", postgres("postgresql://reader@127.0.0.1:1/shop", tables=["orders"]))\n'
        + FLOWS
    )
    for command in (["check", "shop.py"], ["run", "shop.py"], ["run", "shop.py", "--until-idle"]):
        assert cli(*command).error[0] == (
            'mainstem.DatabaseUnavailable: the database "postgresql://reader@127.0.0.1:1/shop" cannot be reached'
        )


def test_a_table_that_cannot_be_captured_is_said_before_spark_starts(
    shop: ShopDatabase, place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.stem.spark_session", lambda address: pytest.fail("Spark was started"))
    shop.execute("CREATE TABLE keyless (n int)")
    (place / "shop.py").write_text(shop.program(flows=FLOWS, tables='["orders", "keyless"]'))
    for command in (["check", "shop.py"], ["run", "shop.py"]):
        assert cli(*command).error[0] == 'mainstem.Invalid: table "keyless" has no key'
    assert (shop.slots(), shop.publications()) == ([], [])


def test_an_error_of_the_function_captures_names_its_line(place: Path, cli: Cli) -> None:
    (place / "shop.py").write_text(f"def captures(stem):\n    return 1 / 0\n{FLOWS}")
    first, detail, _ = cli("check", "shop.py").error
    assert first == "mainstem.Invalid: the function `captures` failed"
    assert detail == "Detail: ZeroDivisionError: division by zero. It is line 2 of shop.py: return 1 / 0."


def test_two_captures_into_one_topic_are_refused_before_anything_is_asked(place: Path, cli: Cli) -> None:
    source = 'postgres("postgresql://reader@127.0.0.1:1/shop", tables=[CapturedTable("orders", into="same")])'
    (place / "shop.py").write_text(
        "from mainstem import Capture\nfrom mainstem.capture import CapturedTable, postgres\n"
        f'def captures(stem):\n    yield Capture("one", {source})\n    yield Capture("two", {source})\n{FLOWS}'
    )
    for command in (["check", "shop.py"], ["run", "shop.py"], ["capture", "run", "shop.py"]):
        assert cli(*command).error[0] == 'mainstem.Invalid: captures "one" and "two" have the topic "same"'


def test_a_program_with_only_captures_is_checked_and_run_without_spark(
    shop: ShopDatabase, place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.stem.spark_session", lambda address: pytest.fail("Spark was started"))
    (place / "shop.py").write_text(shop.program())
    checked = cli("check", "shop.py")
    assert (checked.status, checked.err) == (0, "")
    assert checked.out.splitlines()[-1] == "1 capture, 0 flows, 0 warnings; nothing was started"
    assert (shop.slots(), shop.publications()) == ([], [])
    assert cli("run", "shop.py", "--flow", "x").error[0] == 'mainstem.FlowNotFound: the program has no flow "x"'
    ran = cli("run", "shop.py", "--until-idle")
    assert (ran.status, ran.err) == (0, "the program has no function `flows`: its captures are run alone\n")
    assert cli("query", 'SELECT count(*) AS n FROM "shop.orders"', "--json").json == {"n": 100}

    def captures(stem: mainstem.Mainstem) -> Capture:
        return Capture("shop", postgres_source(shop.address, tables=["customers", "orders"], slot=shop.slot))

    shop.execute("DELETE FROM orders WHERE id < 11")
    with mainstem.open("shop") as stem:
        stem.run(captures=captures, until="idle")
        with pytest.raises(Invalid, match="neither flows nor captures"):
            stem.run()
    assert cli("query", 'SELECT count(*) AS n FROM "shop.orders"', "--json").json == {"n": 90}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("def captures():\n    return []", "captures cannot be called with a mainstem"),
        ("def captures(stem):\n    pass", "captures returns NoneType, not captures"),
        ("def captures(stem):\n    return [1]", "captures yields int"),
    ],
)
def test_a_function_captures_that_is_none_is_refused_in_three_parts(
    place: Path, cli: Cli, function: str, said: str
) -> None:
    (place / "shop.py").write_text(f"{function}\n{FLOWS}")
    for command in (["check", "shop.py"], ["run", "shop.py"], ["capture", "run", "shop.py"]):
        first, detail, hint = cli(*command).error
        assert (first, bool(detail), bool(hint)) == (f"mainstem.Invalid: {said}", True, True)
