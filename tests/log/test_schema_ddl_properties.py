"""DDL carries all of a schema, and Parquet gives back the types it was given."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings

from mainstem.log.rows.normal_schema import normal_schema
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl
from tests.log.schema_strategies import SCHEMAS


@given(SCHEMAS)
def test_a_schema_comes_back_from_its_ddl(schema: pa.Schema) -> None:
    assert schema_from_ddl(schema_to_ddl(schema)).equals(schema, check_metadata=True)


@given(SCHEMAS)
def test_a_normal_schema_is_normal(schema: pa.Schema) -> None:
    assert normal_schema(schema).equals(schema, check_metadata=True)


@settings(max_examples=50)
@given(SCHEMAS)
def test_parquet_gives_back_the_types_it_was_given(schema: pa.Schema) -> None:
    file = io.BytesIO()
    # Without Arrow's own notes in the file: the types must be Parquet's, for Spark and DuckDB read no others.
    pq.write_table(schema.empty_table(), file, store_schema=False)
    assert pq.read_schema(file) == schema
