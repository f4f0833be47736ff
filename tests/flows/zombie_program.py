"""A program of three flows, into a topic, a view and files, for `mainstem run`; see zombie_run.py."""

from collections.abc import Iterator

from mainstem import Flow, Mainstem


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream()
    yield Flow(orders.select("order_id", "amount"), into=stem.topic("shipped"))
    yield Flow(orders.select("order_id", "amount"), into=stem.view("amounts", key="order_id"))
    yield Flow(orders.select("order_id", "amount"), into=stem.files(f"{stem.home}/files/orders"), name="kept")
