"""Batches into a topic: what counts as held, what does not fit, and where it goes."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import mainstem
from mainstem import Mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Fenced, InvalidRows
from mainstem.spark.checkpoint.rejected_rows import TEXT_MAX, RejectedRows
from mainstem.spark.sources.topic_writer import APPENDS_MAX, TopicWriter, fitting_rows
from tests.log.test_readable_values import text

RUN = FlowRun("copies", 1)


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
        opened.create_topic("copies", schema="id BIGINT, note STRING, small TINYINT", partitions=3)
        (tmp_path / "metadata").write_text('{"id": "one"}')
        yield opened


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "note": [f"n-{n}" for n in numbers], "small": list(numbers)})


def writer_of(stem: Mainstem) -> TopicWriter:
    return TopicWriter(stem.log, stem.topic("copies"), RUN)


def ids(stem: Mainstem, topic: str) -> list[int]:
    return sorted(stem.topic(topic).to_arrow(columns=["id"]).column("id").to_pylist())


def test_a_batch_whose_transaction_was_aborted_is_not_held(stem: Mainstem) -> None:
    writer = writer_of(stem)
    writer.append(rows(1, 2), Batch(0, RUN))
    transaction = writer._producer.transaction()
    transaction.append("copies", rows(3, 4), sequence=1 * APPENDS_MAX)
    # The next run aborts what this one left open.
    later = writer_of(stem)

    assert (later.committed_batch, writer._producer.last_sequence("copies")) == (0, 0)
    later.append(rows(3, 4), Batch(1, RUN))
    assert (later.committed_batch, ids(stem, "copies")) == (1, [1, 2, 3, 4])
    with pytest.raises(Fenced):
        transaction.commit()


def test_an_interrupted_batch_is_done_again_over_more_partitions_and_older_ones_are_repeats(stem: Mainstem) -> None:
    writer = writer_of(stem)
    for number in range(3):
        writer.append(rows(number), Batch(number, RUN))
    transaction = writer._producer.transaction()
    transaction.append("copies", rows(3, 4), sequence=3 * APPENDS_MAX)
    stem.topic("copies").alter(partitions=8)

    later = writer_of(stem)
    for number in (3, 3, 1, 0):
        # A batch with rows of another one is not appended: it is there.
        later.append(rows(3, 4), Batch(number, RUN))
    assert (later.committed_batch, ids(stem, "copies")) == (3, [0, 1, 2, 3, 4])


def test_what_does_not_fit_is_rejected_once_however_often_the_batch_is_done(stem: Mainstem, tmp_path: Path) -> None:
    rejected = RejectedRows(stem.log, str(tmp_path), sink="topic copies", topics=["orders"])
    for _ in range(3):
        written = writer_of(stem).append(rows(1, 200, 2, 300), Batch(4, RUN, rejected=rejected))
        assert (written.rows, written.rejected) == (2, 2)

    assert (ids(stem, "copies"), ids(stem, "copies.rejected")) == ([1, 2], [200, 300])
    assert (
        writer_of(stem).committed_batch,
        writer_of(stem).append(rows(400), Batch(5, RUN, rejected=rejected)).rejected,
    ) == (
        4,
        1,
    )
    assert ids(stem, "copies.rejected") == [200, 300, 400]


def test_a_checkpoint_made_anew_rejects_anew(stem: Mainstem, tmp_path: Path) -> None:
    writer_of(stem).append(rows(200), Batch(7, RUN, rejected=RejectedRows(stem.log, str(tmp_path), sink="x")))
    (tmp_path / "metadata").write_text('{"id": "another"}')
    writer_of(stem).append(rows(300), Batch(0, RUN, rejected=RejectedRows(stem.log, str(tmp_path), sink="x")))

    assert ids(stem, "copies.rejected") == [200, 300]


def test_columns_that_do_not_fit_beside_older_ones_are_in_the_text(stem: Mainstem, tmp_path: Path) -> None:
    rejected = RejectedRows(stem.log, str(tmp_path), sink="topic copies")
    writer_of(stem).append(rows(200), Batch(0, RUN, rejected=rejected))
    changed = pa.table({"id": [201], "note": ["y" * TEXT_MAX], "small": ["text"], "added": [1.5]})
    rejected.append(changed, [*fitting_rows(rows(200), stem.topic("copies").settings)[1]], Batch(1, RUN))
    found = stem.topic("copies.rejected").to_arrow().to_pylist()[1]

    assert (found["id"], found["small"], found["added"]) == (None, None, None)
    assert found["row"].startswith('{"id": 201, "note": "yyy')
    assert len(found["row"]) < TEXT_MAX
    changed = changed.set_column(1, "note", [["short"]])
    rejected.append(changed, [*fitting_rows(rows(200), stem.topic("copies").settings)[1]], Batch(2, RUN))
    found = stem.topic("copies.rejected").to_arrow().to_pylist()[2]
    assert (found["id"], found["small"], found["added"]) == (201, None, 1.5)
    assert found["row"] == '{"id": 201, "note": "short", "small": "text", "added": 1.5}'


def test_without_a_place_for_them_rows_that_do_not_fit_are_an_error(stem: Mainstem) -> None:
    with pytest.raises(InvalidRows, match="cannot store 1 rows"):
        writer_of(stem).append(rows(1, 200), Batch(0, RUN))
    assert (ids(stem, "copies"), writer_of(stem).committed_batch) == ([], -1)


def test_every_row_that_does_not_fit_is_found(stem: Mainstem) -> None:
    bad = [*range(300, 340), 500, 777]
    fitting, rejections = fitting_rows(rows(*range(100), *bad, *range(20)), stem.topic("copies").settings)

    assert [rejection.row for rejection in sorted(rejections, key=lambda r: r.row)] == list(range(100, 100 + len(bad)))
    assert fitting.column("id").to_pylist() == [*range(100), *range(20)]
    assert rejections[0].reason == '300 does not fit column "small", which is TINYINT'


def test_a_row_that_not_everybody_can_read_is_rejected_alone_with_what_can_be_shown(
    stem: Mainstem, tmp_path: Path
) -> None:
    rejected = RejectedRows(stem.log, str(tmp_path), sink="topic copies")
    table = pa.table({"id": [1, 2, 3], "note": text(b"a", b"\xff", b"c"), "small": [1, 2, 3]})
    written = writer_of(stem).append(table, Batch(0, RUN, rejected=rejected))

    assert (written.rows, written.rejected, ids(stem, "copies")) == (2, 1, [1, 3])
    [row] = stem.topic("copies.rejected").to_arrow().to_pylist()
    assert (row["id"], row["note"], row["small"]) == (2, None, 2)
    assert '"note": "<unreadable: ' in row["row"]
    assert row["rejection"]["reason"].endswith("its bytes are not UTF-8")
