"""Acknowledgements and redelivery: load balancing reorders messages.

A consumer dies while it holds m3 and another one processes m4: m3 is delivered again, to the other, after m4. In
Mainstem a *queue* returns the messages of a dead process at once; with `ordered="by key"` it delivers no later message
of that key before. A *group* on the same topic reads by offset: it sees all messages, in order.
"""

import multiprocessing
import sys
import tempfile

import mainstem

MESSAGES = ["m1", "m2", "m3", "m4", "m5"]


def second_worker(home: str, queue: str, pipe) -> None:
    """Processes m2, takes m3, and dies."""
    with mainstem.open(home) as stem:
        for _ in range(2):
            pipe.recv()
            (message,) = stem.topic("events").queue(queue).take()
            pipe.send(message.row["name"])
            if message.row["name"] == "m2":
                message.acknowledge()
        pipe.recv()


def work(home: str, topic: mainstem.Topic, queue: str) -> tuple[list[str], list[int]]:
    """What the first worker sees while the second one works and dies, and how often each message was delivered."""
    pipe, other_end = multiprocessing.Pipe()
    second = multiprocessing.get_context("spawn").Process(target=second_worker, args=[home, queue, other_end])
    second.start()
    messages = topic.queue(queue)
    seen = messages.take()  # m1
    seen[0].acknowledge()
    for _ in ("m2", "m3"):
        pipe.send("go on")
        pipe.recv()
    taken = messages.take()  # m4, or nothing: m3 of the same key is held
    second.kill()
    second.join()
    while taken or (taken := messages.take()):
        message = taken.pop()
        message.acknowledge()
        seen.append(message)
    return [message.row["name"] for message in seen], [message.deliveries for message in seen]


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("events", schema="name string, customer string", key="customer")
        topic.append([{"name": name, "customer": "c-1"} for name in MESSAGES])
        topic.queue("plain")
        topic.queue("in_order", ordered="by key")
        found = {queue: work(home, topic, queue) for queue in ("plain", "in_order")}
        with topic.join_group("audit") as member:
            found["group"] = member.poll().column("name").to_pylist()
    for queue in ("plain", "in_order"):
        seen = [f"{name} (delivery {number})" for name, number in zip(*found[queue], strict=True)]
        print(f"queue {queue:9} worker 1 saw", *seen)
    print("group audit     saw", *found["group"], "(it alone saw all)")
    expected = {
        "plain": (["m1", "m4", "m3", "m5"], [1, 1, 2, 1]),
        "in_order": (["m1", "m3", "m4", "m5"], [1, 2, 1, 1]),
        "group": MESSAGES,
    }
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
