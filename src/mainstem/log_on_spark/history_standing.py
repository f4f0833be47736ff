"""HistoryStanding: how far a flow is with the sealed files that it reads before it goes live."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.log_on_spark.checkpoint_offsets import file_offset, last_batch
from mainstem.log_on_spark.native_history import noted_history

__all__ = ["HistoryStanding", "history_standing"]


@dataclass(frozen=True)
class HistoryStanding:
    """Rows in sealed files that a flow reads first, and how many of them are in its sink."""

    rows: int
    rows_in: int

    @property
    def over(self) -> bool:
        return self.rows_in == self.rows


def history_standing(checkpoint: str) -> HistoryStanding | None:
    """By what is noted beside a checkpoint, and its last complete batch; None if the flow read no files."""
    history = noted_history(checkpoint)
    if history is None:
        return None
    done = last_batch(checkpoint)
    if done is None:
        return HistoryStanding(history.rows, 0)
    at = file_offset(checkpoint, done)
    # A batch that is not one of files comes behind all of them.
    portions = history.portions if at is None else history.portions[: at + 1]
    return HistoryStanding(history.rows, sum(portion.rows for portion in portions))
