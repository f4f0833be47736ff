"""What a run owes to other processes: it heeds their wish that a flow stop, and notes how its flows ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mainstem.log_on_spark.flow_store import FlowStore
from mainstem.workbench.cli.error_text import error_lines

if TYPE_CHECKING:
    from mainstem.flows.flow_handle import FlowHandle
    from mainstem.flows.runner import RunningFlows

__all__ = ["RunWatch"]


class RunWatch:
    """Looks at each flow's place in the home, as often as it is asked to."""

    def __init__(self, home: str, running: RunningFlows) -> None:
        self._home = home
        self._running = running
        self._noted: set[str] = set()

    def look(self) -> None:
        """Stop the flows that somebody asked to stop, without waiting for it, and note those that have ended."""
        for handle in self._running:
            if handle.run is None or handle.name in self._noted:
                continue
            store = FlowStore(self._home, handle.name)
            if handle.state in ("stopped", "failed"):
                self._note(store, handle)
            elif not handle.stopping.is_set() and store.asked_to_stop(handle.run):
                threading.Thread(target=handle.stop, name=f"mainstem-stop-{handle.name}", daemon=True).start()

    def _note(self, store: FlowStore, handle: FlowHandle) -> None:
        assert handle.run is not None
        error = error_lines(handle.error) if handle.error is not None else []
        store.end(handle.run, "failed" if handle.state == "failed" else "stopped", error)
        self._noted.add(handle.name)
