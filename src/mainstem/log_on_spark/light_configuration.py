"""Hadoop's configuration without the notes on which file each of its eleven hundred values came from.

Every batch with state of Spark's sends it to the tasks, once for each operator, and with each value goes its note, compressed by
itself: five milliseconds to write them, and as many to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_origins"]


def forget_origins(spark: SparkSession) -> None:
    """Drop the notes in a session that is ours. Only Hadoop's own warnings would show them."""
    java: Any = spark._jvm
    context: Any = spark.sparkContext
    origins = java.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    configuration = context._jsc.hadoopConfiguration()
    # Asked for anything, it reads its files, if it has not yet.
    configuration.size()
    origins.get(configuration).clear()
