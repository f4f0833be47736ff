"""What a home keeps of a flow: which run of it counts, and the checkpoint of each version.

    flows/<name>/flow.json          {"format": 2, "epoch": 7, "runs": {"1": {"epoch": 6, "plan": ...}, "2": {"epoch": 7, ...}}}
    flows/<name>/lock               locked while flow.json changes
    flows/<name>/v<version>/        the checkpoint that Spark keeps

`flow.json` is replaced whole and synced. A run begins by raising the epoch and writing it down for its version: a version
has one run that counts, and whoever finds another epoch than its own is fenced. Two versions may run beside each other,
while one is rebuilt. The plan says what the version's checkpoint was made for.

A run has its `process`, and, once it is over, how it `ended`; one that did not get to say so and whose process is gone
was killed. `stop` is the wish, of any process, that it stop: whoever runs it looks for that now and then. The next run
begins without it, so a wish that came too late, or to a dead process, never has to be taken back.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from mainstem.batch import FlowRun
from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import CorruptHome, Fenced, NewerFormat
from mainstem.log.embedded.read.holds import Holds
from mainstem.names import check_own_name
from mainstem.processes import Identity, alive, this_process
from mainstem.spark.checkpoint.checkpoint_location import remove_checkpoint

__all__ = ["FlowStore", "check_epoch", "flow_names", "running_in"]

# 2: a run has the id and the location of its sink, whatever that is; and its plan has every parameter of a stage.
# It has a checksum.
FORMAT = 2


# The lock in the file keeps other processes out, but not the threads of this one.
_GUARD = threading.Lock()


def flow_names(home: str) -> list[str]:
    """The flows that ever ran in a home."""
    try:
        names = os.listdir(f"{home}/flows")
    except FileNotFoundError:
        return []
    return sorted(name for name in names if os.path.exists(f"{home}/flows/{name}/flow.json"))


def running_in(facts: dict[str, Any]) -> Identity | None:
    """The process in which a run goes on now, by what is known of the run; None if it does not."""
    process: Identity | None = facts.get("process")
    return process if process is not None and "ended" not in facts and alive(process) else None


def check_epoch(home: str, run: FlowRun) -> None:
    """Raise `Fenced` if a later run of the flow has begun."""
    _check_current(FlowStore(home, run.flow).of_version(run.version), run)


def _check_current(facts: dict[str, Any], run: FlowRun) -> None:
    current = facts.get("epoch", 0)
    if current != run.epoch:
        raise Fenced(
            f'a later run of flow "{run.flow}" has begun',
            detail=f"This run has epoch {run.epoch}, the flow is at epoch {current}.",
            hint="Nothing of this run is lost: the later one goes on where it stood. Run a flow in one place at a time.",
            epoch=run.epoch,
            current_epoch=current,
        )


def _with_facts(known: dict[str, Any], run: FlowRun, facts: dict[str, Any]) -> dict[str, Any]:
    runs, version = known.get("runs", {}), str(run.version)
    if runs.get(version, {}).get("epoch") != run.epoch:
        return known
    return {**known, "runs": {**runs, version: {**runs[version], **facts}}}


class FlowStore:
    """The place of one flow in a home. Any process may use it."""

    def __init__(self, home: str, name: str) -> None:
        self.name = check_own_name(name, "flow")
        self.home = home
        self.folder = f"{home}/flows/{name}"
        self._path = f"{self.folder}/flow.json"

    def exists(self) -> bool:
        return os.path.exists(self._path)

    def read(self) -> dict[str, Any]:
        """What is known of the flow; empty if it never ran."""
        try:
            with open(self._path, "rb") as file:
                content = decode_checked(file.read(), since=2, known=FORMAT)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CorruptHome(
                f'"{self._path}" is damaged',
                detail=f"It is not what was written: {error}.",
                hint="Restore it from a copy, or drop the flow with its checkpoint: the next run rebuilds from the log.",
                path=self._path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat(
                f'flow "{self.name}" was run by a newer Mainstem',
                detail=f'"{self._path}" has format {found}; this Mainstem knows up to {FORMAT}.',
                hint="Install the newer Mainstem.",
                found_version=found,
                known_version=FORMAT,
            )
        return content

    def change(self, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Replace what is known, one process at a time; on disk when this returns."""
        with self._locked():
            changed = {**edit(self.read()), "format": FORMAT}
            replace_file(REAL_FILES, self._path, encode_checked(changed, indent=1))
        return changed

    def of_version(self, version: int) -> dict[str, Any]:
        """What is known of the last run of a version; empty if there was none."""
        found: dict[str, Any] = self.read().get("runs", {}).get(str(version), {})
        return found

    def begin(self, version: int = 1, *, after: FlowRun | None = None, **facts: Any) -> FlowRun:
        """Begin a run of a version; older ones of it are fenced from here on. Facts are kept with it.

        One that goes on `after` another of the same process takes over from nobody else: raises `Fenced` if it would.
        """

        def raised(known: dict[str, Any]) -> dict[str, Any]:
            if after is not None and after.version == version:
                _check_current(known.get("runs", {}).get(str(version), {}), after)
            epoch = known.get("epoch", 0) + 1
            runs, run = known.get("runs", {}), {**facts, "process": this_process()}
            return {**known, "epoch": epoch, "runs": {**runs, str(version): run | {"epoch": epoch}}}

        return FlowRun(self.name, self.change(raised)["epoch"], version)

    def note(self, run: FlowRun, **facts: Any) -> None:
        """Keep more facts with a run. Of a later run nothing changes."""
        self.change(lambda known: _with_facts(known, run, facts))

    def end(self, run: FlowRun, state: Literal["stopped", "failed"], error: Sequence[str] = ()) -> None:
        """Note what became of a run; `error` is what it died of, a line for each part. Of a later run nothing changes."""
        self.note(run, ended={"state": state, "error": list(error)})

    def refuse(self, version: int, error: Sequence[str]) -> None:
        """Note that the next run of a version could not begin, unless one runs: it failed, as whoever started it was told."""

        def failed(known: dict[str, Any]) -> dict[str, Any]:
            runs = known.get("runs", {})
            run = runs.get(str(version))
            if run is None or running_in(run) is not None:
                return known
            ended = {"state": "failed", "error": list(error)}
            return {**known, "runs": {**runs, str(version): {**run, "ended": ended}}}

        if self.exists():
            self.change(failed)

    def last_version(self) -> int:
        """The version whose run began last; 0 if the flow never ran."""
        runs = self.read().get("runs", {})
        return int(max(runs, key=lambda number: runs[number]["epoch"], default="0"))

    def ask_to_stop(self, version: int) -> None:
        """Ask the run of a version that counts now to stop, whichever process it is in."""

        def marked(known: dict[str, Any]) -> dict[str, Any]:
            runs = known.get("runs", {})
            run = runs.get(str(version))
            return known if run is None else {**known, "runs": {**runs, str(version): {**run, "stop": run["epoch"]}}}

        self.change(marked)

    def asked_to_stop(self, run: FlowRun) -> bool:
        """Whether somebody asked this run to stop."""
        return bool(self.of_version(run.version).get("stop") == run.epoch)

    def forget(self, version: int) -> None:
        """Forget the runs of a version that was dropped."""

        def without(known: dict[str, Any]) -> dict[str, Any]:
            runs = {number: run for number, run in known.get("runs", {}).items() if number != str(version)}
            return {**known, "runs": runs}

        self.change(without)
        self._release_holds(str(version))

    def checkpoint(self, version: int) -> str:
        return f"{self.folder}/v{version}"

    def drop(self) -> None:
        """Forget the flow with its checkpoints, and let go of the records that its planned batch may have read again."""
        for folder in glob.glob(f"{glob.escape(self.folder)}/v*"):
            remove_checkpoint(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release_holds(r"\d+")

    def _release_holds(self, version: str) -> None:
        """What the sources of a version hold in any topic; see `TopicRequest.holder`."""
        mine = re.compile(rf"{re.escape(self.name)}\.v{version}\.-?\d+")
        with suppress(FileNotFoundError):
            for topic in os.listdir(f"{self.home}/topics"):
                folder = f"{self.home}/topics/{topic}"
                held = os.listdir(f"{folder}/holds") if os.path.isdir(f"{folder}/holds") else []
                for holder in filter(mine.fullmatch, held):
                    Holds(REAL_FILES, folder).put(holder, {})

    @contextmanager
    def guarded(self, run: FlowRun) -> Iterator[None]:
        """While in here, no later run of the flow begins; raises `Fenced` if one has."""
        with self._locked():
            _check_current(self.of_version(run.version), run)
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(self.folder, exist_ok=True)
        with _GUARD, open(f"{self.folder}/lock", "a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
