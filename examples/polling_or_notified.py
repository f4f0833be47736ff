"""Polling or being notified.

A consumer can poll for new events, or be notified of them. Frequent polling wastes work, rare polling is late. In
Mainstem `topic.batches(start=...)` reads existing records; `topic.follow()` blocks, and an append of any process wakes
it.
"""

import queue
import sys
import tempfile
import threading

import mainstem

APPENDED = {1: "a", 10: "b", 18: "c"}  # the event of some of 21 rounds


class Poller:
    """Polls at an interval of some rounds."""

    def __init__(self, topic: mainstem.Topic, every: int) -> None:
        self.topic, self.every, self.looks, self.rounds_late, self.rows = topic, every, 0, 0, []

    def look(self, current: int) -> None:
        new = self.topic.to_arrow(start={0: len(self.rows)}).column("name").to_pylist()
        self.looks += 1
        self.rounds_late += sum(current - at for at, name in APPENDED.items() if name in new)
        self.rows += new


def follow(home: str, woken: queue.Queue) -> None:
    with mainstem.open(home) as stem:
        for number, batch in enumerate(stem.topic("events").follow(start="earliest"), start=1):
            woken.put(batch.column("name").to_pylist())
            if number == len(APPENDED):
                return


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        events = stem.create_topic("events", schema="name string")
        woken: queue.Queue = queue.Queue()
        follower = threading.Thread(target=follow, args=[home, woken])
        follower.start()
        pollers, followed = [Poller(events, every=1), Poller(events, every=4)], []
        for current in range(21):
            if current in APPENDED:
                events.append([{"name": APPENDED[current]}])
                followed += woken.get(timeout=60)  # in the same round
            for poller in pollers:
                if current % poller.every == 0:
                    poller.look(current)
        follower.join()

    print(f"following                {len(followed)} rows, woken 3 times, 0 rounds late")
    for poller in pollers:
        shown = f"polling every {poller.every} round{'s' * (poller.every > 1)}"
        print(f"{shown:25}{len(poller.rows)} rows, looked {poller.looks} times, {poller.rounds_late} rounds late")
    found, expected = [followed, *(poller.rows for poller in pollers)], [list(APPENDED.values())] * 3
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
