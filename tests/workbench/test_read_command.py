"""mainstem topic read: where from, where to, which columns, in which form."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.workbench.conftest import json_lines
from tests.workbench.test_main import COMMAND


@pytest.fixture
def numbers(stem):
    """A topic of one partition with the numbers 0 to 9, appended two at a time."""
    topic = stem.create_topic("numbers", schema="n INT, word STRING")
    for n in range(0, 10, 2):
        topic.append([{"n": n, "word": f"w{n}"}, {"n": n + 1, "word": f"w{n + 1}"}])
    return topic


def read(cli, *arguments: str) -> list[int]:
    said = cli("topic", "read", "numbers", "--format", "json", *arguments)
    assert (said.status, said.err) == (0, "")
    return [row["n"] for row in said.lines]


def test_everything_from_the_start(cli, numbers):
    assert read(cli) == list(range(10))


def test_from_and_to_offsets(cli, numbers):
    assert read(cli, "--start", "0:3", "--stop", "0:6") == [3, 4, 5]


def test_from_and_to_words(cli, numbers):
    assert read(cli, "--start", "latest") == []
    assert read(cli, "--start", "earliest", "--stop", "latest", "--limit", "3") == [0, 1, 2]


def test_from_and_to_a_time(cli, numbers):
    times = numbers.to_arrow().column("record").combine_chunks().field("appended_at").to_pylist()

    assert read(cli, "--start", times[4].isoformat(), "--stop", times[8].isoformat()) == [4, 5, 6, 7]
    assert read(cli, "--start", (times[-1] + timedelta(hours=1)).isoformat()) == []
    assert read(cli, "--stop", "2020-01-01T00:00:00+02:00") == []


def test_from_and_to_a_token(cli, numbers):
    token = numbers.append([{"n": 10}]).token
    numbers.append([{"n": 11}])

    assert read(cli, "--start", token) == [11]
    assert read(cli, "--start", "0:9", "--stop", token) == [9, 10]


def test_some_columns(cli, numbers):
    said = cli("topic", "read", "numbers", "--columns", "word", "--limit", "1", "--format", "json", "--record", "hide")

    assert said.lines == [{"word": "w0"}]


def test_json_shows_every_type_as_a_program_can_read_it(cli, stem):
    topic = stem.create_topic(
        "types",
        schema="""b BOOLEAN, i BIGINT, d DOUBLE, p DECIMAL(6, 2), s STRING, x BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
        list ARRAY<INT>, map MAP<STRING, INT>, pairs MAP<INT, STRING>, struct STRUCT<a: INT, x: BINARY>""",
    )
    at = datetime(2026, 1, 1, 9, 0, 0, 250_000, tzinfo=UTC)
    row = {
        "b": True, "i": 1 << 60, "d": float("inf"), "p": Decimal("12.50"), "s": 'Köln "a"\n', "x": b"\xff\x00",
        "day": at.date(), "at": at, "local": at.replace(tzinfo=None), "list": [1, None], "map": {"a": 1},
        "pairs": [(1, "a")], "struct": {"a": None, "x": b"\x01"},
    }  # fmt: skip
    topic.append([row])

    [shown] = cli("topic", "read", "types", "--format", "json", "--record", "hide").lines

    assert shown == {
        "b": True, "i": 1 << 60, "d": "Infinity", "p": "12.50", "s": 'Köln "a"\n', "x": "/wA=", "day": "2026-01-01",
        "at": "2026-01-01T09:00:00.250000Z", "local": "2026-01-01T09:00:00.250000", "list": [1, None], "map": {"a": 1},
        "pairs": [[1, "a"]], "struct": {"a": None, "x": "AQ=="},
    }  # fmt: skip


def test_json_has_the_record(cli, numbers):
    numbers.append([{"n": 10, "record": {"change": "update", "headers": [{"key": "trace", "value": b"7"}]}}])

    record = cli("topic", "read", "numbers", "--format", "json", "--start", "0:10").lines[0]["record"]

    assert record.pop("appended_at").endswith("Z")
    assert record == {"partition": 0, "offset": 10, "change": "update", "headers": [{"key": "trace", "value": "Nw=="}]}


def test_csv(cli, stem):
    topic = stem.create_topic("cells", schema="a STRING, b DOUBLE, c ARRAY<STRING>")
    topic.append([{"a": 'x, "y"', "b": 1.5, "c": ["p", "q"]}, {"a": "", "b": None, "c": None}, {"a": None, "b": 2.0}])

    assert cli("topic", "read", "cells", "--format", "csv", "--record", "hide").out == (
        'a,b,c\n"x, ""y""",1.5,"[""p"", ""q""]"\n"",,\n,2.0,\n'
    )
    assert cli("topic", "read", "cells", "--format", "csv", "--columns", "b", "--start", "0:2").out.startswith(
        "b,record.partition,record.offset,record.appended_at,record.change,record.headers\n2.0,0,2,"
    )
    assert cli("topic", "read", "cells", "--format", "csv", "--start", "latest", "--record", "hide").out == "a,b,c\n"


def test_arrow_is_a_stream_with_the_topics_types(numbers, place):
    command = [*COMMAND, "topic", "read", "numbers", "--format", "arrow"]
    table = pa.ipc.open_stream(io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)).read_all()

    assert table.equals(numbers.to_arrow())


def test_arrow_is_not_for_a_terminal(cli, numbers, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert cli("topic", "read", "numbers", "--format", "arrow").error[0] == (
        "mainstem.Invalid: Arrow would be bytes on the terminal"
    )


def test_a_table_shows_where_and_when(cli, numbers):
    numbers.append([{"n": 10, "record": {"change": "delete"}}])

    said = cli("topic", "read", "numbers", "--start", "0:9")

    heading, _, first, second = said.out.splitlines()
    assert (said.status, said.err) == (0, "")
    assert heading.split() == ["n", "word", "record", "appended_at"]
    assert first.split()[:3] == ["9", "w9", "0:9"]
    assert second.split()[:4] == ["10", "null", "0:10", "delete"]


def test_a_table_of_nothing_says_so(cli, numbers):
    assert cli("topic", "read", "numbers", "--start", "latest") == (0, "", "no rows\n")


def test_what_acts_on_a_terminal_is_written_out(cli, numbers):
    numbers.append([{"n": 10, "word": "a\x1b[2J\nb[red]c"}])

    assert "a\\x1b[2J\\nb[red]c" in cli("topic", "read", "numbers", "--start", "0:10").out


# Following


def test_follow_shows_what_is_there_and_what_comes(numbers, place):
    command = subprocess.Popen(
        [*COMMAND, "topic", "read", "numbers", "--follow", "--start", "0:8", "--limit", "4", "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    there = [json.loads(command.stdout.readline())["n"] for _ in range(2)]
    numbers.append([{"n": 10}, {"n": 11}, {"n": 12}])
    came = [json.loads(line)["n"] for line in command.stdout]

    assert (there, came, command.wait()) == ([8, 9], [10, 11], 0)
    command.stdout.close()


def test_follow_begins_with_what_comes(numbers, place):
    command = subprocess.Popen(
        [*COMMAND, "topic", "append", "numbers", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert command.stdin is not None
    seen = numbers.follow(wait="60 seconds")
    command.stdin.write(json_lines({"n": 10}))
    command.stdin.close()

    assert next(seen).column("n").to_pylist() == [10]
    assert command.wait() == 0


@pytest.mark.parametrize("option", [["--stop", "latest"], ["--archive", "old"]])
def test_follow_has_no_end(cli, numbers, option):
    assert cli("topic", "read", "numbers", "--follow", *option).status == 2


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--start", "yesterday"], 'Invalid: --start "yesterday" is not a position'),
        (["--start", "erliest"], 'Invalid: --start "erliest" is not a position'),
        (["--stop", "2026-01-01T09:00:00"], 'Invalid: --stop "2026-01-01T09:00:00" has no time zone'),
        (["--start", "0:1,0:2"], 'Invalid: --start "0:1,0:2" names a partition twice'),
        (["--start", "7:1"], "Invalid: partition 7 cannot be chosen here"),
        (["--start", "other@0:1"], 'Invalid: the token is not for topic "numbers"'),
        (["--columns", "wrd"], 'Invalid: topic "numbers" has no column "wrd"'),
    ],
)
def test_a_position_or_column_that_cannot_be(cli, numbers, arguments, complaint):
    error = cli("topic", "read", "numbers", *arguments).error

    assert error[0] == f"mainstem.{complaint}"
    assert len(error) == 3


def test_a_time_without_a_zone_is_told_how_to_have_one(cli, numbers):
    assert cli("topic", "read", "numbers", "--start", "2026-01-01 09:00").error[1:] == [
        "Detail: Without a time zone it does not name one moment.",
        "Hint: For UTC write 2026-01-01T09:00:00Z; for another zone add its offset, as in 2026-01-01T09:00:00+02:00",
    ]


@pytest.fixture
def dropped(stem, place):
    """A topic whose first records are no longer kept, but in an archive."""
    topic = stem.create_topic("short", schema="n INT, pad STRING", archive=str(place / "old"))
    for n in range(4):
        topic.append([{"n": n, "pad": "x" * 5000}])
        topic.seal()
    topic.alter(keep="10 KiB")
    topic.drop_expired()
    assert topic.backend.earliest(0) > 0
    return topic


def test_what_is_no_longer_kept_is_told_with_the_range(cli, dropped, place):
    kept = dropped.backend.earliest(0)

    error = cli("topic", "read", "short", "--start", "0:0", "--format", "json").error

    assert error[0].startswith("mainstem.FellOff: ")
    assert f"0 to {kept - 1}" in error[0] + error[1]
    assert error[2] == (
        f"Hint: Start at the first retained records: --start 0:{kept}. "
        f"Dropped records may be in the archive: --archive {place}/old"
    )


def test_an_archive_has_what_is_no_longer_kept(cli, dropped):
    assert len(cli("topic", "read", "short", "--format", "json").lines) < 4
    archived = cli("topic", "read", "short", "--format", "json", "--archive", "old", "--columns", "n").lines

    assert [row["n"] for row in archived] == [0, 1, 2, 3]


def test_a_queue_that_fell_off_is_told_how_to_go_on(cli, stem, place):
    topic = stem.create_topic("short", schema="n INT, pad STRING")
    topic.queue("work")
    for n in range(4):
        topic.append([{"n": n, "pad": "x" * 5000}])
        topic.seal()
    topic.alter(keep="10 KiB")
    topic.drop_expired()
    kept = topic.backend.earliest(0)

    error = cli("queue", "take", "short", "work").error

    assert error[0].startswith("mainstem.FellOff: ")
    assert error[2] == (
        f"Hint: Continue with the first retained record: mainstem queue rewind short work --to 0:{kept}"
    )
    assert cli("queue", "rewind", "short", "work", "--to", f"0:{kept}").status == 0
    assert cli("queue", "take", "short", "work", "--format", "json").lines[0]["offset"] == kept
