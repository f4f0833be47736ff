"""The click-through rate: searches joined with clicks, both streams, within an hour (stream-stream join).

How often was a result clicked? A search and its click are two events of two streams, minutes apart, and either may come
first. A search without a click counts too, but when is that certain? In Mainstem `join(searches, clicks, on=...,
within="1 hour", how="left")` emits a pair at once, and one without a click when the watermark shows that none can come.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import mainstem
from mainstem import Flow
from mainstem.operators import join

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
RATES = "SELECT url, count(*) AS searches, count(clicked_at) AS clicks FROM outcomes GROUP BY url ORDER BY url"


def events() -> tuple[list[dict], list[dict]]:
    """Searches, and clicks on some of their results; some after more than an hour."""
    chance = random.Random(7)
    searches, clicks = [], []
    for number in range(120):
        at = NOON + timedelta(minutes=number)
        url, clicked = chance.choice([("/bikes", 0.6), ("/boats", 0.3), ("/books", 0.1)])
        searches.append({"search": f"s{number}", "url": url, "searched_at": at})
        if chance.random() < clicked:
            clicks.append({"search": f"s{number}", "clicked_at": at + timedelta(minutes=chance.choice([1, 5, 30, 90]))})
    return searches, sorted(clicks, key=lambda click: click["clicked_at"])


def flows(stem: mainstem.Mainstem):
    searches = stem.topic("searches").stream(watermark="10 minutes")
    clicks = stem.topic("clicks").stream(watermark="10 minutes")
    outcomes = join(searches, clicks, on="search", within=("0 seconds", "1 hour"), how="left")
    yield Flow(outcomes.select("search", "url", "clicked_at", "record"), into=stem.view("outcomes", key="search"))


def main(home: str) -> None:
    found, clicked = events()
    at = {search["search"]: search["searched_at"] for search in found}
    with mainstem.open(home) as stem:
        schema = "search string, url string, searched_at timestamp"
        searches = stem.create_topic("searches", schema=schema, event_time="searched_at")
        clicks = stem.create_topic("clicks", schema="search string, clicked_at timestamp", event_time="clicked_at")
        with stem.start(flows) as running:
            # The clicks of the first hour are appended before their searches, all others after them.
            clicks.append([click for click in clicked if click["clicked_at"] < NOON + HOUR])
            searches.append(found)
            running.wait_until_idle()
            print("so far:", _shown(stem.query(RATES).to_pylist()))
            clicks.append([click for click in clicked if click["clicked_at"] >= NOON + HOUR])
            teller = stem.producer("teller")
            for topic in (searches, clicks):
                teller.declare_watermark(topic, NOON + timedelta(hours=6))
            running.wait_until_idle()
        rates = stem.query(RATES).to_pylist()

    print("at the end:", _shown(rates))
    in_time = {c["search"] for c in clicked if c["clicked_at"] - at[c["search"]] <= HOUR}
    expected = [
        {"url": url, "searches": len(own), "clicks": len(in_time.intersection(own))}
        for url in ("/bikes", "/boats", "/books")
        for own in [[search["search"] for search in found if search["url"] == url]]
    ]
    if rates != expected:
        sys.exit(f"different: {rates}, expected {expected}")
    print("equal")


def _shown(rates: list[dict]) -> str:
    return ", ".join(f"{row['url']} {row['clicks']} of {row['searches']}" for row in rates)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
