"""A message broker or a log.

A broker deletes acknowledged messages: consuming is destructive, and a new consumer sees only later messages. A log
only appends: reading changes nothing, and can be repeated. In Mainstem a *queue* acknowledges, but over a topic that
keeps its records: any reader can read them again, and the queue itself can be rewound.
"""

import sys
import tempfile
from collections import deque

import mainstem

ORDERS = [{"order_id": f"o-{number}", "amount": 1.5 * number} for number in range(1, 7)]


def through_a_broker() -> tuple[int, int]:
    """Acknowledge and delete, in plain Python."""
    broker = deque(ORDERS)
    first = len([broker.popleft() for _ in range(len(broker))])
    return first, len(broker)


def through_a_group(topic: mainstem.Topic, name: str) -> list[dict]:
    with topic.join_group(name) as member:
        rows = member.poll().drop_columns(["record"]).to_pylist()
        member.commit()
        return rows


def through_a_queue(queue) -> list[dict]:
    taken = queue.take(100)
    queue.acknowledge([message.receipt for message in taken])
    return [message.row for message in taken]


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        orders = stem.create_topic("orders", schema="order_id string, amount double")
        orders.append(ORDERS)
        emails = orders.queue("emails")
        first = [through_a_queue(emails), through_a_group(orders, "billing")]
        again = [through_a_queue(emails), through_a_group(orders, "audit")]
        emails.rewind("earliest")
        rewound = through_a_queue(emails)

    print("a broker           first {}, again {}".format(*through_a_broker()))
    print(f"a queue over a log first {len(first[0])}, again {len(again[0])}, rewound {len(rewound)}")
    print(f"a log by offset    first {len(first[1])}, another group later {len(again[1])}")
    found = [first, again, rewound]
    expected = [[ORDERS, ORDERS], [[], ORDERS], ORDERS]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
