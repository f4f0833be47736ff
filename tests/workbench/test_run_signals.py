"""Ctrl-C and SIGTERM during a run."""

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from mainstem.clock import SystemClock
from mainstem.flows.flow_handle import FlowHandle, spark_has_ended
from mainstem.workbench.cli.run_command import handle_signals


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_one_asks_and_a_second_one_does_not_wait(number, status):
    before = signal.getsignal(number)
    with handle_signals() as signals:
        assert (signals.wait(0), signals.status) == (False, 0)
        os.kill(os.getpid(), number)
        assert signals.wait(300)
        assert signals.status == status
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    assert signal.getsignal(number) is before


def test_in_another_thread_nothing_is_heeded_and_nothing_breaks():
    found: list[int] = []

    def inside() -> None:
        with handle_signals() as signals:
            found.append(signals.status)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()

    assert found == [0]


PROGRAM = """
from mainstem import Flow

def flows(stem):
    yield Flow(stem.topic("orders").stream(), into=stem.topic("copied"))
"""


@pytest.mark.starts_servers
def test_a_signal_to_the_whole_group_of_processes_stops_a_run_quietly(stem, orders, place):
    orders.append([{"order_id": "o-1"}])
    (place / "shop.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mainstem.workbench.cli.main", "run", "shop.py", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        while '"batch": 0' not in run.stdout.readline():
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGTERM)
        out, err = run.communicate(timeout=300)

    assert (run.returncode, err) == (143, "stopping; press Ctrl-C again to stop at once\n")
    assert '"state": "stopped"' in out.splitlines()[-1]


def test_a_flow_whose_java_has_ended_can_be_stopped():
    class Gone:
        isActive = True  # noqa: N815 - as Spark calls it

        def stop(self) -> None:
            raise Py4JNetworkError("Answer from Java side is empty")

    handle = FlowHandle(SimpleNamespace(name="copy", flow=SimpleNamespace(every_us=None)), SystemClock())
    handle.query = Gone()
    handle.become("stopped")
    handle.stop()

    assert handle.stopping.is_set()
    assert spark_has_ended(ConnectionRefusedError())
    assert spark_has_ended(RuntimeError("Job 3 cancelled because SparkContext was shut down"))
    assert not spark_has_ended(RuntimeError("no"))
