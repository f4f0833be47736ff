"""Fencing: a run that was considered dead, and was only paused.

A process pauses (a long garbage collection, a closed laptop), its successor is started, and then it continues. In
Mainstem every run of a flow has an *epoch*, recorded before it begins, and each sink checks it in its own commit: the
paused (zombie) run is fenced, and its error says why.
"""

import multiprocessing
import os
import signal
import sys
import tempfile

import mainstem
from mainstem import Flow, FlowFailed


def flows(stem: mainstem.Mainstem):
    yield Flow(stem.topic("orders").stream().select("order_id"), into=stem.topic("shipments"))


def run_asleep(home: str, said) -> None:
    """A run that lives until it is fenced."""
    with mainstem.open(home) as stem, stem.start(flows) as running:
        running.wait_until_idle()
        said.put("awake")
        try:
            running.wait()
        except FlowFailed as error:
            cause = error.__cause__
            said.put([type(cause).__name__, getattr(cause, "summary", str(cause)), getattr(cause, "detail", "")])


def orders(first: int, end: int) -> list[dict]:
    return [{"order_id": number} for number in range(first, end)]


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("orders", schema="order_id bigint")
        topic.append(orders(0, 50))
        context = multiprocessing.get_context("spawn")
        said = context.Queue()
        older = context.Process(target=run_asleep, args=[home, said])
        older.start()
        said.get(timeout=120)
        os.kill(older.pid, signal.SIGSTOP)
        # It pauses in the middle of this batch: Spark has asked it to write the rows read here.
        topic.append(orders(50, 80))
        stem.run(flows, until="idle")
        print("asleep; its successor has shipped", len(stem.topic("shipments").to_arrow()))
        os.kill(older.pid, signal.SIGCONT)
        kind, message, detail = said.get(timeout=120)
        older.join()
        print(f"awake again: {kind}: {message}. {detail}")
        topic.append(orders(80, 100))
        stem.run(flows, until="idle")
        found = sorted(stem.topic("shipments").to_arrow().column("order_id").to_pylist())

    print("shipped in all:", len(found))
    if (kind, found) != ("Fenced", list(range(100))):
        sys.exit(f"different: {kind}, {found}, expected each of 100 once")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
