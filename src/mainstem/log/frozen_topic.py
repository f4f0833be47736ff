"""FrozenTopic: a snapshot of a topic, as a folder of immutable Parquet files.

    reads/<process>-<random>/whole/      hard links of sealed segments, and files of the unsealed records
                             cut/        hard links of segments of which only a range of offsets is read

Transactions are complete or absent, as in every bounded read.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass

from mainstem.processes import alive, this_process

__all__ = ["Cut", "FrozenTopic", "new_folder", "remove_left_behind"]


@dataclass(frozen=True)
class Cut:
    """A range of offsets of one partition; the segments in `cut/` have more."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True)
class FrozenTopic:
    """The files of one read."""

    folder: str
    cuts: tuple[Cut, ...]

    @property
    def whole(self) -> str:
        return f"{self.folder}/whole"

    @property
    def cut(self) -> str:
        return f"{self.folder}/cut"

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def new_folder(home: str) -> str:
    """A new path for the files of a read of this process."""
    identity = this_process()
    return f"{home}/reads/{identity['pid']}.{identity['started']}-{uuid.uuid4().hex[:12]}"


def remove_left_behind(home: str) -> None:
    """Remove the reads of processes that have ended."""
    with suppress(FileNotFoundError):
        for name in os.listdir(f"{home}/reads"):
            pid, _, started = name.split("-")[0].partition(".")
            if not alive({"pid": int(pid), "started": int(started), "boot": this_process()["boot"]}):
                shutil.rmtree(f"{home}/reads/{name}", ignore_errors=True)
