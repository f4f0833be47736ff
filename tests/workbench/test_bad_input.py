"""Everything a person may give that cannot be: three lines, the line of the file, and nothing half done."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mainstem
from mainstem.workbench.cli import row_files
from tests.workbench.conftest import json_lines

SCHEMA = """
    id STRING NOT NULL, n INT, small FLOAT, price DECIMAL(6, 2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, ok BOOLEAN,
    raw BINARY, address STRUCT<zip: STRING, city: STRING>, counts MAP<STRING, INT>
"""
REJECTED = "With --rejected FILE such lines go there and the rest is appended."


@pytest.fixture
def things(stem):
    return stem.create_topic("things", schema=SCHEMA, key="id", record_bytes_max="1 MiB")


def line(**columns) -> str:
    return json.dumps({"id": "a", **columns})


BAD_LINES = {
    "unknown column": (
        line(prise=5),
        'SchemaMismatch: line 2: topic "things" has no column "prise"',
        "The columns are: id, n, small, price, at, day, tags, ok, raw, address, counts.",
        'Did you mean "price"?',
    ),
    "unknown field": (
        line(address={"zip": "1", "town": "x"}),
        'SchemaMismatch: line 2: topic "things" has no column "address.town"',
        '"address" has: zip, city.',
        "Leave it out, or add the column to the topic first.",
    ),
    "missing column": (
        '{"n": 5}',
        'InvalidRows: line 2: column "id" is NOT NULL, got null',
        "The row has no value for it, or null.",
        'Give it a value. A row that deletes its key needs none: {"record": {"change": "delete"}}.',
    ),
    "wrong type": (
        line(n="five"),
        'InvalidRows: line 2: column "n" is INT, got the text "five"',
        'The line is: \'{"id": "a", "n": "five"}\'.',
        "Write a whole number, without quotes.",
    ),
    "number for text": (
        '{"id": 5}',
        'InvalidRows: line 2: column "id" is STRING, got the number 5',
        "The line is: '{\"id\": 5}'.",
        "Write text, in quotes.",
    ),
    "number for a truth": (
        line(ok=1),
        'InvalidRows: line 2: column "ok" is BOOLEAN, got the number 1',
        'The line is: \'{"id": "a", "ok": 1}\'.',
        "Write true or false.",
    ),
    "object for a list": (
        line(tags={"a": 1}),
        'InvalidRows: line 2: column "tags" is ARRAY<STRING>, got an object',
        'The line is: \'{"id": "a", "tags": {"a": 1}}\'.',
        "Write a list: [...].",
    ),
    "list for an object": (
        line(address=["x"]),
        'InvalidRows: line 2: column "address" is STRUCT<zip: STRING, city: STRING>, got a list',
        'The line is: \'{"id": "a", "address": ["x"]}\'.',
        "Write an object with: zip, city.",
    ),
    "no map": (
        line(counts=[1]),
        'InvalidRows: line 2: column "counts" is MAP<STRING, INT>, got a list',
        'The line is: \'{"id": "a", "counts": [1]}\'.',
        "Write an object, or a list of [key, value] pairs.",
    ),
    "time without a zone": (
        line(at="2026-01-01T09:00:00"),
        'InvalidRows: line 2: column "at" is TIMESTAMP, got the text "2026-01-01T09:00:00"',
        'The line is: \'{"id": "a", "at": "2026-01-01T09:00:00"}\'.',
        'Write a time with its zone, to the microsecond at most: "2026-01-01T09:00:00Z".',
    ),
    "time too fine": (
        line(at="2026-01-01T09:00:00.1234567Z"),
        'InvalidRows: line 2: column "at" is TIMESTAMP, got the text "2026-01-01T09:00:00.1234567Z"',
        'The line is: \'{"id": "a", "at": "2026-01-01T09:00:00.1234567Z"}\'.',
        'Write a time with its zone, to the microsecond at most: "2026-01-01T09:00:00Z".',
    ),
    "no such day": (
        line(day="2026-02-30"),
        'InvalidRows: line 2: column "day" is DATE, got the text "2026-02-30"',
        'The line is: \'{"id": "a", "day": "2026-02-30"}\'.',
        'Write a date as in "2026-01-31".',
    ),
    "no base64": (
        line(raw="*"),
        'InvalidRows: line 2: column "raw" is BINARY, got the text "*"',
        'The line is: \'{"id": "a", "raw": "*"}\'.',
        "Write the bytes in base64.",
    ),
    "out of range": (
        line(n=3_000_000_000),
        'InvalidRows: line 2: 3000000000 does not fit column "n", which is INT',
        "INT holds whole numbers from -2147483648 to 2147483647.",
        "Correct the row, or widen the column.",
    ),
    "no whole number": (
        line(n=1.5),
        'InvalidRows: line 2: 1.5 does not fit column "n", which is INT',
        "INT holds whole numbers from -2147483648 to 2147483647.",
        "Correct the row, or widen the column.",
    ),
    "too many digits": (
        line(price="12345.67"),
        'InvalidRows: line 2: 12345.67 does not fit column "price", which is DECIMAL(6, 2)',
        "DECIMAL(6, 2) has 4 digits before the point and 2 after it.",
        "Correct the row, or widen the column.",
    ),
    "would be infinite": (
        line(small=1e300),
        'InvalidRows: line 2: 1e+300 does not fit column "small", which is FLOAT',
        "It would become infinite.",
        "Correct the row, or widen the column.",
    ),
    "record too large": (
        line(tags=["x" * (1 << 20)]),
        "InvalidRows: line 2 has 1048642 bytes, more than the maximum size of a record",
        'record_bytes_max of topic "things" is 1 MiB.',
        "Store large values elsewhere and their address here, or raise record_bytes_max.",
    ),
    "broken JSON": (
        '{"id": "a",}',
        "InvalidRows: line 2 is not JSON",
        'Expecting property name enclosed in double quotes at character 12. The line is: \'{"id": "a",}\'.',
        "Correct the line.",
    ),
    "half an object": (
        "{",
        "InvalidRows: line 2 is not JSON",
        "Expecting property name enclosed in double quotes at character 2. The line is: '{'.",
        "Write each object on one line; jq -c . does that.",
    ),
    "a list": (
        '[{"id": "a"}]',
        "InvalidRows: line 2 is not a JSON object",
        'The line is: \'[{"id": "a"}]\'.',
        "Write one object per line. A list becomes lines with jq -c '.[]'.",
    ),
    "a word that is no JSON": (
        '{"id": "a", "small": NaN}',
        "InvalidRows: line 2 is not JSON",
        'NaN is not JSON; write it as text: "NaN". The line is: \'{"id": "a", "small": NaN}\'.',
        "Correct the line.",
    ),
    "nested without end": (
        "[" * 100_000,
        "InvalidRows: line 2 is not JSON",
        f"It is nested too deeply. The line is: '{'[' * 59}....",
        "Write each object on one line; jq -c . does that.",
    ),
    "unknown change": (
        line(record={"change": "upsert"}),
        "InvalidRows: line 2: record.change is 'upsert'",
        "A change is one of: insert, update, delete.",
        "Leave it out for an insert.",
    ),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_cannot_be(cli, things, name):
    text, what, facts, remedy = BAD_LINES[name]

    said = cli("topic", "append", "things", "-", stdin=f'{{"id": "first"}}\n{text}\n{{"id": "last"}}\n')

    first, second, third = said.error
    assert first.startswith(f"mainstem.{what}")
    assert second == f"Detail: {facts} Nothing was written."
    assert third == f"Hint: {remedy} {REJECTED}"
    assert things.to_arrow().num_rows == 0


@pytest.mark.parametrize("name", BAD_LINES)
def test_with_rejected_the_others_go_in(cli, things, place, name):
    text, what, _, _ = BAD_LINES[name]
    data = f'{{"id": "first"}}\n{text}\n{{"id": "last"}}\n'

    said = cli("topic", "append", "things", "-", "--rejected", "bad", stdin=data)

    assert said == (0, "appended 2 rows to things; 1 rejected to bad\n", "")
    entry = json.loads((place / "bad").read_text())
    assert (entry["line"], entry["text"]) == (2, text)
    assert entry["reason"].startswith(what.partition(": ")[2])


def test_bytes_that_are_no_text(cli, things):
    assert cli("topic", "append", "things", "-", stdin=b'{"id": "\xe4"}\n').error == [
        "mainstem.InvalidRows: line 1 is not UTF-8",
        'Detail: Byte 9 of it is 0xe4. The line is: b\'{"id": "\\xe4"}\'. Nothing was written.',
        f"Hint: Convert the file first, for instance with iconv -f LATIN1 -t UTF-8. {REJECTED}",
    ]


def test_a_file_without_line_ends(cli, things, monkeypatch):
    monkeypatch.setattr(row_files, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(row_files, "ROWS_MAX", 1)

    assert cli("topic", "append", "things", "-", stdin='{"id": "a"}\n' + "x" * 2000).error == [
        "mainstem.InvalidRows: line 2 is longer than 1000 bytes",
        (
            "Detail: No record of a topic can be that long; perhaps the file has no line ends, or is of another format. "
            'Lines 1 to 1 are in topic "things" (1 row), none after.'
        ),
        (
            "Hint: Write one row per line, or name the format: --format json|csv|parquet|arrow. "
            "Continue with: --from-line 2"
        ),
    ]


BAD_CSV = {
    "unknown column": ("id,m\na,1\n", 'SchemaMismatch: line 1: topic "things" has no column "m"'),
    "a column twice": ("id,n,n\na,1,1\n", "InvalidRows: line 1 names a column twice, or not at all"),
    "wrong type": ("id,n\na,x\n", 'InvalidRows: line 2: column "n" is INT, got the text "x"'),
    "too few cells": ("id,n\na\n", "InvalidRows: line 2 has 1 cell, not 2"),
    "too many cells": ("id,n\na,1,2\n", "InvalidRows: line 2 has 3 cells, not 2"),
    "an open quote": (
        'id,n\n"a,1\nb,2\n',
        "InvalidRows: line 2 has a misplaced or unclosed quote",
    ),
    "a quote inside": (
        'id,n\n"a"b,1\n',
        "InvalidRows: line 2 has a misplaced or unclosed quote",
    ),
    "a required cell empty": ("id,n\na,1\n,2\n", 'InvalidRows: line 3: column "id" is NOT NULL, got null'),
    "the line of a row after a long one": (
        'id,n\n"a\nb",1\nc,x\n',
        'InvalidRows: line 4: column "n" is INT, got the text "x"',
    ),
    "no JSON in a cell": (
        'id,tags\na,"[1"\n',
        'InvalidRows: line 2: column "tags" is ARRAY<STRING>, got the text "[1"',
    ),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_a_csv_file_that_cannot_be(cli, things, name):
    text, what = BAD_CSV[name]

    error = cli("topic", "append", "things", "-", "--format", "csv", stdin=text).error

    assert error[0] == f"mainstem.{what}"
    assert "Nothing was written." in error[1]
    assert things.to_arrow().num_rows == 0


def test_a_parquet_file_of_other_columns(cli, things, place):
    pq.write_table(pa.table({"id": ["a"], "n": ["text"]}), place / "rows.parquet")

    assert cli("topic", "append", "things", "rows.parquet").error == [
        'mainstem.SchemaMismatch: column "n" is INT, got string',
        "Detail: Values are converted only where they stay exactly the same. Nothing was written.",
        "Hint: Cast the column to int32 first.",
    ]


def test_a_file_of_another_format(cli, things, place):
    (place / "rows.parquet").write_text('{"id": "a"}\n')
    (place / "rows.txt").write_text('{"id": "a"}\n')

    assert cli("topic", "append", "things", "rows.parquet").error[::2] == [
        'mainstem.Invalid: "rows.parquet" cannot be read as parquet',
        "Hint: Is it another format? --format json|csv|parquet|arrow",
    ]
    assert cli("topic", "append", "things", "rows.txt").error == [
        'mainstem.Invalid: the format of "rows.txt" is unknown',
        "Detail: Known suffixes: .json, .jsonl, .ndjson, .csv, .parquet, .arrow, .arrows, .feather, .ipc.",
        "Hint: Name it: --format json|csv|parquet|arrow",
    ]
    assert cli("topic", "append", "things", "rows.txt", "--format", "json").status == 0


def test_a_file_that_is_not_there(cli, things):
    assert cli("topic", "append", "things", "gone.csv").error[0] == (
        'mainstem.Unavailable: "gone.csv" cannot be used: No such file or directory'
    )


def test_a_null_key_in_a_compacted_topic(cli, stem):
    stem.create_topic("latest", schema="k STRING, v INT", key="k", keep="latest per key")

    assert cli("topic", "append", "latest", "-", stdin=json_lines({"k": "a"}, {"v": 1})).error == [
        'mainstem.InvalidRows: line 2: the key of topic "latest" is null',
        "Detail: The key is k, and a compacted topic keeps the latest record per key. Nothing was written.",
        f"Hint: Give k a value. {REJECTED}",
    ]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("../orders", 'topic name "../orders" holds "/"'),
        ("a/b", 'topic name "a/b" holds "/"'),
        ("..", 'topic name ".." begins with "."'),
        ("n" * 300, f'topic name "{"n" * 60}..." is 300 bytes long'),
        ("оrders", 'topic name "оrders" holds "о" (U+043E CYRILLIC SMALL LETTER O)'),
        ("nul", 'topic name "nul" is the device "nul" to Windows'),
        ("mainstem.own", 'topic name "mainstem.own" begins with "mainstem."'),
    ],
)
def test_names_with_tricks(cli, place, name, complaint):
    before = sorted(place.parent.iterdir())

    error = cli("topic", "create", name, "--schema", "n INT").error

    assert error[0] == f"mainstem.InvalidName: {complaint}"
    assert len(error) == 3
    assert cli("topic", "append", name, "-", stdin='{"n": 1}').status == 1
    with mainstem.open("shop") as stem:
        assert (sorted(place.parent.iterdir()), stem.topics()) == (before, [])


@pytest.mark.parametrize("noun", ["group", "queue"])
def test_names_of_groups_and_queues_with_tricks(cli, things, noun):
    error = cli(noun, "describe", "things", "../other").error

    assert error[0] == f'mainstem.InvalidName: {noun} name "../other" holds "/"'
