"""Verification: what a look at every byte of a topic has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem.errors import Corrupt

__all__ = ["Problem", "Verification"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written: where, and which offsets it costs."""

    partition: int
    file: str
    what: str
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass
class Verification:
    """What was read, and what is wrong with it."""

    topic: str
    records: int = 0
    bytes: int = 0
    sealed_segments: int = 0
    block_segments: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, partition: int, error: Corrupt) -> None:
        """A problem that was found as an error; one that was found in two ways is one."""
        first, last = getattr(error, "first_offset", None), getattr(error, "last_offset", None)
        problem = Problem(partition, error.path, error.summary, first, last)
        if problem not in self.problems:
            self.problems.append(problem)

    def join(self, part: Verification) -> None:
        """Add what was found in a part of it."""
        self.records += part.records
        self.bytes += part.bytes
        self.sealed_segments += part.sealed_segments
        self.block_segments += part.block_segments
        self.problems += part.problems

    @property
    def sound(self) -> bool:
        """Whether every byte is as it was written."""
        return not self.problems
