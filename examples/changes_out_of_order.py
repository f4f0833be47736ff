"""Change data capture out of order: two feeds of customers, applied to one table and to its history.

The changes of a table elsewhere arrive late, in any order and from two systems; some of them are deletes. A consumer that
applies them as they come ends with rows that were replaced long ago, and brings deleted ones back. In Mainstem
`table(..., order_by=..., delete_when=...)` keeps the newest row of each key, and `versions` every version with its validity (a
slowly changing dimension of type 2). A view with history also tells what was known before a correction arrived.
"""

import random
import sys
import tempfile

import mainstem
from mainstem import Flow
from mainstem.operators import table, versions

# id, city, day, op
CHANGES = [
    (1, "Bonn", 1, "insert"), (2, "Rome", 1, "insert"), (3, "Oslo", 2, "insert"), (1, "Ulm", 4, "update"),
    (2, None, 5, "delete"), (3, "Bergen", 6, "update"), (1, "Jena", 8, "update"), (3, None, 9, "delete"),
    (3, "Oslo", 11, "insert"),
]  # fmt: skip
LATE = (2, "Milan", 3, "update")
COLUMNS = ("id", "city", "day", "op")


def flows(stem: mainstem.Mainstem):
    changes = stem.topic("crm").stream().unionByName(stem.topic("shop").stream())
    newest = table(changes, key="id", order_by="day", delete_when="op = 'delete'")
    yield Flow(newest.select("id", "city", "record"), into=stem.view("customers", key="id"))
    every = versions(changes, key="id", order_by="day", delete_when="op = 'delete'")
    cities = every.select("id", "valid_from", "valid_until", "city", "record")
    yield Flow(cities, into=stem.view("cities", key=["id", "valid_from"], history="30 days"))


def by_hand(changes: list[tuple]) -> list[tuple]:
    """The versions of changes in their order."""
    found = []
    for key, city, day, op in changes:
        end = min((other for of, _, other, _ in changes if of == key and other > day), default=None)
        found += [(key, day, end, city)] if op != "delete" else []
    return sorted(found)


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topics = [stem.create_topic(name, schema="id int, city string, day int, op string") for name in ("crm", "shop")]
        shuffled = random.Random(3).sample(CHANGES, len(CHANGES))
        with stem.start(flows) as running:
            for place, change in enumerate(shuffled):
                told = topics[place % 2].append([dict(zip(COLUMNS, change, strict=True))])
                running.wait_until_idle()
            topics[0].append([dict(zip(COLUMNS, LATE, strict=True))])
            running.wait_until_idle()
        customers = [tuple(row.values()) for row in stem.view("customers").to_arrow().to_pylist()]
        cities = stem.view("cities")
        before, now = (
            [tuple(row.values()) for row in cities.to_arrow(as_of=as_of).to_pylist()] for as_of in (told.token, None)
        )
    print(f"arrived: {', '.join(f'{key} on day {day}' for key, _, day, _ in [*shuffled, LATE])}")
    print(f"now: {', '.join(f'{key} {city}' for key, city in customers)}")
    for title, rows in (("before the last one arrived", before), ("after it", now)):
        spans = ", ".join(f"{city} {begin}-{end or ''}" for key, begin, end, city in rows if key == 2)
        print(f"customer 2, {title}: {spans}")
    expected = {"before": by_hand(CHANGES), "now": by_hand([*CHANGES, LATE])}
    found = {"before": sorted(before), "now": sorted(now)}
    newest = [(key, city) for key, _, end, city in expected["now"] if end is None]
    if found != expected or sorted(customers) != newest:
        sys.exit(f"different: {found}, {customers}, expected {expected}, {newest}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
