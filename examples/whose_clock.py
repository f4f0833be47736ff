"""Whose clock are you using, anyway?

A phone's clock is wrong by hours, and it sends its events only when it is online again. Three readings help: when it
happened and when it was sent, both by the phone's clock, and when it was received, by ours. The last two differ by the
phone's drift plus the time in transit. In Mainstem `clock_corrected` gives the corrected event time and the drift; over
a table the smallest drift of each phone is the best estimate: some message was fast.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import mainstem
from mainstem.operators import clock_corrected

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WRONG_BY = {"ada": timedelta(0), "bob": timedelta(hours=3, seconds=12), "cleo": -timedelta(days=400)}


def taps() -> list[dict]:
    """The real times, and those that the phones report."""
    chance = random.Random(5)
    found = []
    for number in range(60):
        phone = chance.choice(sorted(WRONG_BY))
        happened = NOON + timedelta(minutes=number)
        # Some are sent at once, some after an hour in a tunnel; each is in transit for up to two seconds.
        sent = happened + timedelta(minutes=chance.choice([0, 0, 60]))
        received = sent + timedelta(milliseconds=chance.randint(20, 2000))
        said = {"tapped_at": happened + WRONG_BY[phone], "sent_at": sent + WRONG_BY[phone]}
        found.append({"tap": number, "phone": phone, **said, "received_at": received, "happened": happened})
    return found


def off(rows: list[dict], column: str) -> str:
    return str(max(abs(row[column] - row["happened"]) for row in rows))


def main(home: str) -> None:
    readings = {"occurred": "tapped_at", "sent": "sent_at", "received": "received_at"}
    with mainstem.open(home) as stem:
        columns = "tapped_at timestamp, sent_at timestamp, received_at timestamp, happened timestamp"
        topic = stem.create_topic("taps", schema=f"tap int, phone string, {columns}", event_time="tapped_at")
        topic.append(taps())
        alone = clock_corrected(topic.read(), **readings).orderBy("tap").toArrow().to_pylist()
        together = clock_corrected(topic.read(), **readings, by="phone").orderBy("tap").toArrow().to_pylist()

    for phone in WRONG_BY:
        rows, better = ([row for row in found if row["phone"] == phone] for found in (alone, together))
        flagged = " (flagged)" * rows[0]["drift_outlier"]
        wrong = f"{off(rows, 'tapped_at'):18} corrected {off(rows, 'corrected_at')}"
        print(f"{phone:4} wrong by {wrong}, by the smallest drift {off(better, 'corrected_at')}{flagged}")

    rows = taps()
    drifts = [row["received_at"] - row["sent_at"] for row in rows]
    smallest = {
        phone: min(drift for row, drift in zip(rows, drifts, strict=True) if row["phone"] == phone)
        for phone in WRONG_BY
    }
    expected = [row["tapped_at"] + drift for row, drift in zip(rows, drifts, strict=True)]
    expected_better = [row["tapped_at"] + smallest[row["phone"]] for row in rows]
    if [row["corrected_at"] for row in alone] != expected or [
        row["corrected_at"] for row in together
    ] != expected_better:
        sys.exit("different: the corrected times are not what plain Python makes of the three readings")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
