"""FlowCopy: copies the files of a flow into another home, as they are between two batches.

The gates of the flow's checkpoints are closed, so its sink and its state stay as they are after one batch. Batches that
Spark has planned since, and that have not started, are left out: in the copy they are planned again. The planned batch of
a run that died is copied too, and repeated in the copy, as it would be here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from mainstem.durable_files import REAL_FILES, copy_file, replace_file
from mainstem.errors import Corrupt, Unavailable
from mainstem.spark.checkpoint.batch_gate import BEGUN, GATE, BatchGate
from mainstem.spark.checkpoint.checkpoint_location import is_elsewhere, read_pointer
from mainstem.spark.checkpoint.checkpoint_offsets import file_offset
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process
from mainstem.spark.checkpoint.native_history import noted_history

__all__ = ["FlowCopy", "copy_tree"]


class FlowCopy:
    """Copies one flow. For one thread."""

    def __init__(self, home: str, name: str, target: str) -> None:
        self.name = name
        self._store = FlowStore(home, name)
        self._target = FlowStore(target, name)
        self._begun: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self.bytes = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Inside, the flow runs no batch."""
        with ExitStack() as stack:
            for version in self._versions():
                facts = self._facts(version)
                self._epochs[version] = facts.get("epoch", 0)
                gate = BatchGate(self._store.checkpoint(version), self._epochs[version])
                stack.enter_context(gate.hold_closed())
                begun = gate.find_begun_batch() if find_process(facts) is not None else None
                if begun is not None:
                    self._begun[version] = begun
            yield

    def check_held(self) -> None:
        """Raise `Unavailable` if another run started meanwhile: it has its own gate, which was not closed."""
        if any(self._facts(version).get("epoch", 0) != epoch for version, epoch in self._epochs.items()):
            raise Unavailable(
                f'flow "{self.name}" was restarted while the home was copied',
                detail="Its checkpoint and its sink may have been copied from different batches.",
                hint="Remove the incomplete copy, then copy again.",
            )

    def copy(self) -> None:
        """Copy the checkpoint of each version, and the facts of the flow; call it inside `hold`."""
        os.makedirs(self._target.folder, mode=0o700, exist_ok=True)
        for version in self._versions():
            self._copy_checkpoint(version)
            for file in (FlowStore.description, FlowStore.lineage):
                with suppress(FileNotFoundError):
                    self.bytes += copy_file(REAL_FILES, file(self._store, version), file(self._target, version))
        try:
            known = self._store.read()
        except Corrupt:
            # Damaged: copied as it is.
            self.bytes += copy_file(REAL_FILES, f"{self._store.folder}/flow.json", f"{self._target.folder}/flow.json")
            return
        # In the copy no process runs them.
        ended = {"ended": {"state": "stopped", "error": []}}
        runs = {number: run if "ended" in run else run | ended for number, run in known.get("runs", {}).items()}
        self._target.change(lambda _: {**known, "runs": runs})

    def elsewhere(self) -> list[str]:
        """The parts of the flow that are not in the home."""
        found = []
        for version in self._versions():
            checkpoint = self._store.checkpoint(version)
            if is_elsewhere(checkpoint):
                with suppress(Corrupt):
                    found.append(f'the checkpoint of flow "{self.name}": {read_pointer(checkpoint)}')
            folder = self._facts(version).get("folder")
            if folder and not folder.startswith(f"{self._store.home}/"):
                found.append(f'the files of flow "{self.name}": {folder}')
        return found

    def _facts(self, version: int) -> dict[str, Any]:
        with suppress(Corrupt):
            return self._store.of_version(version)
        return {}

    def _versions(self) -> list[int]:
        names = os.listdir(self._store.folder)
        return sorted(int(name[1:]) for name in names if name[0] == "v" and name[1:].isdigit())

    def _copy_checkpoint(self, version: int) -> None:
        source, target = self._store.checkpoint(version), self._target.checkpoint(version)
        last = self._begun.get(version)
        # In this order: a batch is planned before it is committed.
        for log in ("offsets", "commits"):
            names = _numbers(f"{source}/{log}")
            for number in names if last is None else [number for number in names if number <= last]:
                os.makedirs(f"{target}/{log}", mode=0o700, exist_ok=True)
                for name in (f"{number}", f".{number}.crc"):
                    with suppress(FileNotFoundError):  # a session may write no checksums, and Spark drops old entries
                        self.bytes += copy_file(REAL_FILES, f"{source}/{log}/{name}", f"{target}/{log}/{name}")
        self.bytes += copy_tree(source, target, left_out={"offsets", "commits", BEGUN})
        _move_files(target, last)


def copy_tree(source: str, target: str, left_out: set[str] | frozenset[str] = frozenset()) -> int:
    """Copy a folder that others write into, durable when this returns; returns the number of bytes.

    Not copied are the names `left_out` at its top, temporary files, staged rows, attempts of a batch, and files that are
    removed meanwhile.
    """
    copied = 0
    for inside, folders, names in os.walk(source):
        top = inside == source
        folders[:] = [name for name in folders if not _on_its_way(name) and not (top and name in left_out)]
        there = target + inside.removeprefix(source)
        os.makedirs(there, mode=0o700, exist_ok=True)
        for name in names:
            if not _on_its_way(name) and not (top and name in left_out):
                with suppress(FileNotFoundError):
                    copied += copy_file(REAL_FILES, f"{inside}/{name}", f"{there}/{name}")
        REAL_FILES.sync_directory(there)
    return copied


def _move_files(target: str, last: int | None) -> None:
    """Change the paths in the copy of a flow that reads sealed files first (`native_history`) to those of the copy.

    Spark's file source records the paths of the files of each batch, also of a planned one; those after the last batch of
    the copy are removed.

        sources/0/<number>            a version, then a line for each file: {"path": ..., "timestamp": ..., "batchId": 3}
        sources/0/<number>.compact    the same for all batches so far; earlier single files may be removed
    """
    try:
        history = noted_history(target)
    except Corrupt:
        return  # damaged here too
    if history is None:
        return
    moved = history.copy_to(target)
    folder, reached = f"{target}/sources/0", None if last is None else file_offset(target, last)
    noted: dict[int, list[str]] = {}
    version = ""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        if not name.startswith("."):
            with open(f"{folder}/{name}", encoding="utf-8") as file:
                version, *lines = file.read().splitlines()
            for entry in map(json.loads, lines):
                path = f"{moved.read}/{os.path.basename(unquote(entry['path']))}"
                line = json.dumps({**entry, "path": f"file://{quote(path)}"}, separators=(",", ":"))
                known = noted.setdefault(entry["batchId"], [])
                if line not in known:
                    known.append(line)
        os.remove(f"{folder}/{name}")
    for number, lines in noted.items():
        if reached is None or number <= reached:
            replace_file(REAL_FILES, f"{folder}/{number}", "\n".join([version, *lines]).encode())


def _on_its_way(name: str) -> bool:
    return name.endswith((".tmp", ".staging", ".new")) or name.startswith((f".{BEGUN}.", f"{GATE}.", "attempt-"))


def _numbers(folder: str) -> list[int]:
    with suppress(FileNotFoundError):
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    return []
