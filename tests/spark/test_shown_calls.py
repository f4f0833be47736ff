"""A function of the user's that fails in a flow names its line and the values of its row."""

import pickle
import traceback

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F

from mainstem.errors import FlowFailed
from mainstem.flows.flow import Flow
from mainstem.spark.spark_session import with_call_shown


def test_an_error_shows_what_the_function_was_called_with():
    def price(order, amount):
        return 1 / amount

    again = pickle.loads(cloudpickle.dumps(with_call_shown(price)))
    assert again("o-1", 2) == 0.5
    with pytest.raises(ZeroDivisionError) as raised:
        again("o-7\n", amount=0)
    assert traceback.format_exception_only(raised.value)[-1] == "Called with: 'o-7\\n', amount=0\n"
    with pytest.raises(ZeroDivisionError) as raised:
        again("x" * 1000, 0)
    assert len(raised.value.__notes__[0]) < 400


def test_a_function_that_fails_in_a_flow_names_row_and_line(stem):
    orders = stem.create_topic("orders", schema="order_id STRING, amount BIGINT")
    orders.append([{"order_id": f"o-{number}", "amount": 5 - number} for number in range(10)])

    def price(order, amount):
        return 1 / amount

    def flows(stem):
        priced = F.udf(price, "double")("order_id", "amount").alias("price")
        yield Flow(stem.topic("orders").stream().select(priced), into=stem.topic("prices"))

    with pytest.raises(FlowFailed) as raised:
        stem.run(flows, until="idle")
    line = price.__code__.co_firstlineno + 1
    assert raised.value.detail.startswith(
        f"ZeroDivisionError: division by zero (test_shown_calls.py, line {line}, in price), called with ('o-5', 0)."
    )
