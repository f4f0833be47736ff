"""The law for a user's own operator: it puts out the same for any split into batches, and what a plain simulation says."""

import random
from collections import defaultdict

from mainstem.operators.process import process
from mainstem.testing import TestStream
from tests.operators.visits import GAP, PAGES, Visits, at

SCRIPTS = 25
USERS = 12


def generated(chance):
    """A script, and the same as a list: ("rows", rows) and ("watermark", time)."""
    script = TestStream(PAGES, event_time="at")
    told, minute = [], 0.0
    for _ in range(chance.randint(2, 12)):
        if chance.random() < 0.4:
            minute += chance.choice([0, 1, 5, 9])
            script = script.watermark(at(minute))
            told.append(("watermark", at(minute)))
        else:
            rows = [
                {
                    "user": f"u{chance.randrange(USERS)}",
                    "page": chance.choice(["/", "/a", "/b", "/logout"]),
                    # Early, in time, late: and often exactly where a timer stands.
                    "at": at(minute + chance.choice([-7, -5, -1, 0, 0.5, 2, 5])),
                }
                for _ in range(chance.randint(1, 20))
            ]
            script = script.rows(rows)
            told.append(("rows", rows))
        if chance.random() < 0.3:
            script = script.kill()
    script = script.watermark(at(minute + 60))
    return script, [*told, ("watermark", at(minute + 60))]


def simulated(told):
    """What happens to each user, from the text: a row is looked at when the watermark is what it was before its append."""
    watermark, pages, last, closed = None, defaultdict(list), {}, defaultdict(list)

    def close(user, when):
        closed[user].append({"user": user, "pages": pages.pop(user, []), "closed_at": when})
        last.pop(user, None)

    for kind, what in told:
        for row in what if kind == "rows" else ():
            user = row["user"]
            if user in last and watermark is not None and last[user] + GAP <= watermark:
                close(user, last[user] + GAP)
            if row["page"] == "/logout":
                close(user, row["at"])
            else:
                pages[user].append(row["page"])
                last[user] = max(row["at"], last.get(user, row["at"]))
        if kind == "watermark":
            watermark = what
    for user in list(last):
        close(user, last[user] + GAP)
    return dict(closed)


def by_user(rows):
    found = defaultdict(list)
    for row in rows:
        found[row["user"]].append(row)
    return dict(found)


def test_any_split_gives_what_a_simulation_gives(share):
    for seed in range(share(SCRIPTS)):
        script, told = generated(random.Random(seed))
        expected = simulated(told)
        for batches in ("scripted", "single rows", "one"):
            results = script.run(lambda rows: process(rows, by="user", using=Visits), batches=batches)
            assert by_user(results.rows) == expected, (seed, batches)
            assert results.state_rows == {"process-1": 0}, (seed, batches)
