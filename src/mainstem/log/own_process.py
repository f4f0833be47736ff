"""OwnProcess: the process that opened an object which a forked child may not use."""

from __future__ import annotations

import os

from mainstem.errors import Invalid

__all__ = ["OwnProcess"]


class OwnProcess:
    """The process that creates it.

    >>> OwnProcess().forked
    False
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of that process."""
        return os.getpid() != self._pid

    def check(self, what: str, hint: str) -> None:
        """Raises in a forked child."""
        if self.forked:
            raise Invalid(
                f"{what} was opened before this process was forked",
                detail=f"It belongs to process {self._pid}, and this is process {os.getpid()}: both would continue from "
                "the same state, and rows would be lost.",
                hint=hint,
            )
