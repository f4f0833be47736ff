"""SequenceRuns: the sequences of a producer that a topic has, as runs without gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from mainstem.errors import AppendConflict, Invalid

__all__ = [
    "NO_SEQUENCE",
    "RUNS_MAX",
    "SequenceRuns",
    "in_transaction",
    "incomplete_before",
    "other_rows",
    "out_of_order",
]


# The errors for sequences that may not be appended.


def out_of_order(topic: str, producer: str, sequence: int, last: int) -> AppendConflict:
    """For a sequence below the last one that is not known to exist."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is out of order',
        detail=f'The last sequence in topic "{topic}" is {last}; no append has sequence {sequence}. Nothing was written.',
        hint="Append in sequence order, from one process; last_sequence is the last one.",
    )


def incomplete_before(topic: str, producer: str, sequence: int, incomplete: int) -> AppendConflict:
    """For a sequence above an incomplete one."""
    return AppendConflict(
        f'sequence {incomplete} of producer "{producer}" is incomplete, so {sequence} cannot follow it',
        detail=f'Some partitions of topic "{topic}" lack their rows of sequence {incomplete}: the append was '
        "interrupted. Nothing was written.",
        hint=f"Append sequence {incomplete} again with the same rows: rows already written are not repeated.",
    )


def other_rows(topic: str, producer: str, sequence: int, parts: int, given: int) -> AppendConflict:
    """For a repeat whose rows differ from the append that it should complete."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is repeated with other rows',
        detail=f'The first append went to {parts} partitions of topic "{topic}" and is incomplete; these rows go to '
        f"{given}. Nothing was written.",
        hint="Append the same rows again under this sequence. If you no longer have them, append without sequence=: "
        "it takes the next number, and the missing rows stay missing.",
    )


def in_transaction(producer: str, transaction: int) -> Invalid:
    """For an append outside the producer's open transaction, whose sequences may still be aborted."""
    return Invalid(
        f'producer "{producer}" is in a transaction',
        detail=f"Transaction {transaction} is open.",
        hint="Append through the transaction, or commit or abort it first.",
    )


NO_SEQUENCE = -1

# A producer without gaps has one run. One with gaps has a run for each; the last ones are remembered, about 4 KiB in a
# segment's state.
RUNS_MAX = 256


class SequenceRuns:
    """Runs of sequences, first and last of each, in order; at most `RUNS_MAX`, the oldest are forgotten.

    The sequence before the first of a run is known to be missing: another partition may have a part of it. That stays
    known if the run itself turns out to be incomplete. Then an empty run is left, its last below its first.

    >>> runs = SequenceRuns([[0, 4]])
    >>> runs.add(5, 5 - runs.dense_below(5))
    >>> runs.add(9, 9 - runs.dense_below(9))
    >>> runs.to_json(), 7 in runs, 3 in runs
    ([[0, 5], [9, 9]], False, True)
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        self._runs = [(first, last) for first, last in runs]

    @property
    def last(self) -> int:
        """The highest sequence; -1 if there is none."""
        return next((last for first, last in reversed(self._runs) if last >= first), NO_SEQUENCE)

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._runs, sequence, key=lambda run: run[0])
        return at > 0 and sequence <= self._runs[at - 1][1]

    def dense_below(self, sequence: int) -> int:
        """The number of sequences directly below this one without a gap; it is, or will be, the highest."""
        first, last = self._runs[-1] if self._runs else (sequence, sequence)
        return sequence - first if first < sequence <= last + 1 else 0

    def add(self, sequence: int, first: int) -> None:
        """Add a run that ends with the highest sequence. The one before `first` is missing, whatever was known of
        it."""
        while self._runs and self._runs[-1][0] >= first:
            self._runs.pop()
        self.cut_above(first - 2)
        self._runs.append((first, sequence))
        del self._runs[:-RUNS_MAX]

    def cut_above(self, sequence: int) -> None:
        """Remove the sequences above this one, which turned out to be incomplete. The beginnings of runs stay known."""
        for at in range(len(self._runs) - 1, -1, -1):
            first, last = self._runs[at]
            if last <= sequence:
                break
            self._runs[at] = (first, max(sequence, first - 1))

    @classmethod
    def merge(cls, all_of: Iterable[SequenceRuns]) -> SequenceRuns:
        """The union of all. At once: merged in pairs, facts that a third one has could be lost."""
        found = cls()
        for first, last in sorted({run for runs in all_of for run in runs._runs}):
            if found._runs and first <= found._runs[-1][1]:
                found._runs[-1] = (found._runs[-1][0], max(last, found._runs[-1][1]))
            else:
                found.add(last, first)
        return found

    def to_json(self) -> list[list[int]]:
        return [list(run) for run in self._runs]
