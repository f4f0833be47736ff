"""Decisions: one moment of the ledger of transactions."""

from __future__ import annotations

from typing import NamedTuple


class Decisions(NamedTuple):
    """One moment of the ledger: which transactions were decided by then, for reads that show all of one or none."""

    outcomes: dict[int, bool]
    decided_before: int
