"""The memory that is a process's own: what is mapped from files can be had again and does not count."""

from __future__ import annotations


def own_bytes() -> int:
    """Anonymous pages of this process that lie in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell RssAnon")


class OwnMemory:
    """How far a process's own memory grew beyond what it was at the start."""

    def __init__(self) -> None:
        self._begun = own_bytes()
        self.grown_max = 0

    def look(self) -> None:
        """Note it if it is larger than ever before."""
        self.grown_max = max(self.grown_max, own_bytes() - self._begun)
