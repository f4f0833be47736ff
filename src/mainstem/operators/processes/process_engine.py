"""ProcessEngine: a user's own operator as an engine.

State rows, besides the columns that every state has:

    check    int64        with `group` the identity of a key
    by_0 ...              the key; null in a timer's row
    version  int32        the version of the class that wrote it
    state    string       as process_state writes it; null in a timer's row
    timer    string       a timer's name; null in a key's row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.schema_ddl import schema_to_ddl
from mainstem.operators.processes.process_batch import ProcessBatch
from mainstem.operators.processes.process_class import Process
from mainstem.operators.processes.process_state import StateText
from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, StateTable, Step

__all__ = ["ProcessEngine"]


@dataclass(frozen=True)
class ProcessEngine:
    """Runs one class of `Process`. The loops over keys and rows are Python's: what is called is the user's."""

    using: type[Process]
    by_fields: tuple[pa.Field, ...]
    output: pa.Schema
    text: StateText
    # Whether rows have watermarks of their own; without, a timer in event time would never go off in a stream.
    watermarked: bool = True

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("version", pa.int32()), ("state", pa.string()), ("timer", pa.string())]
        return pa.schema([*STATE_COLUMNS, ("check", pa.int64()), *self.by_fields, *own])

    @property
    def output_schema(self) -> pa.Schema:
        plain = [pa.field(f"o_{place}", column.type) for place, column in enumerate(self.output)]
        return pa.schema([*plain, ("change", pa.string())])

    def described(self) -> dict[str, Any]:
        return {
            "process": self.using.__name__,
            "by": [schema_to_ddl(pa.schema([column])) for column in self.by_fields],
            "version": self.using.version,
            "state": self.text.described,
        }

    def takes(self, kept: Mapping[str, Any]) -> bool:
        """Whether it can go on with a state that was kept by what is described; raises with what to do otherwise."""
        now = self.described()
        if any(kept.get(name) != now[name] for name in ("process", "by")):
            return False
        before, version = kept["version"], now["version"]
        if before > version or (before == version and kept["state"] != now["state"]):
            raise Invalid(
                f'State of process "{now["process"]}" is not what its kept state was written with',
                detail=f"Kept is version {before}: {_fields(kept['state'])}. The program has version {version}: "
                f"{_fields(now['state'])}.",
                hint=f"Set version = {before + 1} and write upgrade(self, old), which makes a State of a dict of the old "
                "fields; or rebuild.",
            )
        if before < version and kept["state"] != now["state"] and not hasattr(self.using, "upgrade"):
            raise Invalid(
                f'process "{now["process"]}" has version {version} and no upgrade',
                detail=f"Kept is version {before}: {_fields(kept['state'])}.",
                hint="Write upgrade(self, old), which makes a State of a dict of the old fields; or rebuild.",
            )
        return True

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        return ProcessBatch(self, clock).step(state, rows)


def _fields(described: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in described.items()) or "nothing"
