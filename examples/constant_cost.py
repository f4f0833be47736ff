"""A log's throughput does not depend on the size of its history.

A broker slows down once its messages no longer fit into memory. An append to a log writes after the last record and
reads nothing before it. In Mainstem: the kernel counts the same number of reads, writes and bytes for an append to an
empty topic and to one with a million records.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import mainstem

HISTORY = pa.table({"order_id": [f"o-{number:07}" for number in range(50_000)], "amount": [9.5] * 50_000})
APPENDS = 200


def work_done() -> tuple[int, int]:
    """Reads and writes, and bytes written, of this process so far, as the kernel counts them."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["syscr"]) + int(counters["syscw"]), int(counters["wchar"])


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        young = stem.create_topic("young", schema="order_id string, amount double", key="order_id")
        aged = stem.create_topic("aged", schema="order_id string, amount double", key="order_id")
        for _ in range(20):
            aged.append(HISTORY)
        seconds: dict[str, list[float]] = {"young": [], "aged": []}
        calls: dict[str, list[int]] = {"young": [], "aged": []}
        written: dict[str, list[int]] = {"young": [], "aged": []}
        for number in range(APPENDS):
            for topic in (young, aged):  # in turn, so that both have the same conditions
                row = [{"order_id": f"n-{number:07}", "amount": 1.0}]
                calls_before, written_before = work_done()
                begun = time.perf_counter()
                topic.append(row)
                seconds[topic.name].append(time.perf_counter() - begun)
                calls_after, written_after = work_done()
                calls[topic.name].append(calls_after - calls_before)
                written[topic.name].append(written_after - written_before)
        records = [stem.query(f"SELECT count(*) AS n FROM {name}").to_pylist()[0]["n"] for name in ("young", "aged")]

    print(f"appends to a topic of {records[1]:,} records, compared with one of {records[0]:,}:")
    # Medians: the kernel counts for the whole process, and now and then another of its threads writes too.
    ratios = [
        round(statistics.median(counts["aged"]) / statistics.median(counts["young"]), 1) for counts in (calls, written)
    ]
    print(f"  {ratios[0]} times the reads and writes, {ratios[1]} times the bytes written")
    ratio = statistics.median(seconds["aged"]) / statistics.median(seconds["young"])
    print(f"  {ratio:.2f} times the time (measured)")
    found, expected = [records, ratios], [[APPENDS, APPENDS + 20 * 50_000], [1.0, 1.0]]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
