"""Ctrl-C and SIGTERM during a run."""

import os
import signal
import threading

import pytest

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
