"""NativeHistory: which sealed files a flow reads with Spark's own file source before it goes live, noted beside its
checkpoint before the first of them is read.

    <checkpoint>/history/note               what follows, as JSON, and the checksum of it
    <checkpoint>/history/<random>/waiting/  hard links of sealed segments, made once, before the note
                                  read/     where Spark looks: a portion is moved here when it is its turn

A portion is what one batch reads. Spark's file source numbers what it finds from 0 ({"logOffset": n}), and it finds one
portion at a time: so n is the number of a portion, and the note says up to which offset of the log that is. The same
holds for whatever run reads the checkpoint, however often it was killed. Nothing ever changes the note; the links are
removed once the first batch behind them is committed.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import google_crc32c

from mainstem.errors import CorruptHome, NewerFormat
from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log.embedded.files import replace_file, sync_file

__all__ = ["NativeHistory", "Portion", "noted_history"]

FORMAT = 1


@dataclass(frozen=True)
class Portion:
    """The files of one batch, and up to where each partition is in when they are."""

    files: tuple[str, ...]
    rows: int
    ends: Mapping[int, int]


@dataclass(frozen=True)
class NativeHistory:
    """The portions in their order. `folder` is where they lie, by the name that Spark noted down."""

    topic: str
    topic_id: str
    folder: str
    portions: tuple[Portion, ...]
    # Of a compacted topic how far each partition was compacted when the files were linked: see `read_since`.
    cleaned: Mapping[int, int] | None = None

    @property
    def waiting(self) -> str:
        return f"{self.folder}/waiting"

    @property
    def read(self) -> str:
        return f"{self.folder}/read"

    @property
    def rows(self) -> int:
        return sum(portion.rows for portion in self.portions)

    @property
    def last(self) -> int:
        """The number of the last portion."""
        return len(self.portions) - 1

    @property
    def end(self) -> dict[str, Any]:
        """Where the topic source goes on, as it would have noted it."""
        return self.offset_at(self.last)

    def offset_at(self, number: int) -> dict[str, Any]:
        """What is in when a portion is, as the topic source would have noted it."""
        ends = {str(partition): end for partition, end in self.portions[number].ends.items()}
        offset: dict[str, Any] = {"topic": self.topic, "id": self.topic_id, "offsets": ends}
        if self.cleaned is not None:
            offset["cleaned"] = {str(partition): at for partition, at in self.cleaned.items()}
        return offset

    def place(self, number: int) -> None:
        """Have a portion found by Spark. May be done again."""
        for name in self.portions[number].files:
            with suppress(FileNotFoundError):
                os.rename(f"{self.waiting}/{name}", f"{self.read}/{name}")

    def missing(self, number: int) -> list[str]:
        """The files of a portion that Spark would look for in vain."""
        return [name for name in self.portions[number].files if not os.path.exists(f"{self.read}/{name}")]

    def let_go(self, number: int) -> None:
        """Remove the links of the portions up to a number, which nobody reads again."""
        for portion in self.portions[: max(0, number + 1)]:
            for name in portion.files:
                with suppress(FileNotFoundError):
                    os.remove(f"{self.read}/{name}")

    def remove(self) -> None:
        """Remove all links, also those of runs that died before they noted them; the note stays."""
        parent = os.path.dirname(self.folder)
        for name in os.listdir(parent):
            if name != "note":
                shutil.rmtree(f"{parent}/{name}", ignore_errors=True)

    def note(self, checkpoint: str) -> None:
        """Write it down, on disk when this returns. Of two runs that do so at once, what the first one wrote counts."""
        for folder in (self.waiting, self.read, self.folder):
            REAL_FILES.sync_directory(folder)
        path = _path(checkpoint)
        own = f"{path}.{uuid.uuid4().hex[:12]}"
        replace_file(REAL_FILES, own, self._encoded())
        with suppress(FileExistsError):
            os.link(own, path)
        os.remove(own)
        sync_file(REAL_FILES, path)
        for folder in (os.path.dirname(path), checkpoint, os.path.dirname(checkpoint)):
            REAL_FILES.sync_directory(folder)

    def moved_to(self, checkpoint: str) -> NativeHistory:
        """The same beside a copy of its checkpoint, noted there."""
        moved = replace(self, folder=f"{checkpoint}/history/{os.path.basename(self.folder)}")
        replace_file(REAL_FILES, _path(checkpoint), moved._encoded())
        return moved

    def _encoded(self) -> bytes:
        body = json.dumps({"format": FORMAT, **asdict(self)}).encode() + b"\n"
        return body + json.dumps({"crc32c": google_crc32c.value(body)}).encode() + b"\n"


def _path(checkpoint: str) -> str:
    return f"{checkpoint}/history/note"


def noted_history(checkpoint: str) -> NativeHistory | None:
    """What was noted beside a checkpoint; None if nothing was."""
    path = _path(checkpoint)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    body, _, last = content.rstrip(b"\n").rpartition(b"\n")
    try:
        sound = json.loads(last)["crc32c"] == google_crc32c.value(body + b"\n")
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise CorruptHome(
            f'"{path}" is damaged',
            detail="Its checksum does not fit. It says which files of the log the flow has read, and where it goes on.",
            hint="Restore it from a copy. Or begin anew: delete the checkpoint together with what the flow has written; "
            "the next run makes both again from the log.",
            path=path,
        )
    known = json.loads(body)
    if known["format"] > FORMAT:
        raise NewerFormat(
            f'"{path}" has format {known["format"]}',
            detail=f"This version of Mainstem reads it up to format {FORMAT}.",
            hint="Run the program with a newer Mainstem.",
        )
    portions = tuple(
        Portion(tuple(each["files"]), each["rows"], {int(number): end for number, end in each["ends"].items()})
        for each in known["portions"]
    )
    cleaned = known.get("cleaned")  # an older Mainstem did not note it
    if cleaned is not None:
        cleaned = {int(number): at for number, at in cleaned.items()}
    return NativeHistory(known["topic"], known["topic_id"], known["folder"], portions, cleaned)
