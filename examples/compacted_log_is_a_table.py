"""Log compaction: a log that keeps the latest record of each key is a table.

A derived index can be rebuilt from offset 0 of a compacted log, without the whole history and without a snapshot. In
Mainstem: `keep=Keep.latest_per_key()`; `topic.delete(keys)` appends *tombstones*, which are removed later too.
"""

import random
import sys
import tempfile

import mainstem


def main(home: str) -> None:
    chance = random.Random(7)
    source: dict[str, int] = {}  # the final content of the captured database
    with mainstem.open(home) as stem:
        keep = mainstem.Keep.latest_per_key(tombstones="0 seconds")
        stock = stem.create_topic("stock", schema="article string, pieces bigint", key="article", keep=keep)
        for _ in range(20):
            changes = {f"a-{chance.randrange(50):02}": chance.randrange(100) for _ in range(25)}
            stock.append([{"article": article, "pieces": pieces} for article, pieces in changes.items()])
            source |= changes
        gone = sorted(source)[::5]
        stock.delete(gone)
        source = {article: pieces for article, pieces in source.items() if article not in gone}
        appended = len(stock.to_arrow())
        stock.seal()
        stock.compact()
        stock.compact()  # the first pass finds the tombstones, the next one may remove them

        index: dict[str, int] = {}
        history = stock.to_arrow(start={0: 0}).to_pylist()
        for row in history:
            if row["record"]["change"] == "delete":
                index.pop(row["article"], None)
            else:
                index[row["article"]] = row["pieces"]
        asked = {row["article"]: row["pieces"] for row in stem.query("SELECT article, pieces FROM stock").to_pylist()}

    offsets = [row["record"]["offset"] for row in history]
    print(f"appended {appended} records, {len(gone)} of them tombstones")
    print(f"kept     {len(history)} records, of deleted keys {sum(row['article'] in gone for row in history)}")
    print(
        f"offsets  {offsets[0]} to {offsets[-1]}: what stays keeps its own, in order: {offsets == sorted(set(offsets))}"
    )
    found = [index, asked, len(history)]
    expected = [source, source, len(source)]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
