"""Views rebuilt from the log beside the live one: compared, flipped, flipped back."""

from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem.errors import FlowNotFound, Invalid, SchemaMismatch
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem
from tests.flows.test_flows import ORDERS, orders

pytestmark = pytest.mark.usefixtures("one_bucket")


@pytest.fixture
def shop(stem: Mainstem) -> Mainstem:
    stem.create_topic("orders", schema=ORDERS, key="order_id", event_time="placed_at", partitions=2)
    stem.topic("orders").append(orders(0, 500))
    return stem


def program(minimum: int) -> Any:
    def flows(stem: Mainstem):
        rows = stem.topic("orders").stream(watermark="10 minutes").where(f"amount >= {minimum}")
        counted = rows.groupBy("store").agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
        yield Flow(counted, into=stem.view("per_store", key="store"))

    return flows


def expected(stem: Mainstem, minimum: int) -> list[dict[str, Any]]:
    sql = (
        "SELECT store, count(*) AS orders, sum(amount) AS revenue FROM orders WHERE amount >= ? GROUP BY ALL ORDER BY 1"
    )
    return stem.query(sql, [minimum]).to_pylist()


def test_a_new_version_is_compared_put_to_use_and_taken_back(shop):
    shop.run(program(0), until="idle")
    view = shop.view("per_store")
    told = []
    with shop.rebuild("per_store", program(400)) as rebuild:
        rebuild.wait(lambda done, rows: told.append((done, rows)))
        difference = rebuild.difference()
        assert view.to_arrow().to_pylist() == expected(shop, 0)
        rebuild.apply()
    assert (difference.changed, difference.same) == (3, 0)
    assert view.to_arrow().to_pylist() == expected(shop, 400)
    assert all(0 <= done <= rows == 500 for done, rows in told)

    # What runs next goes on from the new version's checkpoint.
    shop.topic("orders").append(orders(500, 600))
    shop.run(program(400), until="idle")
    assert view.to_arrow().to_pylist() == expected(shop, 400)

    view.use(1)
    shop.run(program(0), until="idle")
    assert view.to_arrow().to_pylist() == expected(shop, 0)


def test_a_new_version_may_have_other_columns(shop):
    shop.run(program(0), until="idle")
    view = shop.view("per_store")

    def other(stem: Mainstem):
        counted = stem.topic("orders").stream().groupBy("store").agg(F.max("amount").alias("highest"))
        yield Flow(counted, into=stem.view("per_store", key="store"))

    with pytest.raises(SchemaMismatch) as refused:
        shop.run(other, until="idle")
    assert "mainstem view rebuild per_store --program FILE --apply" in refused.value.hint
    with shop.rebuild("per_store", other) as rebuild:
        rebuild.wait()
        rebuild.apply()
    highest = "SELECT store, max(amount) AS highest FROM orders GROUP BY ALL ORDER BY 1"
    assert view.to_arrow().to_pylist() == shop.query(highest).to_pylist()
    shop.topic("orders").append(orders(500, 600))
    shop.run(other, until="idle")
    assert view.to_arrow().to_pylist() == shop.query(highest).to_pylist()


def test_a_flow_under_way_goes_on_with_the_version_that_was_put_to_use(shop):
    with shop.start(program(0)) as running:
        running.wait_until_idle()
        with shop.rebuild("per_store", program(0)) as rebuild:
            rebuild.wait()
            rebuild.apply()
        shop.topic("orders").append(orders(500, 600))
        token = shop.topic("orders").append(orders(600, 700)).token
        row = shop.view("per_store").get("A", after=token, wait="60 seconds")
        assert row == expected(shop, 0)[0]
        assert running["per_store"].run.version == 2


def test_a_program_without_such_a_flow_is_refused(shop):
    shop.run(program(0), until="idle")
    with pytest.raises(FlowNotFound) as raised:
        shop.rebuild("per_store", lambda stem: [])
    assert raised.value.summary == 'no flow of the program writes into view "per_store"'

    def into_files(stem: Mainstem):
        yield Flow(stem.topic("orders").stream(), into=stem.files(f"{stem.home}/out/orders"))

    with pytest.raises(Invalid, match=r'files "out\.orders" cannot be rebuilt') as refused:
        shop.rebuild("out.orders", into_files)
    assert "another topic or folder" in refused.value.hint
