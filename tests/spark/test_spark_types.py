"""Schemas on their way between Spark and Arrow."""

from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from mainstem.spark.spark_types import arrow_schema, spark_schema


def test_what_a_query_of_spark_s_notes_on_a_column_does_not_come_back_as_text():
    """Spark reads its watermark's delay as a number and dies of a text."""
    delay = {"spark.watermarkDelayMs": 1000, "comment": "when it was read"}
    given = StructType([StructField("at", TimestampType(), metadata=delay), StructField("value", LongType())])

    back = spark_schema(arrow_schema(given))

    assert [field.metadata for field in back.fields] == [{"comment": "when it was read"}, {}]
