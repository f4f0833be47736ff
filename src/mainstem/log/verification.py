"""Verification: what a look at every byte of a topic has found."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    @property
    def sound(self) -> bool:
        """Whether every byte is as it was written."""
        return not self.problems
