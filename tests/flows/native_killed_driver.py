"""The flows of `native_shop` over a history of sealed files, in a process that is killed at a named point, Spark and all.

    python tests/flows/native_killed_driver.py HOME

MAINSTEM_CRASH_AT names the point; whoever reaches it kills the whole process group.
"""

import os
import sys
import types

import mainstem
from mainstem import crash_points
from mainstem.flows import native_catch_up
from tests.flows.native_shop import flows

SINKS = ["counted", "copied"]


def main(home: str) -> None:
    group = os.getpgid(0)
    crash_points.os = types.SimpleNamespace(
        environ=os.environ, getpid=os.getpid, kill=lambda _, signal: os.killpg(group, signal)
    )
    native_catch_up.ROWS_MIN = 1
    with mainstem.open(home, upkeep="manual", spark="local[2]") as stem:
        stem.run(lambda stem: flows(stem, "native", "", SINKS), until="idle")


if __name__ == "__main__":
    main(*sys.argv[1:])
