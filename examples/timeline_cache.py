"""Table-table join: the timeline cache.

A timeline is tweets joined with follows: `select follows.follower, tweets.* from tweets join follows on author =
followee`, kept as a table because it is read so often. Both sides change: users follow, unfollow, delete a tweet. In
Mainstem each side is a *changing table*, and so are their join, the newest 20 of each follower, and the list of them: a
view that answers with one look-up.
"""

import itertools
import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import aggregate, join, table, top

PEOPLE, NEWEST = ["ada", "bob", "cyd", "dan"], 20
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def timelines(stem: mainstem.Mainstem):
    tweets = table(stem.topic("tweets").stream(), key="tweet")
    follows = table(stem.topic("follows").stream(), key=["follower", "followee"])
    newest = top(join(tweets, follows, on={"author": "followee"}), NEWEST, by="follower", order=F.desc("posted_at"))
    lists = F.reverse(F.collect_list(F.struct("posted_at", "author", "text")))
    rows = aggregate(newest, by="follower", aggregates=lists.alias("tweets"))
    yield Flow(rows, into=stem.view("timelines", key="follower"))


def recomputed(tweets: dict[int, dict], follows: set[tuple[str, str]]) -> dict[str, list[dict]]:
    found = {}
    for follower, (_, one) in itertools.product(PEOPLE, sorted(tweets.items(), reverse=True)):
        if (follower, one["author"]) in follows:
            found.setdefault(follower, []).append({name: one[name] for name in ("posted_at", "author", "text")})
    return {follower: mine[:NEWEST] for follower, mine in found.items()}


def changed(event: str, stem: mainstem.Mainstem, tweets: dict[int, dict], follows: set, chance: random.Random) -> None:
    if event == "tweet":
        for number in range(len(tweets), len(tweets) + 30):
            posted_at, author = NOON + timedelta(minutes=number), chance.choice(PEOPLE)
            tweets[number] = {"tweet": number, "author": author, "text": f"no. {number}", "posted_at": posted_at}
        stem.topic("tweets").append(list(tweets.values())[-30:])
    elif event == "delete":
        stem.topic("tweets").delete(gone := chance.sample(sorted(tweets), 10))
        tweets |= {number: {"author": "nobody"} for number in gone}
    elif event == "follow":
        pairs = {(one, other) for one in PEOPLE for other in PEOPLE if one != other and chance.random() < 0.6}
        stem.topic("follows").append([{"follower": one, "followee": other} for one, other in sorted(pairs)])
        follows |= pairs
    else:
        stem.topic("follows").delete(left := chance.sample(sorted(follows), 2))
        follows -= set(left)


def main(home: str) -> None:
    chance, tweets, follows = random.Random(20), {}, set()
    with mainstem.open(home) as stem:
        stem.create_topic("tweets", schema="tweet BIGINT, author STRING, text STRING, posted_at TIMESTAMP", key="tweet")
        stem.create_topic("follows", schema="follower STRING, followee STRING", key=["follower", "followee"])
        with stem.start(timelines) as running:
            for event in ("follow", "tweet", "unfollow", "delete", "tweet", "follow"):
                changed(event, stem, tweets, follows, chance)
                running.wait_until_idle()
                found = {row["follower"]: row["tweets"] for row in stem.view("timelines").to_arrow().to_pylist()}
                print(f"after {event:8}", {follower: len(of) for follower, of in sorted(found.items())})
                if found != recomputed(tweets, follows):
                    sys.exit(f"different: {found}, expected {recomputed(tweets, follows)}")
            newest = stem.view("timelines").get("ada")["tweets"][0]
            print(f"ada's timeline, one look-up: {newest['author']}: {newest['text']}, ...")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
