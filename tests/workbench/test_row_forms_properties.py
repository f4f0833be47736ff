"""What `topic read` writes, `topic append` reads: any rows of any schema come back the same, as JSON, CSV and Arrow."""

import io
import sys

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.record import record_array, record_schema
from mainstem.log.rows.normal_schema import normal_schema
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic_settings import TopicSettings
from mainstem.workbench.cli import row_files
from mainstem.workbench.cli.row_files import RowFile
from mainstem.workbench.cli.row_output import row_writer
from tests.log.schema_strategies import SCHEMAS, rows_of


@st.composite
def topics(draw):
    """Settings, and rows that such a topic has."""
    schema = normal_schema(draw(SCHEMAS))
    settings = TopicSettings.of("made_up", schema=schema)
    checked = check_rows(draw(rows_of(schema)), settings)
    count = checked.batch.num_rows
    change = pa.array(
        draw(st.lists(st.sampled_from(["insert", "update"]), min_size=count, max_size=count)), pa.string()
    )
    record = record_array(0, 7, 0, count=count, change=change)
    return settings, pa.RecordBatch.from_arrays(
        [*checked.batch.columns, record], schema=record_schema(checked.batch.schema)
    )


class Bytes(io.TextIOWrapper):
    """Standard output or input, in memory."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(io.BufferedRandom(io.BytesIO(data)), encoding="utf-8", newline="")


def written(form: str, batch: pa.RecordBatch) -> bytes:
    out = Bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        writer = row_writer(form, batch.schema)
        writer.write(batch)
        writer.close()
    out.flush()
    out.seek(0)
    return out.buffer.read()


def appended(form: str, data: bytes, settings: TopicSettings) -> list[object]:
    """The rows of all batches, with what of `record` counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        patch.setattr(row_files, "ROWS_MAX", 2)
        with RowFile("-", form, settings) as source:
            batches = list(source.batches())
    assert [bad.error for batch in batches for bad in batch.bad] == []
    checked = [check_rows(batch.rows, settings) for batch in batches if len(batch.rows)]
    return [
        (row, change)
        for it in checked
        for row, change in zip(
            it.batch.to_pylist(),
            ["insert"] * it.batch.num_rows if it.change is None else it.change.to_pylist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
@hypothesis.settings(max_examples=80, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@given(topics())
def test_what_was_read_can_be_appended_again(form, topic):
    settings, batch = topic

    again = appended(form, written(form, batch), settings)

    rows = batch.drop_columns(["record"]).to_pylist()
    changes = batch.column("record").field("change").to_pylist()
    assert repr(again) == repr(list(zip(rows, changes, strict=True)))


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@given(topics())
def test_a_table_of_anything_can_be_shown(topic):
    _, batch = topic

    lines = written("table", batch).decode().splitlines()

    assert len(lines) == (batch.num_rows + 2 if batch.num_rows else 0)
