"""A database, its captured changes, and all stores: equal at the end, whatever happens to the stores meanwhile."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem import Capture, Flow, Mainstem
from mainstem.capture import postgres
from mainstem.capture.capture import captures_of
from mainstem.flows import runner
from mainstem.flows.compared_tables import CapturedTableRows, compare_tables, table_to_compare
from mainstem.operators import table
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.starts_servers, pytest.mark.thorough]


def stores_of(stem: Mainstem, url: str, cache: str, lake: Path) -> list[Any]:
    return [
        stem.postgres(url, "copy_of_tellers", key="tid"),
        stem.redis(cache, prefix="teller:", key="tid"),
        stem.search_index("tellers", key="tid", text=["filler"]),
        stem.delta(lake / "tellers", key="tid"),
    ]


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.long)])
def test_pgbench_through_a_capture_into_all_stores(
    stem: Mainstem, tmp_path: Path, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.5)
    with PostgresServer() as server, RedisServer() as cache:
        url = server.address()
        subprocess.run([server.program("pgbench"), "-q", "-i", "-s", "1", url], check=True, capture_output=True)

        def captures(_: Mainstem) -> Iterator[Capture]:
            yield Capture("bench", postgres(url, tables=["pgbench_tellers"]))

        def flows(stem: Mainstem) -> Iterator[Flow]:
            tellers = table(stem.topic("bench.pgbench_tellers").stream(), key="tid")
            for store in stores_of(stem, url, cache.address(), tmp_path):
                yield Flow(tellers, into=store)

        bench = [server.program("pgbench"), "-c", "2", "-T", str(seconds), url]
        with stem.start(flows, captures=captures) as running:
            with subprocess.Popen(bench, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
                wait_until(lambda: all(handle.batches for handle in running))
                # It keeps nothing on disk.
                cache.restart(signal.SIGKILL)
                said, _ = process.communicate()
                assert process.returncode == 0, said.decode()
            [capture] = captures_of(stem, captures)
            source = CapturedTableRows(capture, "pgbench_tellers", stem.log, stem.home)
            for store in stores_of(stem, url, cache.address(), tmp_path):
                # Redis was empty for a while.
                wait_until(lambda store=store: running.check() is None and store.status.state == "current")  # type: ignore[misc]
                side = table_to_compare(store)
                wait_until(lambda side=side: compare_tables(source, side, wait_seconds=0).equal)  # type: ignore[misc]
                found = compare_tables(source, side)
                assert (found.equal, found.same, found.left_out) == (True, 10, ()), store.name
            running.check()
        assert stem.redis(cache.address(), prefix="teller:", key="tid").version == 2
