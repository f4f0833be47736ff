"""A process is stopped at every call while it writes in transactions: of each, all is seen or nothing, for ever.

Two topics and a group's offsets take part. What was committed is there after a kill and after a power cut; what was
not decided is aborted by who comes by once its time is over; a producer's sequence of an aborted one can be used again.
"""

import itertools
from collections.abc import Callable

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import MainstemError
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.transaction_log import TransactionLog
from mainstem.stem import Mainstem
from tests.log.embedded.memory_disk import MODES
from tests.log.embedded.memory_files import MemoryFiles, Stopped

HOME = "/home"
SEED = 4711


class World:
    """The home, what was acknowledged, and which transactions were begun, committed and aborted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.acknowledged: list[int] = []
        self.begun: list[int] = []
        self.committed: list[int] = []
        with self.opened(self.files) as stem:
            for name in ("orders", "payments"):
                stem.create_topic(name, schema="n INT", key="n")
            self.ledger(stem).decide(lambda state, now: ([{"kind": "opened", "offsets": {"0": 0}}], None))
            stem.producer("checkout")
        self.files.sync_everything()

    def opened(self, files: MemoryFiles) -> Mainstem:
        return Mainstem(EmbeddedLog(HOME, files=files, clock=self.clock))

    def ledger(self, stem: Mainstem) -> object:
        return stem.topic("orders").backend.group_ledger("billing")

    def script(self) -> None:
        """Transaction n appends n to both topics and lets the group go on to n."""
        with self.opened(self.files) as stem:
            producer = stem.producer("checkout")
            for n in range(1, 7):
                transaction = producer.transaction(timeout="1 minute") if n % 3 == 0 else stem.transaction()
                self.begun.append(n)
                if n % 3 == 0:
                    transaction.append("orders", [{"n": n}], sequence=n)
                else:
                    transaction.append("orders", [{"n": n}])
                stem.log.join_group_offsets(transaction.id, "orders", "billing")
                pending = {"kind": "pending", "transaction": str(transaction.id), "member": "m", "offsets": {"0": n}}
                self.ledger(stem).decide(lambda state, now, pending=pending: ([pending], None))
                transaction.append("payments", [{"n": n}])
                if n % 2:
                    transaction.commit()
                    self.committed.append(n)
                else:
                    transaction.abort()
                    self.begun.remove(n)
                stem.topic("orders").append([{"n": 100 + n}])
                self.acknowledged.append(100 + n)
                if n == 3:
                    stem.topic("orders").seal()

    def violations(self, files: MemoryFiles, where: str) -> list[str]:
        """What is wrong on this machine: as it is found, and after all that was left behind is settled."""
        wrong = []
        try:
            with self.opened(files) as stem:
                wrong += self._look(stem, f"{where}, as found", settled=False)
                self.clock.advance("2 minutes")
                stem.log.transactions.settle()
                wrong += self._look(stem, f"{where}, settled", settled=True)
                stem.topic("orders").append([{"n": 999}])
                if 999 not in shown(stem, "orders"):
                    wrong.append(f"{where}: an append after it is not seen")
        except MainstemError as error:
            wrong.append(f"{where}: {error!r} {error.detail}")
        return wrong

    def _look(self, stem: Mainstem, where: str, *, settled: bool) -> list[str]:
        orders, payments = shown(stem, "orders"), shown(stem, "payments")
        offset = self.ledger(stem).current().committed[0]
        here = {n for n in orders if n < 100}
        wrong = [f"{where}: {n} was acknowledged and is gone" for n in self.acknowledged if n not in orders]
        wrong += [f"{where}: {n} is there {orders.count(n)} times" for n in orders if orders.count(n) > 1]
        if here != set(payments):
            wrong.append(f"{where}: orders show {sorted(here)}, payments {sorted(payments)}")
        if lost := [n for n in self.committed if n not in here]:
            wrong.append(f"{where}: {lost} were committed and are gone")
        if strange := [n for n in here if n not in self.begun]:
            wrong.append(f"{where}: {strange} were aborted and are seen")
        if settled and offset != max(here, default=0):
            wrong.append(f"{where}: {sorted(here)} are seen, and the group is at {offset}")
        return wrong


def shown(stem: Mainstem, topic: str) -> list[int]:
    return stem.topic(topic).to_arrow().column("n").to_pylist()


def try_point(call: int, done: str) -> tuple[int, list[str]] | None:
    world = World()
    world.files.stop_at(call, done=done)
    try:
        world.script()
    except Stopped:
        pass
    else:
        return None
    where = f"call {call} ({done} done)"
    mode = MODES[call % len(MODES)]
    after_cut = world.files.crash(SEED + call, mode)
    wrong = world.violations(world.files.killed(), f"{where}, killed")
    wrong += world.violations(after_cut, f"{where}, power cut ({mode})")
    return len(world.acknowledged) + len(world.begun), wrong


def run(every: int, *, enough: int | None = None) -> tuple[int, int, list[str]]:
    points = compared = 0
    violations: list[str] = []
    for done in ("nothing", "all"):
        for call in itertools.count(1 + SEED % every, every):
            tried = try_point(call, done)
            if tried is None:
                break
            points += 1
            compared += tried[0]
            violations += tried[1]
            if enough is not None and len(violations) >= enough:
                return points, compared, violations
    return points, compared, violations


@pytest.mark.thorough
def test_all_of_a_transaction_or_nothing_wherever_its_process_stops(fault_report: Callable[..., None]) -> None:
    points, compared, violations = run(every=7)
    fault_report("transactions", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", ["markers before the decision", "no markers for who comes by", "no decision at all"])
def test_what_breaks_transactions_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decide, finish, settle = TransactionLog.decide, TransactionLog._finish, TransactionLog.settle

    def markers_first(self: TransactionLog, number: int, outcome: str) -> None:
        for participant in self._ledger.current().transactions[number].participants:
            self._mark(participant, number, 0, outcome)
        decide(self, number, outcome)

    if mutant == "markers before the decision":
        monkeypatch.setattr(TransactionLog, "decide", markers_first)
    elif mutant == "no decision at all":
        monkeypatch.setattr(
            TransactionLog,
            "decide",
            lambda self, number, outcome: [
                self._mark(participant, number, 0, outcome)
                for participant in self._ledger.current().transactions[number].participants
            ],
        )
    else:
        monkeypatch.setattr(
            TransactionLog, "settle", lambda self: (monkeypatch.setattr(TransactionLog, "_finish", lambda *_: None), settle(self), monkeypatch.setattr(TransactionLog, "_finish", finish))
        )  # fmt: skip
    assert run(every=5, enough=1)[2]
