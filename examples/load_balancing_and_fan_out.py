"""Load balancing and fan-out (competing consumers, publish/subscribe).

Each message to one of several workers, or each message to every subscriber: one topic serves both at once. In Mainstem
the workers share a *queue*, each subscriber is a *group*, and the members of a group share its partitions.
"""

import sys
import tempfile

import mainstem

MESSAGES = [f"m{number}" for number in range(1, 13)]


def read_all(member) -> list[str]:
    names = []
    while (batch := member.poll()) is not None:
        names += batch.column("name").to_pylist()
    member.commit()
    return names


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("events", schema="name string", key="name", partitions=2)
        for name in MESSAGES:
            topic.append([{"name": name}])

        mails = topic.queue("mails")
        workers: list[list[str]] = [[], []]
        while True:
            taken = [mails.take() for _ in workers]  # one at a time, in turn: round robin
            if not any(taken):
                break
            for worker, messages in zip(workers, taken, strict=True):
                for message in messages:
                    worker.append(message.row["name"])
                    message.acknowledge()

        with topic.join_group("billing") as first, topic.join_group("billing") as second:
            billing = [read_all(first), read_all(second)]
        with topic.join_group("audit") as alone:
            audit = read_all(alone)

    print("queue mails    worker 1:", *workers[0])
    print("               worker 2:", *workers[1])
    print(f"group billing  two members read {len(billing[0])} and {len(billing[1])} messages, each its own partition")
    print(f"group audit    one member read {len(audit)}")

    found = [*workers, sorted(billing[0] + billing[1]), sorted(audit)]
    expected = [MESSAGES[0::2], MESSAGES[1::2], sorted(MESSAGES), sorted(MESSAGES)]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
