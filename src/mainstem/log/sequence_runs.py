"""SequenceRuns: which sequences of a producer a topic has, as runs without gaps."""

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


# The errors of sequences that may not be appended; nothing is written then.


def out_of_order(topic: str, producer: str, sequence: int, last: int) -> AppendConflict:
    """Of a sequence below the last one that is not known to be there."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is out of order',
        detail=f'The last sequence in topic "{topic}" is {last}; no append has sequence {sequence}. Nothing was written.',
        hint="Append in sequence order, from one process; last_sequence is the last one.",
    )


def incomplete_before(topic: str, producer: str, sequence: int, incomplete: int) -> AppendConflict:
    """Of a sequence above one of which some partitions lack their rows."""
    return AppendConflict(
        f'sequence {incomplete} of producer "{producer}" is incomplete, so {sequence} cannot follow it',
        detail=f'Some partitions of topic "{topic}" lack their rows of sequence {incomplete}: the append was '
        "interrupted. Nothing was written.",
        hint=f"Append sequence {incomplete} again with the same rows: rows already written are not repeated.",
    )


def other_rows(topic: str, producer: str, sequence: int, parts: int, given: int) -> AppendConflict:
    """Of a repeat that is not the append it is to complete."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is repeated with other rows',
        detail=f'The first append went to {parts} partitions of topic "{topic}" and is incomplete; these rows go to '
        f"{given}. Nothing was written.",
        hint="Append the same rows again under this sequence. If you no longer have them, append without sequence=: "
        "it takes the next number, and the missing rows stay missing.",
    )


def in_transaction(producer: str, transaction: int) -> Invalid:
    """Of an append beside the producer's open transaction: sequences that may yet be aborted say nothing about later ones."""
    return Invalid(
        f'producer "{producer}" is in a transaction',
        detail=f"Transaction {transaction} is open.",
        hint="Append through the transaction, or commit or abort it first.",
    )


NO_SEQUENCE = -1

# A producer that counts its appends has one run, whatever their number. One whose sequences have gaps has a run for each:
# of these the last ones are remembered, about 4 KiB in a segment's state.
RUNS_MAX = 256


class SequenceRuns:
    """Runs of sequences, first and last of each, in order; at most `RUNS_MAX`, the oldest are forgotten.

    Where a run begins, it is known that the sequence before it is not there: another partition may have a part of it. That
    stays known when the run itself turns out to be incomplete. What is left then is an empty run, its last below its first.

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
        """How many sequences directly below one are there without a gap; it is the highest, or will be."""
        first, last = self._runs[-1] if self._runs else (sequence, sequence)
        return sequence - first if first < sequence <= last + 1 else 0

    def add(self, sequence: int, first: int) -> None:
        """Add a run that ends with the highest sequence. The one before `first` is not there, whatever was known of it."""
        while self._runs and self._runs[-1][0] >= first:
            self._runs.pop()
        self.cut_above(first - 2)
        self._runs.append((first, sequence))
        del self._runs[:-RUNS_MAX]

    def cut_above(self, sequence: int) -> None:
        """The sequences above one turned out to be incomplete. What the beginnings of runs say of lower ones stays."""
        for at in range(len(self._runs) - 1, -1, -1):
            first, last = self._runs[at]
            if last <= sequence:
                break
            self._runs[at] = (first, max(sequence, first - 1))

    @classmethod
    def merged(cls, all_of: Iterable[SequenceRuns]) -> SequenceRuns:
        """The sequences that any of them has. All at once: of two, what a third one knows of them could be lost."""
        found = cls()
        for first, last in sorted({run for runs in all_of for run in runs._runs}):
            if found._runs and first <= found._runs[-1][1]:
                found._runs[-1] = (found._runs[-1][0], max(last, found._runs[-1][1]))
            else:
                found.add(last, first)
        return found

    def to_json(self) -> list[list[int]]:
        return [list(run) for run in self._runs]
