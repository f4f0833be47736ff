"""Which processes are gone, as one can know it among several machines.

Of a process of this machine one knows at once. Of another machine's one knows nothing: what it holds comes back when its
lease or session is over, as after a cut of the network. Containers on one machine are several machines in this.
"""

from __future__ import annotations

import os
from functools import lru_cache

from mainstem.log import processes
from mainstem.log.processes import Identity

__all__ = ["MachineProcesses", "known_dead", "this_process"]


@lru_cache(maxsize=1)
def _machine() -> str:
    """This start of this machine, and among its containers the one in which process ids are as we see them."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{processes.boot_id()} {namespace}".strip()


def this_process() -> Identity:
    """Who we are, among all machines."""
    return {**processes.this_process(), "boot": _machine()}


def known_dead(identity: Identity) -> bool:
    """Whether that process is of this machine, since its last start, and has ended."""
    return identity["boot"] == _machine() and not processes.alive({**identity, "boot": processes.boot_id()})


class MachineProcesses:
    """The processes of this machine; those of others are taken to live."""

    def this_process(self) -> Identity:
        return this_process()

    def alive(self, identity: Identity) -> bool:
        return not known_dead(identity)
