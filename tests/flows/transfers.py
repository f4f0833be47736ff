"""Transfers between accounts, in transactions over two topics, and a flow that keeps the balances in a view.

    python tests/flows/transfers.py HOME            runs the flow until it is killed

What leaves an account and what comes into another lie in two topics. So the balances add up to nothing at every moment,
for whoever sees all of each transfer or nothing of it.
"""

import random
import sys
import threading
from collections.abc import Iterator

from pyspark.sql import functions as F

import mainstem
from mainstem import Mainstem
from mainstem.flows.flow import Flow

__all__ = ["ACCOUNTS", "Writers", "make_topics"]

ACCOUNTS = 32
PARTITIONS = 4
TOPICS = ("debits", "credits")


def make_topics(stem: Mainstem, schema: str = "account INT, n BIGINT") -> None:
    for name in TOPICS:
        stem.create_topic(name, schema=schema, key="account", partitions=PARTITIONS)


class Writers:
    """Some threads that transfer until they are told to stop; used with `with`.

    With `allowed` they begin so many transfers together, and wait until they are allowed more: whoever is slow to read them is
    not left behind by thousands.
    """

    def __init__(self, stem: Mainstem, count: int, seed: int, allowed: int | None = None) -> None:
        self.transfers = 0
        self._allowed = None if allowed is None else threading.Semaphore(allowed)
        self._stem = stem
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(1000 * seed + number,)) for number in range(count)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def allow(self, more: int) -> None:
        assert self._allowed is not None
        self._allowed.release(more)

    def stop(self) -> None:
        self._over.set()
        if self._allowed is not None:
            self._allowed.release(len(self._threads))
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while self._may_begin():
                self._transfer(chance)
        except BaseException as error:  # noqa: BLE001 - told by `stop`
            self._failed.append(error)

    def _may_begin(self) -> bool:
        if self._allowed is not None:
            self._allowed.acquire()
        return not self._over.is_set()

    def _transfer(self, chance: random.Random) -> None:
        debtor, *creditors = chance.sample(range(ACCOUNTS), 3)
        amount = chance.randrange(1, 100)
        transaction = self._stem.transaction()
        transaction.append("debits", [{"account": debtor, "n": -2 * amount}])
        for creditor in creditors:
            transaction.append("credits", [{"account": creditor, "n": amount}])
        if chance.random() < 0.1:
            transaction.abort()
            return
        transaction.commit()
        with self._guard:
            self.transfers += 1


def flows(stem: Mainstem) -> Iterator[Flow]:
    debits, credits_ = (stem.topic(name).stream().select("account", "n") for name in TOPICS)
    balances = debits.union(credits_).groupBy("account").agg(F.sum("n").alias("balance"))
    yield Flow(balances, into=stem.view("balances", key="account"))


def main(home: str) -> None:
    with mainstem.open(home, spark="local[2]") as stem, stem.start(flows) as running:
        running.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
