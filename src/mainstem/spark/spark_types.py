"""Arrow's schemas as Spark's and back. Marks on columns (event time, `record`) are carried along."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.rows.column_types import contains

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TIME_HINT", "arrow_schema", "check_no_times", "spark_schema"]

TIME_HINT = "Remove spark.sql.timeType.enabled = false from the settings of the Spark session."


def spark_schema(schema: pa.Schema) -> StructType:
    """Arrow's schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in schema:
        marks = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
        # A timestamp without a zone is Spark's TIMESTAMP_NTZ.
        spark_type = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        fields.append(StructField(field.name, spark_type, field.nullable, marks))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's schema as Arrow's, with all columns nullable: in a tombstone all but the key are null."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema.fields:
        # Spark's own metadata (a query's watermark) is valid in that query alone, and has numbers that would come back as text.
        own = {name: value for name, value in field.metadata.items() if not name.startswith("spark.")}
        marks = {name: value if isinstance(value, str) else json.dumps(value) for name, value in own.items()}
        arrow_type = to_arrow_type(field.dataType, timezone="UTC")
        fields.append(pa.field(field.name, arrow_type, nullable=True, metadata=marks or None))
    return pa.schema(fields)


def check_no_times(schema: pa.Schema, subject: str) -> None:
    """Raise `Invalid` if columns have a TIME in them, at any depth: for a Spark session that does not support it."""
    for field in schema:
        if contains(field.type, ["time"]):
            raise Invalid(
                f'column "{field.name}" of {subject} is a TIME, which this Spark session does not support',
                detail=f"Its type is {field.type}. Mainstem enables Spark's TIME type unless the session's settings "
                "disable it.",
                hint=TIME_HINT,
                column=field.name,
            )
