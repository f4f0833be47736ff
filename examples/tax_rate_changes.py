"""Time-dependence of joins: which version of a tax rate was joined, and what happens when one is corrected.

The tax on a sale is that of its day, whenever the sum is computed (a slowly changing dimension). So a join with a
changing table should say which version it used. And versions can be wrong: a rate is corrected, with effect in the
past. In Mainstem `enrich(..., corrections="re-emit")` adds `version` to each row, and retracts and emits again exactly
the rows that a correction affects; with "ignore", the default, emitted rows do not change.
"""

import sys
import tempfile
from datetime import UTC, datetime

import mainstem
from mainstem import Flow
from mainstem.operators import enrich, table

SALES = {"s1": ("books", 1), "s2": ("wine", 2), "s3": ("books", 9), "s4": ("wine", 12), "s5": ("books", 20)}
RATES = [("books", 1, 5), ("wine", 1, 19), ("books", 8, 7), ("books", 16, 6)]


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def flows(stem: mainstem.Mainstem):
    rates = table(stem.topic("rates").stream(watermark="1 day"), key="kind", order_by="since")
    sales = stem.topic("sales").stream(watermark="1 day")
    for corrections in ("ignore", "re-emit"):
        taxed = enrich(sales, rates, on="kind", corrections=corrections, lateness="60 days")
        columns = taxed.select("sale", "percent", taxed.version.valid_from.alias("valid_from"), "record")
        yield Flow(columns, into=stem.view(f"taxed.{corrections}", key="sale"))


def by_hand(rates: list[tuple]) -> dict[str, tuple]:
    """The valid rate that begins last; of those that begin on one day the last one declared."""
    found = {}
    for sale, (kind, sold) in SALES.items():
        valid = [
            (since, place, percent) for place, (of, since, percent) in enumerate(rates) if of == kind and since <= sold
        ]
        since, _, percent = max(valid)
        found[sale] = (percent, day(since))
    return found


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        rates = stem.create_topic("rates", schema="kind string, since timestamp, percent int", event_time="since")
        sales = stem.create_topic("sales", schema="sale string, kind string, sold_at timestamp", event_time="sold_at")
        teller = stem.producer("teller")
        with stem.start(flows) as running:
            rates.append([{"kind": kind, "since": day(since), "percent": percent} for kind, since, percent in RATES])
            sales.append([{"sale": sale, "kind": kind, "sold_at": day(at)} for sale, (kind, at) in SALES.items()])
            for topic in (rates, sales):
                teller.declare_watermark(topic, day(25))
            running.wait_until_idle()
            rates.append([{"kind": "books", "since": day(8), "percent": 8}])
            running.wait_until_idle()
        found = {}
        for corrections in ("ignore", "re-emit"):
            view = stem.view(f"taxed.{corrections}")
            rows = view.to_arrow().to_pylist()
            found[corrections] = {row["sale"]: (row["percent"], row["valid_from"]) for row in rows}
            told = ", ".join(f"{row['sale']} {row['percent']} % since {row['valid_from']:%d.%m.}" for row in rows)
            print(f"{corrections:8} {told}")
            print(
                f"         after the correction {len(view.changes().rows) - len(SALES)} rows were taken back or put out"
            )
    expected = {"ignore": by_hand(RATES), "re-emit": by_hand([*RATES, ("books", 8, 8)])}
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
