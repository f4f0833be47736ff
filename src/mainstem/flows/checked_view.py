"""What came of checking a view against the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mainstem.log.placed import token_of
from mainstem.log_on_spark.flow_run import Offsets

__all__ = ["CheckedView", "FirstWrong", "WrongRow"]


@dataclass(frozen=True)
class WrongRow:
    """A row that is not what the log says: as the view shows it, and as it should be; None where there is none."""

    name: str = field(repr=False)
    key: tuple[Any, ...]
    shown: dict[str, Any] | None
    expected: dict[str, Any] | None


@dataclass(frozen=True)
class FirstWrong:
    """Where the first of the wrong rows went wrong.

    With the batch behind `start` up to `end`: right before it was right, right after it was not. `start` is None if what
    was before `end` is no longer known. `record` (topic, partition, offset) is the first one in it with which the row should
    have changed; None if it should not have. `cause` is "store" if no batch wrote what the view shows: somebody changed
    the row in the file or the database itself, after that batch.
    """

    row: WrongRow
    record: tuple[str, int, int] | None
    start: Offsets | None
    end: Offsets
    cause: Literal["batch", "store"]


@dataclass(frozen=True)
class CheckedView:
    """A view, compared with what its program makes of the log `upto` what it had applied.

    `compared` counts the keys that were looked up on both sides. `running` is the process in which the flow ran meanwhile.
    `depends` names operators of Spark's own whose results may depend on how the log was cut into batches.
    """

    view: str
    version: int
    flow: str
    rows: int
    compared: int
    upto: Offsets
    seed: int
    wrong: Sequence[WrongRow]
    first: FirstWrong | None
    running: int | None
    replays: int
    depends: Sequence[str] = ()

    @property
    def right(self) -> bool:
        """Whether every row that was compared is what the log says."""
        return not self.wrong

    @property
    def token(self) -> str:
        """Up to where the log was replayed, as a token."""
        return token_of(self.upto)
