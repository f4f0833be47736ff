"""Reading your own writes: an asynchronous view, and a user who has just changed something.

Views follow the log with a short delay. A user who appends and then reads may not see the change yet. In Mainstem an
append returns a *token*; `view.get(key, after=token)` waits until the view has applied that append. After the timeout
the error says what is missing: it never returns the old row as if it were the new one.
"""

import sys
import tempfile

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow, NotYet

CHANGES = 12


def flows(stem: mainstem.Mainstem):
    added = stem.topic("added").stream()
    yield Flow(added.groupBy("basket").agg(F.sum("pieces").alias("pieces")), into=stem.view("baskets", key="basket"))


def main(home: str) -> None:
    at_once, waited = [], []
    with mainstem.open(home) as stem:
        added = stem.create_topic("added", schema="basket string, pieces bigint", key="basket", partitions=2)
        baskets = stem.view("baskets")
        added.append([{"basket": "mine", "pieces": 0}])
        with stem.start(flows) as running:
            running.wait_until_idle()
            for number in range(1, CHANGES + 1):
                placed = added.append([{"basket": "mine", "pieces": number}, {"basket": "yours", "pieces": 1}])
                at_once.append(baskets.get("mine")["pieces"])
                waited.append(baskets.get("mine", after=placed.token, wait="1 minute")["pieces"])
        placed = added.append([{"basket": "mine", "pieces": 1}])
        try:
            baskets.get("mine", after=placed.token, wait="0 seconds")
            missing = ""
        except NotYet as error:
            missing = f"{error.summary}. {error.detail}"

    expected = [sum(range(number + 1)) for number in range(1, CHANGES + 1)]
    stale = sum(seen != right for seen, right in zip(at_once, expected, strict=True))
    print(f"read at once: {stale} of {CHANGES} reads were stale (measured)")
    print(f"read after the token: {sum(map(int.__ne__, waited, expected))} of {CHANGES} reads were stale")
    print("while no flow runs:", missing)
    if (waited, bool(missing)) != (expected, True):
        sys.exit(f"different: {waited}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
