"""Dual writes: two writers, two stores, and a race that no error tells of.

If two writers set the same key in a database and in a cache, the two may see the writes in a different order; if one
write fails, only the other store has it. Then they differ for ever, and nothing reports it. In Mainstem writers append to
a *topic*, which has one order, and each store applies it from its committed offset: a failed write is repeated.
"""

import random
import sys
import tempfile
from itertools import permutations

import mainstem

WRITERS = {"writer 1": "A", "writer 2": "B"}
STORES = ("database", "cache")
STEPS = [(writer, store) for writer in WRITERS for store in STORES]


def interleavings() -> list[tuple[tuple[str, str], ...]]:
    """Every order of the four writes in which each writer writes into the database first."""
    return [o for o in permutations(STEPS) if all(o.index(STEPS[n]) < o.index(STEPS[n + 1]) for n in (0, 2))]


def write_twice(order: tuple[tuple[str, str], ...], failing: tuple[str, str] | None = None) -> dict[str, str]:
    """What X is in each store after these writes."""
    found = dict.fromkeys(STORES, "")
    for writer, store in order:
        if (writer, store) != failing:
            found[store] = WRITERS[writer]
    return found


def through_the_log(stem: mainstem.Mainstem, name: str, chance: random.Random) -> tuple[dict[str, str], int]:
    """The same writers append; the stores apply what they read, at random times, and a third of the writes fail."""
    topic, found, failures = stem.create_topic(name, schema="x STRING"), dict.fromkeys(STORES, ""), 0
    waiting, members = list(WRITERS.values()), {store: topic.join_group(store) for store in STORES}
    while waiting or any(members[store].lag().records for store in STORES):
        turn = chance.choice([*waiting, *STORES])
        if turn in waiting:
            waiting.remove(turn)
            topic.append([{"x": turn}])
        elif (rows := members[turn].poll(rows_max=1, wait="0 seconds")) is not None:
            if chance.random() < 2 / 3:
                found[turn] = rows.column("x")[0].as_py()
                members[turn].commit()
            else:
                failures += 1
                members[turn].seek("committed")  # as after a crash: the rows come again
    for member in members.values():
        member.leave()
    return found, failures


def main(home: str) -> None:
    raced = {order: write_twice(order) for order in interleavings()}
    differing = {order: found for order, found in raced.items() if len(set(found.values())) > 1}
    for order, found in differing.items():
        steps = ", ".join(f"{writer[-1]}: {store} X={WRITERS[writer]}" for writer, store in order)
        print(f"{steps} -> {' '.join(f'{store} {value}' for store, value in found.items())}")
    print(f"written twice, all writes succeed: different after {len(differing)} of {len(raced)} interleavings")
    failed = [write_twice(order, failing) for order in raced for failing in STEPS]
    lost = sum(len(set(found.values())) > 1 for found in failed)
    print(f"written twice, one write fails:    different after {lost} of {len(failed)}")
    with mainstem.open(home) as stem:
        logged = [through_the_log(stem, f"x_{number}", random.Random(number)) for number in range(10)]
        ends = [stem.topic(f"x_{number}").to_arrow().column("x")[-1].as_py() for number in range(10)]
    apart = sum(len(set(found.values())) > 1 for found, _ in logged)
    failures = sum(count for _, count in logged)
    print(f"through the log, {failures} writes fail:     different after {apart} of {len(logged)}")
    # The stores differ where the writers came in a different order: 1 before 2 in one, 2 before 1 in the other.
    by_order = sum((o.index(STEPS[0]) < o.index(STEPS[2])) != (o.index(STEPS[1]) < o.index(STEPS[3])) for o in raced)
    if (len(differing), [found for found, _ in logged]) != (by_order, [dict.fromkeys(STORES, x) for x in ends]):
        sys.exit(f"different: {len(differing)}, expected {by_order}; {logged}, expected {ends}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
