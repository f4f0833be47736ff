"""Programs with more partitions than file handles, each run in a process of its own: `run(program, home, number)`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import mainstem
from mainstem.durable_files import RealFiles
from mainstem.errors import Unavailable
from mainstem.stem import Mainstem


def run(program: str, home: Path, number: int, *, limit: int) -> None:
    """Run a program of this module under `ulimit -n`."""
    repository = Path(__file__).parents[3]
    asked = f"from {__name__} import limited, {program}; limited({program}, {str(home)!r}, {number}, {limit})"
    known = {**os.environ, "PYTHONPATH": f"{repository}/src:{repository}"}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=known, cwd=repository, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def limited(program: object, home: str, number: int, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    assert callable(program)
    with mainstem.open(home, upkeep="manual") as stem:
        program(stem, number)
        check_handles(limit)
    assert RealFiles.kept.handles == 0


def check_handles(limit: int) -> None:
    """Half of the limit is for the log, and what this interpreter itself has open does not grow."""
    assert RealFiles.kept.handles <= limit // 2
    assert len(os.listdir("/proc/self/fd")) <= limit // 2 + 25


def many_topics(stem: Mainstem, number: int) -> None:
    topics = [stem.create_topic(f"t{each}", schema="n bigint") for each in range(number)]
    for value in range(3):
        for topic in topics:
            topic.append([{"n": value}])
    # The files of the first ones are closed by now: another process appends, then this one again.
    run("append_to_all", Path(stem.home), number, limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for topic in topics:
        topic.append([{"n": 4}])
    assert [topic.to_arrow(columns=["n"]).column("n").to_pylist() for topic in topics] == [[0, 1, 2, 3, 4]] * number
    asked = " union all ".join(f"select count(*) as rows from {topic.name}" for topic in topics)
    assert stem.query(asked).column("rows").to_pylist() == [5] * number
    stem.log.upkeep.run()
    assert stem.log.upkeep.last_error is None


def append_to_all(stem: Mainstem, number: int) -> None:
    for each in range(number):
        stem.topic(f"t{each}").append([{"n": 3}])


def many_partitions(stem: Mainstem, number: int) -> None:
    topic = stem.create_topic("t", schema="k bigint, n bigint", key="k", partitions=number, keep="latest per key")
    count = number * 12
    rows = [{"k": key, "n": 0} for key in range(count)]
    assert len(topic.append(rows).offsets) == number
    following = topic.follow(start="latest", wait="1 millisecond")
    producer = stem.producer("loader")
    for sequence in (0, 1, 1, 2):
        producer.append("t", [{**row, "n": 1 + sequence} for row in rows], sequence=sequence)
    assert (producer.last_sequence("t"), producer.incomplete_sequence("t")) == (2, None)
    with stem.transaction() as transaction:
        transaction.append("t", [{**row, "n": 4} for row in rows])
    assert sum(batch.num_rows for batch in following) == 4 * count
    assert topic.to_arrow().num_rows == 5 * count
    assert topic.seal() == number
    assert topic.to_arrow().num_rows == 5 * count
    assert topic.compact().removed == 4 * count
    topic.append([{"k": key, "n": 5} for key in range(count)])
    assert sorted(topic.to_arrow(columns=["n"]).column("n").to_pylist()) == [4] * count + [5] * count
    assert topic.drop_expired().records == 0
    assert topic.verify().problems == []


def all_handles() -> list[int]:
    """Handles, until there are none left."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    return taken


def no_handle_left(stem: Mainstem, number: int) -> None:
    topic, other = (stem.create_topic(name, schema="n bigint") for name in ("t", "other"))
    topic.append([{"n": 1}])
    RealFiles.kept.close_all_idle()
    other.append([{"n": 1}])
    taken = all_handles()
    # What is kept of the other topic makes room.
    topic.append([{"n": 2}])
    RealFiles.kept.close_all_idle()
    taken += all_handles()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for do in (
        lambda: topic.append([{"n": 3}]),
        topic.to_arrow,
        lambda: stem.query("select * from t"),
        lambda: next(iter(topic.follow(start="earliest"))),
        topic.seal,
        lambda: stem.create_topic("new", schema="n bigint"),
        lambda: topic.join_group("readers"),
        lambda: stem.transaction().__enter__(),
    ):
        with pytest.raises(Unavailable, match="too many open files") as told:
            do()
        assert f"{limit} (ulimit -n)" in told.value.detail
        assert "ulimit -n 65536" in told.value.hint
    for handle in taken:
        os.close(handle)
    topic.append([{"n": 4}])
    assert topic.to_arrow(columns=["n"]).column("n").to_pylist() == [1, 2, 4]
    assert (topic.verify().problems, stem.log.topic_names(), stem.log.open_topic("t").groups()) == (
        [],
        ["other", "t"],
        [],
    )
