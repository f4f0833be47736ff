"""Somebody who appends and somebody who reads while a broker is killed, and what must hold of what they saw."""

import threading
from collections import Counter
from collections.abc import Callable

from mainstem.errors import Unavailable
from mainstem.log.record import next_offset
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem

# One for each of the four partitions of the topic.
KEYS = ("key-0", "key-1", "key-2", "key-3")
SECONDS_MAX = 300


def row_of(number: int) -> list[dict[str, object]]:
    return [{"k": key, "n": number} for key in KEYS]


class Appender:
    """Appends numbers in order under their sequence, and in between transactions that are aborted."""

    def __init__(self, stem: Mainstem, topic: Topic) -> None:
        self.acknowledged: list[int] = []
        self.failures: list[BaseException] = []
        self._stem = stem
        self._topic = topic
        self._stop = threading.Event()
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        producer = self._stem.producer("counting")
        number = 0
        while not self._stop.is_set():
            try:
                producer.append(self._topic, row_of(number), sequence=number)
                if number % 3 == 0:
                    undone = producer.transaction()
                    undone.append(self._topic, row_of(-number - 1), sequence=number + 1)
                    undone.abort()
            except Unavailable:
                # It may be there or not: whoever does not know does it again.
                continue
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self.failures.append(error)
                return
            self.acknowledged.append(number)
            number += 1
            with self._grown:
                self._grown.notify_all()

    def wait_for(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: self.failures or len(self.acknowledged) >= count, SECONDS_MAX)
        if self.failures:
            raise self.failures[0]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS_MAX)


class Follower:
    """Follows the topic through everything that happens, from where it had come."""

    def __init__(self, topic: Topic) -> None:
        self.seen: Counter[tuple[int, str]] = Counter()
        self._positions: dict[int, int] = {}
        self._topic = topic
        self._enough: Callable[[], bool] = lambda: False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough():
            try:
                start = {number: self._positions.get(number, 0) for number in range(4)}
                for batch in self._topic.follow(start=start, wait="1 second"):
                    [partition] = set(batch.column("record").field("partition").to_pylist())
                    self._positions[partition] = next_offset(batch)
                    self.seen.update((row["n"], row["k"]) for row in batch.to_pylist())
            except Unavailable:
                continue

    def read_all(self, numbers: list[int]) -> None:
        """Go on until all of these were seen, or nothing more comes."""
        last = numbers[-1]
        self._enough = lambda: all((last, key) in self.seen for key in KEYS)
        self._thread.join(SECONDS_MAX)


def violations(acknowledged: list[int], seen: Counter[tuple[int, str]]) -> list[str]:
    """Acknowledged and not read, read twice, or read although it was aborted."""
    lost = [f"lost {n} {key}" for n in acknowledged for key in KEYS if not seen[n, key]]
    twice = [f"twice {place}" for place, count in seen.items() if count > 1]
    aborted = [f"aborted {place}" for place in seen if place[0] < 0]
    return lost + twice + aborted
