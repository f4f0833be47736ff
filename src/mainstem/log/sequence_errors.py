"""The errors of sequences that may not be appended; nothing is written then."""

from __future__ import annotations

from mainstem.errors import AppendConflict, Invalid

__all__ = ["in_transaction", "incomplete_before", "other_rows", "out_of_order"]


def out_of_order(topic: str, producer: str, sequence: int, last: int) -> AppendConflict:
    """Of a sequence below the last one that is not known to be there."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is out of order',
        detail=f'Topic "{topic}" has sequence {last}, and no append is known under {sequence}. Nothing was written.',
        hint="Append in the order of the sequences, from one place; last_sequence says which one was the last.",
    )


def incomplete_before(topic: str, producer: str, sequence: int, incomplete: int) -> AppendConflict:
    """Of a sequence above one of which some partitions lack their rows."""
    return AppendConflict(
        f'sequence {incomplete} of producer "{producer}" is incomplete, so {sequence} cannot follow it',
        detail=f'Some partitions of topic "{topic}" lack their rows of sequence {incomplete}: the append was '
        "interrupted. Nothing was written.",
        hint=f"Append sequence {incomplete} again with the same rows: what is there is not written twice.",
    )


def other_rows(topic: str, producer: str, sequence: int, parts: int, given: int) -> AppendConflict:
    """Of a repeat that is not the append it is to complete."""
    return AppendConflict(
        f'sequence {sequence} of producer "{producer}" is repeated with other rows',
        detail=f'The first append went to {parts} partitions of topic "{topic}" and is incomplete; these rows go to '
        f"{given}. Nothing was written.",
        hint="Append the same rows again under this sequence. If they cannot be had any more, append without sequence=: "
        "the next number is taken, and the rows that are missing stay missing.",
    )


def in_transaction(producer: str, transaction: int) -> Invalid:
    """Of an append beside the producer's open transaction: sequences that may yet be aborted say nothing about later ones."""
    return Invalid(
        f'producer "{producer}" is in a transaction',
        detail=f"Transaction {transaction} is open.",
        hint="Append through the transaction, or commit or abort it first.",
    )
