"""A join of two streams as it is defined: after every batch, from all rows so far, each with each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from mainstem.clock import as_datetime, as_us
from mainstem.log.watermark import NO_TIME
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_log import batches_of

ORIGIN = 1_767_268_800_000_000
# What is in a result: the numbers of the left and the right row, None where there is none.
Shown = tuple[int | None, int | None]
# Partition and offset.
Place = tuple[int, int]
# The side and place of a row that came too late, and the place of the one that it would have met; None if it took no part.
Late = tuple[str, Place, Place | None]


@dataclass(frozen=True)
class Terms:
    how: str
    before: int
    after: int
    lateness: int

    def asked(self) -> dict[str, Any]:
        """As the operator takes it; a tick is a microsecond."""
        spans = (f"{self.before} microseconds", f"{self.after} microseconds")
        return {"on": "key", "how": self.how, "within": spans, "lateness": f"{self.lateness} microseconds"}


@dataclass(frozen=True)
class Row:
    side: str
    number: int
    key: int | None
    time: int
    own: int
    place: Place


def written(random: Random, *, keys: int = 3, steps: int = 10, rows: int = 6) -> TestStreams:
    """A script of two streams, `left` and `right`, whose rows are out of order, late, without key or without time."""
    delays = [f"{random.choice([0, 2, 6])} microseconds" for _ in range(2)]
    script = TestStreams(
        left=TestStream("number INT, key INT, at TIMESTAMP", event_time="at", delay=delays[0]),
        right=TestStream("other INT, key INT, other_at TIMESTAMP", event_time="other_at", delay=delays[1]),
    )
    time, number = 0, 0
    for _ in range(steps):
        side = random.choice(["left", "right"])
        time += random.choice([0, 1, 3, 8])
        if random.random() < 0.15:
            script = script.watermark(side, as_datetime(ORIGIN + time - random.randint(0, 10)))
            continue
        given = []
        for _ in range(random.randint(0, rows)):
            number += 1
            behind = random.choice([0, 0, 1, 2, 5, 12, 25])
            at = None if random.random() < 0.03 else as_datetime(ORIGIN + time - behind)
            key = None if random.random() < 0.05 else random.randrange(keys)
            names = ("number", "key", "at") if side == "left" else ("other", "key", "other_at")
            given.append(dict(zip(names, (number, key, at), strict=True)))
        script = script.rows(side, given, partition=random.choice([0, 0, 1]))
        if random.random() < 0.2:
            script = script.kill()
    return script


@dataclass
class Naive:
    """What is to be seen after each batch, and in the end what came too late."""

    shown: list[Counter[Shown]]
    late: Counter[Late]
    took_no_part: set[int]


def naive_join(script: TestStreams, terms: Terms, batches: str = "scripted") -> Naive:
    """What a join with these terms gives."""
    topics = {name: stream.topic for name, stream in script.streams.items()}
    given = batches_of(topics, script.steps, batches)
    rows: list[Row] = []
    found = Naive([], Counter(), set())
    for left, right in zip(given["left"], given["right"], strict=True):
        rows += [*read("left", left.rows), *read("right", right.rows)]
        shown, found.late, found.took_no_part = judged(rows, terms, left.clock.watermark)
        found.shown.append(shown)
    return found


def judged(rows: list[Row], terms: Terms, watermark: int) -> tuple[Counter[Shown], Counter[Late], set[int]]:
    """What is shown of rows when the watermark is there, who came too late for whom, and who took no part at all."""
    took_part = [row for row in rows if row.time != NO_TIME and not _hopeless(row, terms)]
    took_no_part = {row.number for row in rows} - {row.number for row in took_part}
    late: Counter[Late] = Counter((row.side, row.place, None) for row in rows if row.number in took_no_part)
    late.update(late for _, late in _meetings(took_part, terms) if late is not None)
    return _visible(took_part, terms, watermark), late, took_no_part


def read(side: str, rows: Any) -> list[Row]:
    """Rows of a side as the log gives them."""
    names = ("number", "key", "at") if side == "left" else ("other", "key", "other_at")
    return [
        Row(side, row[names[0]], row[names[1]], *(NO_TIME if at is None else as_us(at) for at in
            (row[names[2]], row["record"]["watermark"])), (row["record"]["partition"], row["record"]["offset"]))
        for row in rows.to_pylist()
    ]  # fmt: skip


def _hopeless(row: Row, terms: Terms) -> bool:
    return row.own > row.time + terms.before + terms.after + terms.lateness


def _up(row: Row, terms: Terms) -> int:
    return row.time + (terms.after if row.side == "left" else terms.before)


def _meetings(rows: list[Row], terms: Terms) -> list[tuple[Shown, Late | None]]:
    """All that meet, and for those that do not make a pair who came too late for whom."""
    found = []
    for left in (row for row in rows if row.side == "left" and row.key is not None):
        for right in (row for row in rows if row.side == "right" and row.key == left.key):
            if left.time - terms.before <= right.time <= left.time + terms.after:
                late: Late | None = None
                if right.own > _up(left, terms) + terms.lateness:
                    late = ("right", right.place, left.place)
                elif left.own > _up(right, terms) + terms.lateness:
                    late = ("left", left.place, right.place)
                found.append(((left.number, right.number), late))
    return found


def _visible(rows: list[Row], terms: Terms, watermark: int) -> Counter[Shown]:
    pairs = [pair for pair, late in _meetings(rows, terms) if late is None]
    met = {number for pair in pairs for number in pair}
    alone = [row for row in rows if row.number not in met and _up(row, terms) <= watermark]
    found: Counter[Shown] = Counter()
    if terms.how == "semi":
        return Counter((row.number, None) for row in rows if row.side == "left" and row.number in met)
    if terms.how != "anti":
        found.update(pairs)
    if terms.how in ("left", "full", "anti"):
        found.update((row.number, None) for row in alone if row.side == "left")
    if terms.how in ("right", "full"):
        found.update((None, row.number) for row in alone if row.side == "right")
    return found
