"""StoreWriter: commits the batches of one run of a flow into one copy of a store, each once.

A run begins by putting its epoch into the fence, which fences older runs. Every commit expects the fence that the commit
before has left. If it is another one, a newer run has begun (`Fenced`), or the store was set back or emptied
(`Unavailable`): then the flow starts again, compares the fence with its checkpoint, and fills the store again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Written
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced, Unavailable
from mainstem.log.rows.merged_rows import Rejection, fit_rows, merge_columns
from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.sinks.store_backend import Copy, Fence, FenceMoved, Fences, StoreBackend, StoreChange

__all__ = ["StoreRows", "StoreWriter"]


@dataclass(frozen=True)
class StoreRows:
    """A batch as it will be written."""

    upserts: pa.Table
    deletes: pa.Table
    rejections: tuple[Rejection, ...]


class StoreWriter:
    """Writes one version of a store for one run of a flow. For one thread; `find_change` for any."""

    def __init__(
        self,
        name: str,
        backend: StoreBackend,
        run: FlowRun,
        schema: pa.Schema,
        key: tuple[str, ...],
        home: str,
        clock: Clock,
        *,
        takes_over: bool = True,
    ) -> None:
        """`takes_over`: a version other than the live one may replace that of another flow, as in a rebuild by hand."""
        self._name = name
        self._backend = backend
        self._run = run
        self._schema = schema
        self._home = home
        self._clock = clock
        self._takes_over = takes_over
        # What the store has, or, while a commit is under way, may have.
        self._possible: tuple[Fence | None, ...] = ()
        self._copy: Copy = "live"
        self.fence = self._begin(Fence(home, run.flow, run.version, run.epoch, key, schema_to_ddl(schema)))

    @property
    def committed_batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        return self.fence.batch

    @property
    def filling(self) -> bool:
        """Whether readers do not see everything yet that the log had when this version was begun."""
        return self.fence.filling

    # Beginning

    def _begin(self, first: Fence) -> Fence:
        fences = self._backend.fences()
        self._copy, known = self._place(fences)
        if known is None:
            if self._copy == "beside":
                # Of an older attempt.
                self._backend.drop("beside")
            fence = first
        else:
            self._check_owner(known)
            fence = replace(known, epoch=self._run.epoch, columns=first.columns)
        self._commit(StoreChange(self._copy, known, fence))
        return fence

    def _place(self, fences: Fences) -> tuple[Copy, Fence | None]:
        """The copy of this version, and its fence if it is there."""
        if fences.live is None or fences.live.version == self._run.version:
            return "live", fences.live
        if fences.live.version > self._run.version and fences.live.home == self._home:
            raise Conflict(
                f'store "{self._name}" has version {fences.live.version}, and flow "{self._run.flow}" writes version '
                f"{self._run.version}",
                detail=f"It was filled again from a newer copy of this home. It is in {self._backend.location}.",
                hint=f"Restore that copy of the home, or fill the store again: mainstem store rebuild {self._name} --program FILE",
            )
        if not self._takes_over:
            self._check_owner(fences.live)
        if fences.beside is not None and fences.beside.version == self._run.version:
            return "beside", fences.beside
        return "beside", None

    def _check_owner(self, known: Fence) -> None:
        if (known.home, known.flow) != (self._home, self._run.flow):
            other = f'flow "{known.flow}"' + (
                " of another home, or of this one before it was moved" if known.home != self._home else ""
            )
            raise Conflict(
                f'store "{self._name}" is written by {other}',
                detail=f'Flow "{self._run.flow}" wants to write it too; each would overwrite the other\'s rows. It is in '
                f"{self._backend.location}.",
                hint=f"Give the flow a store of its own, or let it take this one over: mainstem store rebuild {self._name} "
                "--program FILE",
            )
        self._check_epoch(known)

    def _check_epoch(self, found: Fence) -> None:
        if found.epoch > self._run.epoch and (found.home, found.version) == (self._home, self._run.version):
            raise Fenced(
                f'this run of flow "{self._run.flow}" is fenced from store "{self._name}"',
                detail=f"This run has epoch {self._run.epoch}; a newer run with epoch {found.epoch} has started. Nothing of the "
                "batch was written.",
                hint="Only one run of a flow may write; the newer one continues. Start this one again to take over.",
                epoch=self._run.epoch,
                current_epoch=found.epoch,
            )

    # One batch

    def prepare(self, rows: pa.Table) -> StoreRows:
        """The rows as they will be written: one for each key, if the store has one."""
        fence, names = self.fence, self._schema.names

        def unfit(column: pa.Array, field: pa.Field) -> dict[int, str]:
            return dict(self._backend.unfit(column, field, fence.key))

        if not fence.key:
            columns, rejections = fit_rows(rows, self._schema, name=self._name, unfit=unfit)
            return StoreRows(pa.table(columns, names), pa.table({}), rejections)

        def refused(upserts: list[pa.Array], deletes: list[pa.Array]) -> Mapping[int, str]:
            change = StoreChange(self._copy, fence, fence, pa.table(upserts, names), pa.table(deletes, list(fence.key)))
            return self._backend.refused(change) if len(upserts[0]) else {}

        merged = merge_columns(rows, self._schema, fence.key, name=self._name, unfit=unfit, refused=refused)
        return StoreRows(pa.table(merged.upserts, names), pa.table(merged.deletes, list(fence.key)), merged.rejections)

    def commit(self, merged: StoreRows, batch: Batch) -> Written:
        """Commit rows and batch together."""
        rows = merged.upserts.num_rows + merged.deletes.num_rows
        fence = replace(self.fence, batch=batch.number, offsets=batch.offsets, applied_at=self._clock.now())
        reach("before_sink_commit")
        self._commit(StoreChange(self._copy, self.fence, fence, merged.upserts, merged.deletes))
        self.fence = fence
        reach("sink_committed")
        return Written(rows, len(merged.rejections))

    def finish(self) -> bool:
        """Show readers this version, which is complete now. False if the version that they see has applied more by now."""
        fence = replace(self.fence, filling=False)
        if self._copy == "live":
            self._commit(StoreChange("live", self.fence, fence))
        else:
            fences = self._backend.fences()
            live = fences.live
            if live is not None and (live.home, live.flow) == (self._home, self._run.flow):
                behind = any(
                    fence.offsets.get(topic, {}).get(number, end) < end
                    for topic, ends in live.offsets.items()
                    for number, end in ends.items()
                )
                if behind:
                    return False
            reach("before_store_switch")
            try:
                self._possible = (self.fence, fence)
                self._backend.switch(Fences(live, self.fence), fence)
            except FenceMoved as moved:
                if moved.found is None or moved.found == self.fence:
                    return False
                raise self._moved(moved.found) from moved
            self._copy = "live"
            reach("store_switched")
        self.fence = fence
        self._possible = (fence,)
        return True

    def find_change(self) -> Unavailable | None:
        """The error if the store is not as this run has left it: it was set back, emptied or taken over."""
        before = self._possible
        fences = self._backend.fences()
        possible = (*before, *self._possible)
        # It may be switched at this moment.
        found = fences.of(self._copy)
        return None if found in possible or fences.live in possible else self._moved(found)

    def close(self) -> None:
        self._backend.close()

    def _commit(self, change: StoreChange) -> None:
        self._possible = (change.expected, change.fence)
        try:
            self._backend.commit(change)
        except FenceMoved as moved:
            raise self._moved(moved.found) from moved
        self._possible = (change.fence,)

    def _moved(self, found: Fence | None) -> Unavailable:
        if found is not None:
            self._check_epoch(found)
        state = "empty" if found is None else f"at version {found.version}, batch {found.batch}, epoch {found.epoch}"
        return Unavailable(
            f'store "{self._name}" is not as flow "{self._run.flow}" has left it',
            detail=f"It is {state}: it was restored from a copy, failed over, lost its memory, or another run wrote it.",
            hint="The flow starts again, and fills the store from the log if rows are missing.",
        )
