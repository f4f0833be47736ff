"""mainstem topic append, given the same file again: with a producer each line is in once, whatever happened meanwhile."""

import subprocess
import threading

import pytest

import mainstem
from mainstem.log.embedded.write.partition import Partition
from mainstem.workbench.cli import row_append, row_files
from tests.workbench.conftest import json_lines, rows
from tests.workbench.test_main import COMMAND


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 3 lines."""
    monkeypatch.setattr(row_files, "ROWS_MAX", 3)


def appended(topic) -> int:
    return topic.to_arrow().num_rows


def test_a_producer_appends_a_file_once(cli, orders, place, small_batches):
    (place / "rows.jsonl").write_text(json_lines(*({"order_id": f"o-{n}"} for n in range(8))))
    command = ["topic", "append", "orders", "rows.jsonl", "--producer", "loader"]

    assert cli(*command).out == "appended 8 rows to orders\n"
    assert cli(*command).out == "appended 0 rows to orders; 8 were already appended\n"
    assert appended(orders) == 8


@pytest.mark.parametrize("key", ["order_id", None])
def test_a_file_that_has_grown_is_appended_from_where_it_was(cli, stem, place, small_batches, key):
    topic = stem.create_topic("grown", schema="order_id STRING", key=key, partitions=3)
    command = ["topic", "append", "grown", "rows.jsonl", "--producer", "loader"]
    for length in (1, 2, 5, 5, 7, 8, 14, 30):
        (place / "rows.jsonl").write_text(json_lines(*({"order_id": f"o-{n:02}"} for n in range(length))))
        assert cli(*command).status == 0
        assert sorted(rows(topic, "order_id")) == [f"o-{n:02}" for n in range(length)]


def test_a_producer_goes_on_where_it_was_stopped(cli, orders, place, small_batches, monkeypatch):
    (place / "rows.jsonl").write_text(json_lines(*({"order_id": f"o-{n}"} for n in range(9))))
    command = ["topic", "append", "orders", "rows.jsonl", "--producer", "loader"]
    place_rows = row_append.RowAppend._place

    def stopping(work, batch_rows, batch):
        if batch.first == 4:
            raise KeyboardInterrupt
        return place_rows(work, batch_rows, batch)

    with monkeypatch.context() as patched:
        patched.setattr(row_append.RowAppend, "_place", stopping)
        assert cli(*command).status == 130
    assert appended(orders) == 3
    assert cli(*command).out == "appended 6 rows to orders; 3 were already appended\n"
    assert appended(orders) == 9


@pytest.mark.thorough
def test_appends_of_two_commands_at_once_are_all_in(orders, place):
    (place / "rows.jsonl").write_text(json_lines(*({"order_id": f"o-{n}"} for n in range(500))))
    command = [*COMMAND, "topic", "append", "orders", "rows.jsonl"]
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(subprocess.run(command).returncode)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert statuses == [0, 0]
    assert appended(orders) == 1000


def test_an_append_cut_short_is_completed_by_the_same_command(cli, orders, place, small_batches, monkeypatch):
    # The second batch has rows of both partitions.
    (place / "rows.jsonl").write_text(json_lines(*({"order_id": f"x-{n}"} for n in range(9))))
    command = ["topic", "append", "orders", "rows.jsonl", "--producer", "loader"]
    append = Partition.append

    def cut_short(partition, pending):
        if pending.sequence == 6 and partition.slot == 1:
            raise mainstem.Unavailable("no", detail="Not now.", hint="Later.")
        append(partition, pending)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", cut_short)
        error = cli(*command).error
    assert error == [
        'mainstem.IncompleteAppend: an append to "orders" reached 1 of 2 partitions',
        "Detail: Written: 0. Not written: 1 (no). The append was of lines 4 to 6; all earlier ones are appended.",
        "Hint: When the cause is fixed, repeat the command: no line is appended twice.",
    ]
    assert 3 < appended(orders) < 6
    assert cli(*command).status == 0
    assert rows(orders, "order_id") == [f"x-{n}" for n in range(9)]
