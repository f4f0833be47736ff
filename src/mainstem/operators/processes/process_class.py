"""Process: the base class of a user's own operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from mainstem.operators.processes.process_state import Timers

__all__ = ["Process"]


class Process:
    """The base class of a user's own operator: subclass it, and pass the class to `process`.

    >>> from dataclasses import dataclass
    >>> class Visits(Process):
    ...     output = "user STRING, visits BIGINT"
    ...
    ...     @dataclass
    ...     class State:
    ...         visits: int = 0
    ...
    ...     def on_rows(self, key, rows, state, timers):
    ...         for row in rows:
    ...             state.visits += 1
    ...             yield {"user": key, "visits": state.visits}
    """

    # The output columns, as Spark DDL, and which of them is the event time.
    output: ClassVar[str]
    event_time: ClassVar[str | None] = None
    # To be raised when State changes; `upgrade` then converts the fields of the old state to a State.
    version: ClassVar[int] = 1
    # What bounds the state, for `mainstem check`; empty if it is unbounded.
    bounded_by: ClassVar[str] = ""

    # The state of a key: a dataclass whose fields all have defaults.
    State: ClassVar[type]

    def on_rows(self, key: Any, rows: Iterable[dict[str, Any]], state: Any, timers: Timers) -> Any:
        """Process some rows of a key, in log order, and yield rows as dicts.

        How many rows are passed at once is not defined. They end early if a timer that was just set is due before the next row.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, name: str, at: Any, state: Any, timers: Timers) -> Any:
        """A timer has fired: yield rows as dicts."""
        return ()

    def forget(self, state: Any) -> None:
        """Reset a state to State(): a key with neither state nor timers is evicted."""
        fresh = type(state)()
        for name in fresh.__dataclass_fields__:
            setattr(state, name, getattr(fresh, name))
