"""Table-table join: the timeline cache.

A timeline is tweets joined with follows: `select follows.follower, tweets.* from tweets join follows on author = followee`,
kept as a table of its own because it is asked so often. Both sides change: somebody follows, unfollows, deletes a tweet. In
Mainstem each side is a *changing table*, and so are their join, the newest 20 of each follower, and the list made of them: a
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

PEOPLE = ["ada", "bob", "cyd", "dan"]
NEWEST = 20
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def timelines(stem: mainstem.Mainstem):
    tweets = table(stem.topic("tweets").stream(), key="tweet")
    follows = table(stem.topic("follows").stream(), key=["follower", "followee"])
    inbox = join(tweets, follows, on={"author": "followee"})
    newest = top(inbox, NEWEST, by="follower", order=F.desc("posted_at"))
    lists = F.reverse(F.collect_list(F.struct("posted_at", "author", "text")))
    yield Flow(
        aggregate(newest, by="follower", aggregates=lists.alias("tweets")), into=stem.view("timelines", key="follower")
    )


def tweet(number: int, author: str) -> dict:
    return {"tweet": number, "author": author, "text": f"no. {number}", "posted_at": NOON + timedelta(minutes=number)}


def recomputed(tweets: dict[int, dict], follows: set[tuple[str, str]]) -> dict[str, list[str]]:
    """Every timeline that is not empty, from scratch."""
    found = {}
    for follower in PEOPLE:
        mine = [one for one in tweets.values() if (follower, one["author"]) in follows]
        mine.sort(key=lambda one: one["posted_at"], reverse=True)
        if mine:
            found[follower] = [f"{one['author']}: {one['text']}" for one in mine[:NEWEST]]
    return found


def main(home: str) -> None:
    chance = random.Random(20)
    numbers = itertools.count()
    tweets: dict[int, dict] = {}
    follows: set[tuple[str, str]] = set()
    with mainstem.open(home) as stem:
        posted = stem.create_topic(
            "tweets", schema="tweet BIGINT, author STRING, text STRING, posted_at TIMESTAMP", key="tweet"
        )
        following = stem.create_topic(
            "follows", schema="follower STRING, followee STRING", key=["follower", "followee"]
        )
        with stem.start(timelines) as running:
            for event in ("follow", "tweet", "unfollow", "delete", "tweet", "follow"):
                if event == "tweet":
                    new = [tweet(next(numbers), chance.choice(PEOPLE)) for _ in range(30)]
                    posted.append(new)
                    tweets |= {one["tweet"]: one for one in new}
                elif event == "delete":
                    gone = chance.sample(sorted(tweets), 10)
                    posted.delete(gone)
                    tweets = {number: one for number, one in tweets.items() if number not in gone}
                elif event == "follow":
                    pairs = {
                        (one, other) for one in PEOPLE for other in PEOPLE if one != other and chance.random() < 0.6
                    }
                    following.append([{"follower": one, "followee": other} for one, other in sorted(pairs)])
                    follows |= pairs
                else:
                    left = chance.sample(sorted(follows), 2)
                    following.delete(left)
                    follows -= set(left)
                running.wait_until_idle()
                rows = stem.view("timelines").to_arrow().to_pylist()
                found = {row["follower"]: [f"{of['author']}: {of['text']}" for of in row["tweets"]] for row in rows}
                print(f"after {event:8}", {follower: len(of) for follower, of in sorted(found.items())})
                if found != recomputed(tweets, follows):
                    sys.exit(f"different: {found}, expected {recomputed(tweets, follows)}")
            newest = stem.view("timelines").get("ada")["tweets"][0]
            print(f"ada's timeline, one look-up: {newest['author']}: {newest['text']}, ...")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
