"""mainstem topic append: every form of rows, in batches, once, and with the rest set apart."""

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.workbench.cli import row_append, row_files
from tests.log.test_readable_values import text
from tests.workbench.conftest import ORDERS, json_lines, rows
from tests.workbench.test_main import COMMAND

PLACED = {"order_id": "o-1", "store": "Köln", "amount": 12.5, "placed_at": "2026-01-01T09:00:00+01:00"}
TABLE = pa.table({"order_id": [f"o-{n}" for n in range(25)], "amount": [float(n) for n in range(25)]})


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 3 lines."""
    monkeypatch.setattr(row_files, "ROWS_MAX", 3)


def appended(topic) -> int:
    return topic.to_arrow().num_rows


def test_json_lines_from_standard_input(cli, orders):
    said = cli("topic", "append", "orders", "-", stdin=json_lines(PLACED, {"order_id": "o-2"}) + "\n")

    assert said == (0, "appended 2 rows to orders\n", "")
    first, second = rows(orders)
    assert (first["store"], first["amount"], first["placed_at"].isoformat()) == (
        "Köln",
        12.5,
        "2026-01-01T08:00:00+00:00",
    )
    assert second == {"order_id": "o-2", "store": None, "amount": None, "placed_at": None}


def test_csv_from_a_file(cli, orders, place):
    (place / "orders.csv").write_text(
        "\ufefforder_id,amount,store,placed_at\r\n"
        'o-1,12.5,"Rome, ""centre""\nleft",2026-01-01 09:00:00Z\r\n'
        'o-2,,"",\r\n'
        "o-3,1e3,,\r\n"
    )

    assert cli("topic", "append", "orders", "orders.csv") == (0, "appended 3 rows to orders\n", "")
    assert rows(orders, "store") == ['Rome, "centre"\nleft', "", None]
    assert rows(orders, "amount") == [12.5, None, 1000.0]


def write_parquet(path):
    pq.write_table(TABLE, path, row_group_size=7)


def write_arrow_file(path):
    with pa.ipc.new_file(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=7)


def write_arrow_stream(path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=7)


BINARY_FORMS = [("rows.parquet", write_parquet), ("rows.arrow", write_arrow_file), ("rows.ipc", write_arrow_stream)]


@pytest.mark.parametrize(("name", "write"), BINARY_FORMS)
@pytest.mark.parametrize("by", ["file", "pipe"])
def test_parquet_and_arrow(cli, orders, place, small_batches, name, write, by):
    write(place / name)
    form = "parquet" if name.endswith("parquet") else "arrow"

    if by == "file":
        said = cli("topic", "append", "orders", name)
    else:
        said = cli("topic", "append", "orders", "-", "--format", form, stdin=(place / name).read_bytes())

    assert said == (0, "appended 25 rows to orders\n", "")
    assert sorted(rows(orders, "amount")) == [float(n) for n in range(25)]


def test_parquet_through_a_real_pipe(orders, place):
    write_parquet(place / "rows.parquet")

    finished = subprocess.run(
        f"cat rows.parquet | {sys.executable} -m mainstem.workbench.cli.main topic append orders - --format parquet",
        shell=True,
        capture_output=True,
        text=True,
    )

    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "appended 25 rows to orders\n", "")


def test_a_record_is_used_as_read_writes_it(cli, stem, orders):
    change = {
        "order_id": "o-1",
        "record": {"change": "delete", "headers": [{"key": "trace", "value": "Nw=="}], "offset": 7},
    }
    cli("topic", "append", "orders", "-", stdin=json_lines(change))
    copy = stem.create_topic("copy", schema=orders.ddl, key="order_id")

    written = cli("topic", "read", "orders", "--format", "csv").out
    assert cli("topic", "append", "copy", "-", "--format", "csv", stdin=written).status == 0

    record = copy.to_arrow().column("record").to_pylist()[0]
    assert (record["change"], record["headers"]) == ("delete", [{"key": "trace", "value": b"7"}])


def test_json_says_what_was_done_and_a_token(cli, orders):
    said = cli("topic", "append", "orders", "-", "--json", stdin=json_lines(PLACED)).json
    nothing = cli("topic", "append", "orders", "-", "--json", stdin="").json

    assert said["token"].startswith("orders@0:")
    assert said | {"token": ""} == {"topic": "orders", "rows": 1, "repeated": 0, "rejected": 0, "token": ""}
    assert nothing == {"topic": "orders", "rows": 0, "repeated": 0, "rejected": 0, "token": None}
    assert cli("topic", "read", "orders", "--start", said["token"], "--format", "json").out == ""


# Batches


def test_rows_go_in_by_bounded_batches(cli, orders, monkeypatch, small_batches):
    sizes = []
    append = row_append.RowAppend._place

    def counting(work, batch_rows, batch):
        sizes.append((batch.first, batch.last, len(batch_rows)))
        return append(work, batch_rows, batch)

    monkeypatch.setattr(row_append.RowAppend, "_place", counting)
    cli("topic", "append", "orders", "-", stdin=json_lines(*({"order_id": f"o-{n}"} for n in range(7))))

    assert sizes == [(1, 3, 3), (4, 6, 3), (7, 7, 1)]


def test_a_batch_ends_by_bytes_as_well(cli, orders, place, monkeypatch):
    monkeypatch.setattr(row_files, "BYTES_MAX", 100)
    pq.write_table(TABLE, place / "rows.parquet")
    settings = orders.settings

    with row_files.RowFile("rows.parquet", None, settings) as source:
        parts = [(batch.first, batch.last, batch.rows.nbytes <= 200) for batch in source.batches()]

    assert parts[0][0] == 1
    assert parts[-1][1] == 25
    assert len(parts) > 4
    assert all(small for _, _, small in parts)


def test_what_comes_by_a_slow_pipe_is_in_before_the_pipe_ends(orders):
    command = subprocess.Popen(
        [*COMMAND, "topic", "append", "orders", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert command.stdin is not None
    seen = orders.follow(start="earliest", wait="60 seconds")

    command.stdin.write(json_lines({"order_id": "o-1"}))
    command.stdin.flush()
    assert next(seen).column("order_id").to_pylist() == ["o-1"]
    command.stdin.write(json_lines({"order_id": "o-2"}))
    command.stdin.flush()
    assert next(seen).column("order_id").to_pylist() == ["o-2"]

    assert command.communicate() == ("appended 2 rows to orders\n", None)


def test_ctrl_c_says_how_far_it_came(orders, place):
    command = subprocess.Popen(
        [*COMMAND, "topic", "append", "orders", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What a shell starts in the background is deaf to it, and so is whatever that starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no lock is taken in it
    )
    assert command.stdin is not None
    seen = orders.follow(start="earliest", wait="60 seconds")
    command.stdin.write(json_lines({"order_id": "o-1"}).encode())
    command.stdin.flush()
    next(seen)

    command.send_signal(signal.SIGINT)
    out, err = command.communicate()

    assert (command.returncode, out) == (130, b"")
    assert err.decode() == 'Lines 1 to 1 are in topic "orders" (1 row), none after. Continue with: --from-line 2\n'


# Not what `resource` says: a process inherits that from the one that started it.
MEMORY = """
import re, sys
from mainstem.workbench.cli.main import run
status = run(sys.argv[1:])
print(status, int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(stem, place):
    # Small segments, so that also the shorter file is long enough for the process to seal some beside.
    stem.create_topic("orders", schema=ORDERS, key="order_id", segment_bytes_max="4 MiB")
    line = json_lines({"order_id": "o-1", "store": "x" * 5000})
    used = []
    for megabytes in (40, 240):
        with (place / "rows.jsonl").open("w") as file:
            file.writelines(line for _ in range(megabytes * 200))
        command = [sys.executable, "-c", MEMORY, "topic", "append", "orders", "rows.jsonl"]
        said = subprocess.run(command, capture_output=True, text=True)
        status, reached = said.stdout.splitlines()[-1].split()
        assert status == "0", said.stderr
        used.append(int(reached))

    # What is sealed beside, and when, makes a difference of some ten megabytes from run to run; the file is 200 larger.
    assert used[1] - used[0] < 60, used


# Lines that do not fit


def test_the_batches_before_a_bad_line_are_in_and_nothing_of_its_own(cli, orders, small_batches):
    lines = json_lines(*({"order_id": f"o-{n}"} for n in range(1, 5))) + '{"order_id": oops}\n' + json_lines(PLACED)

    assert cli("topic", "append", "orders", "-", stdin=lines).error == [
        "mainstem.InvalidRows: line 5 is not JSON",
        (
            "Detail: Expecting value at character 14. The line is: '{\"order_id\": oops}'. "
            'Lines 1 to 3 are in topic "orders" (3 rows), none after.'
        ),
        (
            "Hint: Correct the line. With --rejected FILE such lines go there and the rest is appended. "
            "Continue with: --from-line 4"
        ),
    ]
    assert rows(orders, "order_id") == ["o-1", "o-2", "o-3"]

    mended = lines.replace("oops", '"o-5"')
    assert cli("topic", "append", "orders", "-", "--from-line", "4", stdin=mended).out == "appended 3 rows to orders\n"
    assert sorted(rows(orders, "order_id")) == ["o-1", "o-1", "o-2", "o-3", "o-4", "o-5"]


def test_rejected_lines_go_to_a_file_and_the_rest_goes_in(cli, orders, place, small_batches):
    good = [{"order_id": f"o-{n}"} for n in range(1, 6)]
    lines = [
        json_lines(good[0]), "{broken\n", json_lines(good[1]), json_lines({"order_id": "x", "amount": "much"}),
        json_lines(good[2]), json_lines({"order_id": "y", "stroe": 1}), json_lines(good[3]), '"text"\n', json_lines(good[4]),
    ]  # fmt: skip

    said = cli("topic", "append", "orders", "-", "--rejected", "bad.jsonl", stdin="".join(lines))

    assert said == (0, "appended 5 rows to orders; 4 rejected to bad.jsonl\n", "")
    assert rows(orders, "order_id") == ["o-1", "o-2", "o-3", "o-4", "o-5"]
    entries = [json.loads(line) for line in (place / "bad.jsonl").read_text().splitlines()]
    assert [(entry["line"], entry["text"] + "\n") for entry in entries] == [(n, lines[n - 1]) for n in (2, 4, 6, 8)]
    assert [entry["reason"].partition(". ")[0] for entry in entries] == [
        "line 2 is not JSON",
        'line 4: column "amount" is DOUBLE, got the text "much"',
        'line 6: topic "orders" has no column "stroe"',
        "line 8 is not a JSON object",
    ]


def test_bytes_that_are_no_text_survive_in_the_rejected(cli, orders, place):
    cli("topic", "append", "orders", "-", "--rejected", "bad.jsonl", stdin=b'{"order_id": "\xff"}\n')

    entry = json.loads((place / "bad.jsonl").read_text())
    assert entry["text"].encode("utf-8", "surrogateescape") == b'{"order_id": "\xff"}'


def test_an_arrow_row_that_cannot_be_read_goes_to_the_rejected_alone(cli, orders, place):
    table = pa.table({"order_id": text(b"o-1", b"\xff", b"o-3")})
    with pa.OSFile(str(place / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)

    said = cli("topic", "append", "orders", "rows.arrow", "--rejected", "bad.jsonl")

    assert said == (0, "appended 2 rows to orders; 1 rejected to bad.jsonl\n", "")
    assert rows(orders, "order_id") == ["o-1", "o-3"]
    entry = json.loads((place / "bad.jsonl").read_text())
    assert entry["values"]["order_id"].startswith("<unreadable: ")


def test_without_bad_lines_there_is_no_file_of_rejected(cli, orders, place):
    cli("topic", "append", "orders", "-", "--rejected", "bad.jsonl", stdin=json_lines(PLACED))

    assert not (place / "bad.jsonl").exists()


def test_many_bad_rows_of_a_parquet_file_are_found(cli, stem, place):
    counts = stem.create_topic("counts", schema="n TINYINT")
    pq.write_table(pa.table({"n": list(range(1000))}), place / "counts.parquet")

    said = cli("topic", "append", "counts", "counts.parquet", "--rejected", "bad.jsonl")

    assert said.out == "appended 128 rows to counts; 872 rejected to bad.jsonl\n"
    assert sorted(rows(counts, "n")) == list(range(128))
    first = json.loads((place / "bad.jsonl").read_text().splitlines()[0])
    assert (first["row"], first["values"]) == (129, {"n": 128})
    assert first["reason"].startswith('row 129: 128 does not fit column "n", which is TINYINT.')


def test_text_that_is_not_closed_is_said_once(cli, orders):
    _, detail, _ = cli("topic", "append", "orders", "-", stdin='{"order_id": "x').error

    assert detail.startswith("Detail: Unterminated string at character 14. ")
