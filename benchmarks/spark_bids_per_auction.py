"""The same as bids_per_auction.py in plain Spark, as a user writes it who has tuned it: knows nothing of Mainstem.

`... first SETTINGS FILES FOLDER` runs over Parquet files and writes what changed into a folder per batch, until killed.
`... empty SETTINGS FOLDER BATCHES` runs so many batches without rows, one after the other, and prints what each took.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

BIDS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, at TIMESTAMP, extra STRING"


def session(settings: str) -> SparkSession:
    builder = SparkSession.builder.master("local[*]")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def counted(bids: DataFrame) -> DataFrame:
    bids = bids.withWatermark("at", "1 second")
    return bids.groupBy(F.window("at", "10 seconds"), "auction").agg(F.count("*").alias("bids"))


def first(settings: str, files: str, folder: str) -> None:
    spark = session(settings)

    def write(batch: DataFrame, number: int) -> None:
        batch.write.parquet(f"{folder}/out/batch={number}")

    counts = counted(spark.readStream.schema(BIDS).parquet(files))
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/checkpoint")
    writer.foreachBatch(write).start().awaitTermination()


def empty(settings: str, folder: str, batches: str) -> None:
    spark = session(settings)
    taken: list[int] = []
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=2).load()
    none = source.where("value < 0").selectExpr("value AS auction", "timestamp AS at")

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()

    writer = counted(none).writeStream.outputMode("update").option("checkpointLocation", f"{folder}/checkpoint")
    running = writer.foreachBatch(write).start()
    seen = -1
    while len(taken) < int(batches):
        running.awaitTermination(1)
        for progress in running.recentProgress:
            if progress["batchId"] > seen:
                seen = progress["batchId"]
                taken.append(progress["durationMs"]["triggerExecution"])
    running.stop()
    print(json.dumps(taken))


if __name__ == "__main__":
    {"first": first, "empty": empty}[sys.argv[1]](*sys.argv[2:])
