"""How far somebody is behind, as columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.workbench.cli.amounts import about_duration, about_size, counted
from mainstem.workbench.cli.terminal_table import Column

if TYPE_CHECKING:
    from mainstem.log.lag import Lag

__all__ = ["LAG_COLUMNS", "lag_cells"]

LAG_COLUMNS = (Column("behind", "right"), Column("size", "right"), Column("oldest"), Column("drops in"))


def lag_cells(lag: Lag) -> list[str]:
    """A lag in these columns: records, bytes, the age of the next record, and the time until it is dropped."""
    return [
        counted(lag.records),
        about_size(lag.bytes),
        about_duration(lag.seconds) if lag.records else "",
        about_duration(lag.until_dropped) if lag.records else "",
    ]
