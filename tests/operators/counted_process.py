"""A process whose State is changed from one version of a program to the next: how often each user came."""

import sys
from dataclasses import dataclass

from pyspark import cloudpickle

from mainstem.operators.processes.process_class import Process

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Counted(Process):
    output = "user STRING, said STRING"

    @dataclass
    class State:
        count: int = 0

    def on_rows(self, key, rows, state, timers):
        for row in rows:
            state.count += 1
            if row.get("page") == "/bad":
                raise ValueError("no such page")
            yield {"user": key, "said": str(state.count)}


class Renamed(Counted):
    """Another state, and nothing is said of it."""

    @dataclass
    class State:
        total: int = 0

    def on_rows(self, key, rows, state, timers):
        for _ in rows:
            state.total += 1
            yield {"user": key, "said": str(state.total)}


class Raised(Renamed):
    """Another version, and no way from the one before."""

    version = 2


class Upgraded(Raised):
    def upgrade(self, old):
        return self.State(total=1000 + old["count"])


class SameUpgraded(Counted):
    """A version of the same state, which its rows do not change."""

    version = 2

    def upgrade(self, old):
        return self.State(**old)

    def on_rows(self, key, rows, state, timers):
        list(rows)


def in_place(using):
    """As if it were the same class, changed in place."""
    return type("Counted", (using,), {})
