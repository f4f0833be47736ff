"""With Spark: a flow keeps keys of Redis current, and fills them again after Redis has lost them."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem import Mainstem
from mainstem.flows import runner
from mainstem.flows.flow import Flow
from mainstem.operators import table
from tests.redis_server import RedisServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("one_bucket"), pytest.mark.thorough]


def test_a_redis_that_lost_its_memory_is_filled_again_by_the_idle_flow(
    stem: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.2)
    orders = stem.create_topic("orders", schema="id BIGINT, title STRING", key="id")
    with RedisServer() as server:

        def flows(stem: Mainstem) -> Iterator[Flow]:
            rows = table(stem.topic("orders").stream(), key="id")
            yield Flow(rows, into=stem.redis(server.address(), prefix="shop:order:", key="id"))

        orders.append([{"id": number, "title": "first"} for number in range(10)])
        with stem.start(flows) as running:
            (name,) = running.handles
            assert name == "redis.shop_order"
            running[name].wait_until_idle()
            orders.append([{"id": 3, "title": "second"}])
            running[name].wait_until_idle()
            expected = {number: "second" if number == 3 else "first" for number in range(10)}
            assert shown(server) == (b"current", b"1", expected)

            server.restart(signal.SIGKILL)
            assert shown(server) == (None, None, {})
            wait_until(lambda: shown(server)[0] == b"current", 120)
            assert shown(server)[2] == expected
            orders.append([{"id": 99, "title": "third"}])
            running[name].wait_until_idle()
            state, version, rows = shown(server)
            assert (state, rows) == (b"current", {**expected, 99: "third"})
            assert version is not None
            assert int(version) > 1


def shown(server: RedisServer) -> tuple[bytes | None, bytes | None, dict[int, str]]:
    """What another program sees."""
    with server.client() as client:
        state, version = client.hmget("mainstem.store shop:order:", "state", "version")
        found = [client.get(key) for key in client.scan_iter(match="shop:order:*")]
    rows = [json.loads(text) for text in found if text is not None]
    return state, version, {row["id"]: row["title"] for row in rows}
