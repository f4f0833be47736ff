"""Case A18: what users of a broker know: topic routing, fair dispatch, redelivery, delayed retry, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainstem.clock import ManualClock
from mainstem.log.backoff import Backoff
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.queues.message import Message
from mainstem.log.queues.queue import Queue
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.acceptance.case_files import case
from tests.contracts.other_process import Line, Opener, OtherProcess

CASE = case("A18")
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def opener(tmp_path: Path, clock: ManualClock) -> Opener:
    return lambda: Mainstem(EmbeddedLog(tmp_path / "home", clock=clock))


@pytest.fixture
def stem(opener: Opener) -> Iterator[Mainstem]:
    with opener() as stem:
        yield stem


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("messages", schema="body string", key="body")


def bodies(messages: list[Message]) -> list[str]:
    return [message.row["body"] for message in messages]


def send(topic: Topic, messages: list[str]) -> None:
    for message in messages:
        topic.append([{"body": message}])


def bound(topic: Topic, name: str, patterns: list[str]) -> Queue:
    return topic.queue(name, where=" OR ".join(f"routed(body, '{pattern}')" for pattern in patterns))


# Routing


def test_messages_go_to_every_queue_that_is_bound_to_them_and_once_to_each(topic: Topic) -> None:
    exchange = CASE["topic_exchange"]
    queues = {name: bound(topic, name, patterns) for name, patterns in exchange["bindings"].items()}
    send(topic, list(exchange["expected"]))
    received = {name: bodies(queue.take(100)) for name, queue in queues.items()}
    # "Q2 (once, although two bindings match)" is Q2 with a remark.
    expected = {
        name: [key for key, to in exchange["expected"].items() if name in [word.split()[0] for word in to]]
        for name in queues
    }
    assert received == expected


def test_the_two_ends_of_patterns(topic: Topic) -> None:
    exchange = CASE["topic_exchange"]
    assert set(exchange["degenerate"]) == {"#", "no wildcard"}
    keys = list(exchange["expected"])
    everything = bound(topic, "everything", ["#"])
    direct = {f"direct-{number}": key for number, key in enumerate(keys)}
    queues = {name: bound(topic, name, [key]) for name, key in direct.items()}
    send(topic, keys)
    assert bodies(everything.take(100)) == keys
    assert {name: bodies(queue.take(100)) for name, queue in queues.items()} == {
        name: [key] for name, key in direct.items()
    }


def test_what_the_wildcards_stand_for(topic: Topic) -> None:
    assert CASE["topic_exchange"]["rules"] == {"*": "exactly one word", "#": "zero or more words"}
    one = bound(topic, "one", ["a.*.c"])
    several = bound(topic, "several", ["a.#.c"])
    send(topic, ["a.c", "a.b.c", "a.b.b.c", "a..c", "ab.c", "x.a.b.c", "a.b.c.d"])
    assert bodies(one.take(100)) == ["a.b.c", "a..c"]
    assert bodies(several.take(100)) == ["a.c", "a.b.c", "a.b.b.c", "a..c"]


# Dispatch


def test_workers_that_take_in_turn_share_the_messages_round_robin(opener: Opener, topic: Topic) -> None:
    facts = CASE["round_robin"]
    send(topic, facts["messages"])
    stems = {name: opener() for name in facts["consumers"]}
    workers = {name: stem.topic("messages").queue("work") for name, stem in stems.items()}
    received: dict[str, list[str]] = {name: [] for name in workers}
    for turn in range(len(facts["messages"])):
        name = facts["consumers"][turn % len(workers)]
        [message] = workers[name].take()
        received[name].append(message.row["body"])
        message.acknowledge()
    assert received == {name: facts[name] for name in facts["consumers"]}
    for stem in stems.values():
        stem.close()


# Redelivery


def test_a_message_of_a_dead_consumer_comes_after_what_was_being_worked_on(opener: Opener, topic: Topic) -> None:
    facts = CASE["redelivery_order"]
    messages, tail = facts["messages"], facts["consumer_1_order_tail"]
    lost = next(
        message
        for message, after in zip(tail[1:], tail, strict=False)
        if messages.index(message) < messages.index(after)
    )
    send(topic, messages)
    queue = topic.queue("shared", lease="1 hour")
    dying = OtherProcess(opener, _consume, lost)
    seen: list[Message] = []
    held_by_the_other = None
    while len(seen) < len(messages):
        if held_by_the_other != lost and (not seen or seen[-1].row["body"] != tail[0]):
            # Both take in turn and are done with everything up to the one that is lost.
            dying.say("take")
            held_by_the_other = dying.hear()
            if held_by_the_other != lost:
                dying.say("acknowledge")
                dying.hear()
        [message] = queue.take()
        seen.append(message)
        if message.row["body"] == tail[0]:
            dying.kill()
        message.acknowledge()
        if message.row["body"] == tail[-1]:
            break
    dying.close()
    assert bodies(seen)[-len(tail) :] == tail
    again = next(message for message in seen if message.row["body"] == lost)
    assert (again.redelivered, again.deliveries) == (True, 2)
    assert [message.redelivered for message in seen if message is not again] == [False] * (len(seen) - 1)


def test_with_a_queue_for_each_consumer_the_order_stays(opener: Opener, topic: Topic) -> None:
    facts = CASE["redelivery_order"]
    tail = sorted(facts["consumer_1_order_tail"], key=facts["messages"].index)
    send(topic, facts["messages"])
    dying = OtherProcess(opener, _consume, tail[0], "consumer-2")
    own = topic.queue("consumer-1", lease="1 hour")
    dying.say("take")
    dying.hear()
    seen = []
    while messages := own.take():
        if messages[0].row["body"] == tail[1]:
            dying.kill()
        seen += bodies(messages)
        messages[0].acknowledge()
    dying.close()
    assert seen == facts["messages"]
    assert seen[-len(tail) :] == tail


def _consume(stem: Mainstem, line: Line, lost: str, queue_name: str = "shared") -> None:
    queue = stem.topic("messages").queue(queue_name, lease="1 hour")
    while line.hear() == "take":
        [message] = queue.take()
        line.say(message.row["body"])
        if message.row["body"] == lost:
            line.hear()
        line.hear()
        message.acknowledge()
        line.say("acknowledged")


# Retry


@pytest.mark.parametrize(("deliveries", "milliseconds"), CASE["delayed_retry"]["expected_ms"].items())
def test_the_delay_grows_as_the_formula_says(deliveries: str, milliseconds: int) -> None:
    facts = CASE["delayed_retry"]
    retry = Backoff(facts["min_ms"] * MILLISECOND, max=facts["max_ms"] * MILLISECOND)
    assert retry.delay(int(deliveries)) == milliseconds * MILLISECOND


def test_a_message_that_fails_waits_as_long_as_the_formula_says(topic: Topic, clock: ManualClock) -> None:
    facts = CASE["delayed_retry"]
    assert facts["formula"] == "delay = min(min_delay * delivery_count, max_delay)"
    expected = {int(count): milliseconds for count, milliseconds in facts["expected_ms"].items()}
    queue = topic.queue(
        "retried", lease="1 hour", retry=Backoff(facts["min_ms"] * MILLISECOND, max=facts["max_ms"] * MILLISECOND)
    )
    send(topic, ["poison"])
    for count in range(1, max(expected) + 1):
        [message] = queue.take()
        assert message.deliveries == count
        message.release()
        delay = expected.get(count, min(facts["min_ms"] * count, facts["max_ms"]))
        clock.advance((delay - 1) * MILLISECOND)
        assert queue.take() == []
        clock.advance(MILLISECOND)
    assert bodies(queue.take()) == ["poison"]


# Dead letters


def _rejected(topic: Topic, clock: ManualClock) -> None:
    [message] = topic.queue("dead").take()
    message.reject("no such address")


def _expired(topic: Topic, clock: ManualClock) -> None:
    queue = topic.queue("dead", expires="1 minute")
    clock.advance("61 seconds")
    assert queue.take() == []


def _over_the_length(topic: Topic, clock: ManualClock) -> None:
    queue = topic.queue("dead", length_max=1)
    send(topic, ["another"])
    assert bodies(queue.take(10)) == ["another"]


def _over_the_deliveries(topic: Topic, clock: ManualClock) -> None:
    queue = topic.queue("dead", deliveries_max=2)
    for _ in range(2):
        [message] = queue.take()
        message.release()
    assert queue.take() == []


CAUSES: dict[str, tuple[str, Callable[[Topic, ManualClock], None]]] = {
    "rejected without requeue": ("rejected", _rejected),
    "expired": ("expired", _expired),
    "dropped by a length limit": ("length", _over_the_length),
    "returned more often than the delivery limit": ("deliveries", _over_the_deliveries),
}


@pytest.mark.parametrize("words", CASE["dead_letter_causes"])
def test_what_cannot_be_done_is_kept_with_its_cause(
    words: str, stem: Mainstem, topic: Topic, clock: ManualClock
) -> None:
    cause, happen = CAUSES[words]
    send(topic, ["poison"])
    happen(topic, clock)
    rows: list[dict[str, Any]] = stem.topic("messages.dead.rejected").to_arrow().to_pylist()
    assert [(row["body"], row["rejection"]["cause"]) for row in rows] == [("poison", cause)]
    assert rows[0]["rejection"]["reason"]


def test_the_end_of_a_whole_queue_is_no_cause(stem: Mainstem, topic: Topic) -> None:
    assert CASE["not_a_cause"] == "expiry of the whole queue"
    send(topic, ["poison"])
    queue = topic.queue("dead")
    queue.take()
    queue.delete()
    assert [name for name in stem.topics() if name.endswith("rejected")] in ([], ["messages.dead.rejected"])
    if "messages.dead.rejected" in stem.topics():
        assert len(stem.topic("messages.dead.rejected").to_arrow()) == 0
