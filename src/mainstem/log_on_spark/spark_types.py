"""Arrow's schemas as Spark's and back. Marks on columns (event time, `record`) are carried along."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["arrow_schema", "spark_schema"]


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in schema:
        marks = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
        # Without a zone a timestamp is Spark's TIMESTAMP_NTZ.
        spark_type = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        fields.append(StructField(field.name, spark_type, field.nullable, marks))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same columns for Arrow, all of them nullable: in a tombstone all but the key are null."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema.fields:
        marks = {name: value if isinstance(value, str) else json.dumps(value) for name, value in field.metadata.items()}
        arrow_type = to_arrow_type(field.dataType, timezone="UTC")
        fields.append(pa.field(field.name, arrow_type, nullable=True, metadata=marks or None))
    return pa.schema(fields)
