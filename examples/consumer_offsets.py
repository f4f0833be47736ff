"""Consumer offsets: what is processed twice after a crash.

A consumer commits its offset from time to time; if it dies after the work and before the commit, its successor repeats
that work. In Mainstem a *group* has *committed* offsets. Committed in the same *transaction* as the results, each
record counts exactly once.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter

import mainstem

ROWS = [{"n": number} for number in range(12)]


def consume(home: str, group: str, dies_at: int | None) -> None:
    """Copies the topic in batches of 3; dies before the commit of the batch that begins with `dies_at`."""
    with mainstem.open(home) as stem, stem.topic("numbers").join_group(group) as member:
        while (batch := member.poll(rows_max=3)) is not None:
            results = batch.select(["n"])
            dying = results.column("n")[0].as_py() == dies_at
            if group == "in_a_transaction":
                with stem.transaction() as transaction:
                    transaction.append(f"results.{group}", results)
                    transaction.commit_offsets(member)
                    if dying:
                        os.kill(os.getpid(), signal.SIGKILL)
            else:
                stem.topic(f"results.{group}").append(results)
                if dying:
                    os.kill(os.getpid(), signal.SIGKILL)
                member.commit()


def main(home: str) -> None:
    found = {}
    with mainstem.open(home) as stem:
        stem.create_topic("numbers", schema="n bigint").append(ROWS)
        for group in ("afterwards", "in_a_transaction"):
            results = stem.create_topic(f"results.{group}", schema="n bigint")
            first = multiprocessing.get_context("spawn").Process(target=consume, args=[home, group, 6])
            first.start()
            first.join()
            committed = stem.topic("numbers").group(group).describe().partitions[0].committed
            consume(home, group, dies_at=None)
            counts = Counter(results.to_arrow().column("n").to_pylist())
            found[group] = committed, dict(counts)
            twice = [n for n, times in counts.items() if times > 1]
            print(f"committed {group.replace('_', ' ')}: resumed at {committed}, twice: {twice or 'none'}")

    once = {row["n"]: 1 for row in ROWS}
    expected = {"afterwards": (6, {**once, 6: 2, 7: 2, 8: 2}), "in_a_transaction": (6, once)}
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
