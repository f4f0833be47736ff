"""A compacted topic after the broker has compacted it: every way to read it finds the latest rows, where they were."""

from itertools import pairwise
from typing import Any

from mainstem.log.groups.group_member import Member
from tests.contracts.shown_rows import dicts
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.compacted_topic import PARTITIONS, CompactedTopic, without_filler
from tests.log.kafka.kafka_stems import opened, own_settings


def test_what_the_broker_left_is_read_where_it_was(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        stock = CompactedTopic(stem)
        topic, producer = stock.topic, stem.producer("till")
        producer.append(topic, [{"k": "a-0", "n": -1}], sequence=1)
        for number in range(20):
            stock.put({f"a-{article}": 100 * number + article for article in range(12)} | {f"once-{number}": number})
        stock.delete("a-3", "a-4")
        stock.put({"a-3": 7})
        # What is not committed is never the latest.
        undone = stem.transaction()
        undone.append(topic, [{"k": "once-0", "n": -1}])
        undone.abort()
        early = topic.join_group("early")
        begun = early.poll(rows_max=3).to_pylist()
        early.commit()
        before = {(row["k"], row["n"]): row["record"]["offset"] for row in without_filler(dicts(topic.to_arrow()))}
        stock.compacted()
        left = without_filler(dicts(topic.to_arrow()))

        # The latest of each key, and nothing else; a deleted key is gone with its tombstone.
        assert {row["k"]: row["n"] for row in left} == stock.latest
        assert len(left) == len(stock.latest) == 31
        # Each is where it was; offsets rise with gaps.
        assert all(row["record"]["offset"] == before[row["k"], row["n"]] for row in left)
        for partition in range(PARTITIONS):
            places = [row["record"]["offset"] for row in left if row["record"]["partition"] == partition]
            assert places == sorted(set(places))
            assert any(two - one > 1 for one, two in pairwise(places))
            # Who begins where a record was, or stops there, finds its neighbours.
            for place in range(0, places[-1], 3):
                found = without_filler(dicts(topic.batches(start={partition: place}, stop={partition: place + 5})))
                assert [row["record"]["offset"] for row in found] == [at for at in places if place <= at < place + 5]
        # And by every other way to read: fillers may still be compacted meanwhile.
        expected = sorted(map(str, left))
        followed = dicts(topic.follow(start="earliest", wait="0 seconds"))
        with topic.join_group("readers") as member:
            polled = rows_of(member)
        with early:
            # It goes on behind what it had; some of that is gone since.
            rest = without_filler(rows_of(early))
        behind = [row for row in left if row["record"]["partition"] != begun[0]["record"]["partition"]
                  or row["record"]["offset"] > begun[-1]["record"]["offset"]]  # fmt: skip
        assert sorted(map(str, rest)) == sorted(map(str, behind))
        assert sorted(map(str, without_filler(followed))) == expected
        assert sorted(map(str, without_filler(polled))) == expected
        taken = without_filler([it.row for it in topic.queue("work").take(100)])
        asked = stem.query("SELECT k, n FROM stock WHERE k NOT LIKE 'filler%'").to_pylist()
        for found in (taken, asked):
            assert sorted((row["k"], row["n"]) for row in found) == sorted(stock.latest.items())
        # A sequence outlives its records.
        assert not producer.append(topic, [{"k": "a-0", "n": -1}], sequence=1).appended


def rows_of(member: Member) -> list[dict[str, Any]]:
    found = []
    while batch := member.poll():
        found += batch.to_pylist()
    member.commit()
    return found
