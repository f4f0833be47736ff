"""The files of a flow in a home: its current run, and the checkpoint of each version.

    flows/<name>/flow.json          {"format": 2, "epoch": 7, "runs": {"1": {"epoch": 6, "plan": ...}, "2": {"epoch": 7, ...}}}
    flows/<name>/lock               locked while flow.json changes
    flows/<name>/v<version>/        Spark's checkpoint
    flows/<name>/does-v<version>.json   what that version does; see `flow_description`
    flows/<name>/lineage-v<version>.json    which records its rows are made of; see `flow_lineage`

`flow.json` is replaced atomically and synced. A run starts by raising the epoch and recording it for its version: a version
has one current run, and a run that finds another epoch than its own is fenced. Two versions may run beside each other,
while one is rebuilt. The plan describes the program that the version's checkpoint belongs to.

A run has its `process`, and, after its end, how it `ended`; if its process died without recording an exit, it
was killed. `stop` is a stop request of any process: the running process polls it. The next run starts without it,
so a request that was too late, or for a dead process, never has to be withdrawn.

`waits` is there while a process waits before it tries again to reach what the flow writes or reads.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from mainstem.batch import FlowRun
from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import CorruptHome, Fenced, NewerFormat
from mainstem.file_locks import lock_folder
from mainstem.log.opened_log import release_holds
from mainstem.names import check_own_name
from mainstem.processes import Identity, alive, this_process
from mainstem.spark.checkpoint.checkpoint_location import remove_checkpoint

__all__ = ["FlowStore", "check_epoch", "find_process", "flow_names"]

# 2: a run has the id and the location of its sink, whatever that is; and its plan has every parameter of a stage.
# It has a checksum.
FORMAT = 2


def flow_names(home: str) -> list[str]:
    """The flows that ever ran in a home."""
    try:
        names = os.listdir(f"{home}/flows")
    except FileNotFoundError:
        return []
    return sorted(name for name in names if os.path.exists(f"{home}/flows/{name}/flow.json"))


def find_process(facts: dict[str, Any]) -> Identity | None:
    """The process in which a run is active now, by the facts of the run; None if there is none."""
    process: Identity | None = facts.get("process")
    return process if process is not None and "ended" not in facts and alive(process) else None


def _was_killed(facts: dict[str, Any]) -> bool:
    """Whether the process of a run died without recording an exit, and nobody has found that yet."""
    return "process" in facts and "ended" not in facts and "found_killed" not in facts and not alive(facts["process"])


def check_epoch(home: str, run: FlowRun) -> None:
    """Raise `Fenced` if a newer run of the flow has started."""
    _check_current(FlowStore(home, run.flow).of_version(run.version), run)


def _check_current(facts: dict[str, Any], run: FlowRun) -> None:
    current = facts.get("epoch", 0)
    if current != run.epoch:
        raise Fenced(
            f'this run of flow "{run.flow}" is fenced: a newer run has started',
            detail=f"This run has epoch {run.epoch}; the flow is at epoch {current}.",
            hint="Nothing is lost: the newer run continues where this one stopped. Only one run of a flow may write.",
            epoch=run.epoch,
            current_epoch=current,
        )


def _with_facts(known: dict[str, Any], run: FlowRun, facts: dict[str, Any]) -> dict[str, Any]:
    runs, version = known.get("runs", {}), str(run.version)
    if runs.get(version, {}).get("epoch") != run.epoch:
        return known
    return {**known, "runs": {**runs, version: {**runs[version], **facts}}}


class FlowStore:
    """The directory of one flow in a home. Any process may use it."""

    def __init__(self, home: str, name: str) -> None:
        self.name = check_own_name(name, "flow")
        self.home = home
        self.folder = f"{home}/flows/{name}"
        self._path = f"{self.folder}/flow.json"

    def exists(self) -> bool:
        return os.path.exists(self._path)

    def sent(self, run: FlowRun) -> str:
        """The directory of the rows that tasks of a run leave for other tasks or the driver, until the batch is over."""
        return f"{self.folder}/sent-v{run.version}/{run.epoch}"

    def read(self) -> dict[str, Any]:
        """The facts of the flow; empty if it never ran."""
        try:
            with open(self._path, "rb") as file:
                content = decode_checked(file.read(), since=2, known=FORMAT)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CorruptHome(
                f'"{self._path}" is damaged',
                detail=f"Its content is invalid: {error}.",
                hint="Restore it from a copy, or drop the flow with its checkpoint: the next run rebuilds from the log.",
                path=self._path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat.of(f'flow "{self.name}"', found, FORMAT, where=f'"{self._path}"')
        return content

    def change(self, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Replace the facts, one process at a time; durable when this returns."""
        with lock_folder(self.folder, "lock"):
            changed = {**edit(self.read()), "format": FORMAT}
            replace_file(REAL_FILES, self._path, encode_checked(changed, indent=1))
        return changed

    def of_version(self, version: int) -> dict[str, Any]:
        """The facts of the last run of a version; empty if there was none."""
        found: dict[str, Any] = self.read().get("runs", {}).get(str(version), {})
        return found

    def begin(self, version: int = 1, *, after: FlowRun | None = None, **facts: object) -> FlowRun:
        """Begin a run of a version; older runs of it are fenced from here on. Facts are stored with it.

        A run that continues `after` another of the same process raises `Fenced` if a third one has started in between.
        """

        def raise_epoch(known: dict[str, Any]) -> dict[str, Any]:
            if after is not None and after.version == version:
                _check_current(known.get("runs", {}).get(str(version), {}), after)
            epoch = known.get("epoch", 0) + 1
            runs, run = known.get("runs", {}), {**facts, "process": this_process()}
            known = {name: fact for name, fact in known.items() if name != "waits"}
            return {**known, "epoch": epoch, "runs": {**runs, str(version): run | {"epoch": epoch}}}

        return FlowRun(self.name, self.change(raise_epoch)["epoch"], version)

    def note(self, run: FlowRun, **facts: object) -> None:
        """Store more facts with a run. A newer run is not changed."""
        self.change(lambda known: _with_facts(known, run, facts))

    def wait(self, sink: str, reason: str, since: int) -> None:
        """Record that this process waits, since a moment in microseconds since 1970, before it tries again."""
        waits = {"process": this_process(), "sink": sink, "reason": reason, "since": since}
        self.change(lambda known: {**known, "waits": waits})

    def wait_no_longer(self) -> None:
        """Record that this process no longer waits."""

        def without(known: dict[str, Any]) -> dict[str, Any]:
            ours = known.get("waits", {}).get("process") == this_process()
            return {name: fact for name, fact in known.items() if not ours or name != "waits"}

        if "waits" in self.read():
            self.change(without)

    def end(self, run: FlowRun, state: Literal["stopped", "failed"], error: Sequence[str] = ()) -> None:
        """Record the end of a run; `error` has a line for each part of its error. A newer run is not changed."""
        self.note(run, ended={"state": state, "error": list(error)})

    def refuse(self, version: int, error: Sequence[str]) -> None:
        """Record that the next run of a version failed to start, unless one is active."""

        def mark_failed(known: dict[str, Any]) -> dict[str, Any]:
            runs = known.get("runs", {})
            run = runs.get(str(version))
            if run is None or find_process(run) is not None:
                return known
            ended = {"state": "failed", "error": list(error)}
            return {**known, "runs": {**runs, str(version): {**run, "ended": ended}}}

        if self.exists():
            self.change(mark_failed)

    def find_killed(self) -> list[tuple[int, dict[str, Any]]]:
        """The runs that were killed, with their versions; each is found once, in whichever process."""
        found: list[tuple[int, dict[str, Any]]] = []

        def mark_found(known: dict[str, Any]) -> dict[str, Any]:
            runs = known.get("runs", {})
            found[:] = [(int(number), run) for number, run in sorted(runs.items()) if _was_killed(run)]
            return {**known, "runs": runs | {str(number): {**run, "found_killed": True} for number, run in found}}

        if any(_was_killed(run) for run in self.read().get("runs", {}).values()):
            self.change(mark_found)
        return found

    def last_version(self) -> int:
        """The version whose run started last; 0 if the flow never ran."""
        runs = self.read().get("runs", {})
        return int(max(runs, key=lambda number: runs[number]["epoch"], default="0"))

    def ask_to_stop(self, version: int) -> None:
        """Request a stop of the current run of a version, whichever process it is in."""

        def mark_stop(known: dict[str, Any]) -> dict[str, Any]:
            runs = known.get("runs", {})
            run = runs.get(str(version))
            return known if run is None else {**known, "runs": {**runs, str(version): {**run, "stop": run["epoch"]}}}

        self.change(mark_stop)

    def asked_to_stop(self, run: FlowRun) -> bool:
        """Whether a stop of this run was requested."""
        return bool(self.of_version(run.version).get("stop") == run.epoch)

    def forget(self, version: int) -> None:
        """Remove the runs of a version that was dropped."""

        def without(known: dict[str, Any]) -> dict[str, Any]:
            runs = {number: run for number, run in known.get("runs", {}).items() if number != str(version)}
            return {**known, "runs": runs}

        self.change(without)
        for path in (self.description(version), self.lineage(version)):
            with suppress(FileNotFoundError):
                os.remove(path)
        self._release_holds(str(version))

    def description(self, version: int) -> str:
        """The file with what a version of the flow does."""
        return f"{self.folder}/does-v{version}.json"

    def lineage(self, version: int) -> str:
        """The file with which records the rows of a version of the flow are made of."""
        return f"{self.folder}/lineage-v{version}.json"

    def checkpoint(self, version: int) -> str:
        return f"{self.folder}/v{version}"

    def drop(self) -> None:
        """Remove the flow with its checkpoints, and release the records that its planned batch holds."""
        for folder in glob.glob(f"{glob.escape(self.folder)}/v*"):
            remove_checkpoint(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release_holds(r"\d+")

    def _release_holds(self, version: str) -> None:
        """Release the records that the sources of a version hold in any topic; see `TopicRequest.holder`."""
        release_holds(self.home, re.compile(rf"{re.escape(self.name)}\.v{version}\.-?\d+"))

    @contextmanager
    def guard(self, run: FlowRun) -> Iterator[None]:
        """Inside, no newer run of the flow starts; raises `Fenced` if one has."""
        with lock_folder(self.folder, "lock"):
            _check_current(self.of_version(run.version), run)
            yield
