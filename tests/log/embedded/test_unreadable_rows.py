"""Rows that an older Mainstem took, and that not everybody can read: they take no other row with them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import mainstem
from mainstem.clock import ManualClock
from mainstem.errors import InvalidRows
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.rows.plain_values import column_values, plain_writer
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.topic import Topic
from mainstem.log.topic_copy import copy_topic
from mainstem.stem import Mainstem
from tests.log.test_readable_values import LAST, UTC_TIME, numbers, text

TIMES = numbers([0, LAST + 1, 5], UTC_TIME)
TEXTS = text(b"x", b"\xff\xfe", b"z")


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
        yield opened


@pytest.fixture(params=["blocks", "sealed"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def older(stem: Mainstem, form: str, *, times: pa.Array | None = None, texts: pa.Array | None = None) -> Topic:
    """A topic with three rows, put into it below the checks; the second cannot be read."""
    topic = stem.create_topic("orders", schema="k STRING, placed_at TIMESTAMP, note STRING", key="k")
    batch = pa.record_batch(
        {
            "k": ["a", "b", "c"],
            "placed_at": numbers([0, 1, 2], UTC_TIME) if times is None else times,
            "note": ["x", "y", "z"] if texts is None else texts,
        }
    )
    topic.backend.append(CheckedRows(batch, topic.settings))
    if form == "sealed":
        topic.seal()
    return topic


@pytest.mark.parametrize(
    ("given", "column", "reason"),
    [
        (
            {"times": TIMES},
            "placed_at",
            'column "placed_at": its year is not one of 1 to 9999; an older Mainstem took it',
        ),
        ({"texts": TEXTS}, "note", 'column "note": its bytes are not UTF-8; an older Mainstem took it'),
    ],
)
def test_a_queue_gives_out_the_others_and_rejects_it(
    stem: Mainstem, form: str, given: dict[str, pa.Array], column: str, reason: str
) -> None:
    topic = older(stem, form, **given)
    queue = topic.queue("emails", deliveries_max=1)
    messages = queue.take(10)
    assert [message.row["k"] for message in messages] == ["a", "c"]
    queue.acknowledge(messages)
    [rejected] = stem.topic(queue.rejected_topic).to_arrow().to_pylist()
    assert (rejected["k"], rejected[column], rejected["rejection"]["offset"]) == ("b", None, 1)
    assert (rejected["rejection"]["cause"], rejected["rejection"]["reason"]) == ("rejected", reason)
    assert queue.take(10) == []


def test_a_take_that_finds_only_such_a_row_goes_on_to_the_next(stem: Mainstem, form: str) -> None:
    queue = older(stem, form, texts=TEXTS).queue("emails")
    assert [[message.row["k"] for message in queue.take(1)] for _ in range(3)] == [["a"], ["c"], []]


def test_sql_answers_or_names_the_row_and_the_column(stem: Mainstem) -> None:
    older(stem, "sealed", texts=TEXTS)
    assert stem.query("SELECT k FROM orders ORDER BY k").column("k").to_pylist() == ["a", "b", "c"]
    with pytest.raises(InvalidRows) as named:
        stem.query("SELECT max(note) FROM orders")
    assert (
        named.value.summary == 'record 1 of "orders" partition 0 cannot be read: column "note", its bytes are not UTF-8'
    )


def test_sql_over_times_of_any_year_answers(stem: Mainstem, form: str) -> None:
    older(stem, form, times=TIMES)
    assert stem.query("SELECT k FROM orders WHERE placed_at IS NOT NULL ORDER BY k").column("k").to_pylist() == [
        "a",
        "b",
        "c",
    ]


def test_a_copy_names_the_record(stem: Mainstem, tmp_path: Path, clock: ManualClock) -> None:
    topic = older(stem, "sealed", times=TIMES)
    other = EmbeddedLog(tmp_path / "other", clock=clock)
    with pytest.raises(InvalidRows, match='record 1 of "orders" partition 0 cannot be copied: column "placed_at"'):
        copy_topic(topic, other)
    other.close()


def test_what_is_shown_of_the_others_stays_as_it_is(stem: Mainstem, form: str) -> None:
    rows = older(stem, form, times=TIMES, texts=TEXTS).to_arrow()
    times, notes = (
        column_values(rows.column(name), plain_writer(rows.column(name).type)) for name in ("placed_at", "note")
    )
    assert [times[0], times[2], notes[0], notes[2]] == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000005Z", "x", "z"]
    assert times[1] == f"<unreadable: timestamp[us, tz=UTC] {LAST + 1}>"
    assert notes[1] == "<unreadable: \ufffd\ufffd>"


def test_what_is_shown_of_a_nested_value_is_all_but_what_cannot_be_read() -> None:
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["a", "b", "c"]), TIMES)
    structs = pa.StructArray.from_arrays([pa.array([1, 2]), maps], ["n", "m"])
    unread = f"<unreadable: timestamp[us, tz=UTC] {LAST + 1}>"
    assert column_values(structs, plain_writer(structs.type)) == [
        {"n": 1, "m": {"a": "1970-01-01T00:00:00Z"}},
        {"n": 2, "m": {"b": unread, "c": "1970-01-01T00:00:00.000005Z"}},
    ]
