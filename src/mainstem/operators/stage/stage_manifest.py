"""The manifest of a batch: which runs are the state of a flow's stages after it.

    <checkpoint>/stages/<batch>.json            one manifest for all stages of the flow; the last two are kept
    <checkpoint>/stages/<stage>/<run>.arrow     the runs of a stage
    <checkpoint>/stages/attempt-<batch>-<id>/   what the tasks of a batch left, until its manifest is written

A manifest is replaced whole and synced, after the sink has taken the batch and before Spark is told so. A batch that is
done again begins with the manifest of the batch before, so it does not matter at which point it was cut short.

    {"format": 2, "crc32c": ..., "batch": 7, "clock": {"watermark": ..., "now": ...},
     "stages": {"windowed-0": {"described": {...}, "buckets": 2, "counts": {...}, "late": {...},
                               "state": {"0": {"runs": [...], "live": 12, "given": 340}}}}}
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from mainstem.errors import CorruptHome, NewerFormat
from mainstem.log.checked_json import decode_checked, encode_checked
from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log.embedded.files import replace_file

__all__ = ["StageManifests"]

# 2: it has a checksum.
FORMAT = 2


class StageManifests:
    """The manifests of one checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self.folder = f"{checkpoint}/stages"

    def read(self, batch: int) -> dict[str, Any]:
        """The manifest of a batch; raises if it is not there."""
        path = f"{self.folder}/{batch}.json"
        try:
            with open(path, "rb") as file:
                content = decode_checked(file.read(), since=2, known=FORMAT)
            if content.get("batch", batch) != batch:
                raise ValueError(f"it is the file of batch {content['batch']}")
        except (FileNotFoundError, ValueError) as error:
            raise CorruptHome(
                f"the state of a flow after batch {batch} is not there",
                detail=f'"{path}" is missing or damaged: {error}.',
                hint="The log has everything: rebuild the flow's sink, or delete the flow's checkpoint together with what it "
                "has written, and run it again.",
                path=path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat(
                f'"{path}" was written by a newer Mainstem',
                detail=f"It has format {found}; this Mainstem knows up to {FORMAT}.",
                hint="Install the newer Mainstem.",
                found_version=found,
                known_version=FORMAT,
            )
        return content

    def last(self) -> dict[str, Any] | None:
        """The newest manifest; None if there is none."""
        numbers = list(self._numbers())
        return self.read(max(numbers)) if numbers else None

    def write(self, batch: int, content: Mapping[str, Any]) -> None:
        """Put the manifest of a batch in its place, synced, and let go of what no kept manifest names."""
        data = encode_checked({"format": FORMAT, "batch": batch, **content})
        replace_file(REAL_FILES, f"{self.folder}/{batch}.json", data)
        self._tidy(batch, content)

    def begin(self, batch: int, attempt: str, stages: Mapping[str, Any]) -> str:
        """A folder for what an attempt at a batch leaves; the first batch begins with nothing."""
        if batch == 0:
            for number in list(self._numbers()):
                os.remove(f"{self.folder}/{number}.json")
        for stage in stages:
            os.makedirs(f"{self.folder}/{stage}", exist_ok=True)
        path = f"{self.folder}/attempt-{batch}-{attempt}"
        os.makedirs(path)
        return path

    def batches(self) -> list[int]:
        """The batches whose manifests are there, in order."""
        return sorted(self._numbers())

    def _numbers(self) -> Iterator[int]:
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                number, _, kind = name.partition(".")
                if kind == "json" and number.isdigit():
                    yield int(number)

    def _tidy(self, batch: int, content: Mapping[str, Any]) -> None:
        """Whatever is left behind by a crash goes with the next batch."""
        kept = [content]
        for number in list(self._numbers()):
            if number < batch - 1:
                os.remove(f"{self.folder}/{number}.json")
            elif number != batch:
                kept.append(self.read(number))
        for stage in content["stages"]:
            named = {
                run["name"]
                for manifest in kept
                for bucket in manifest["stages"].get(stage, {}).get("state", {}).values()
                for run in bucket["runs"]
            }
            for name in os.listdir(f"{self.folder}/{stage}"):
                if name not in named:
                    os.remove(f"{self.folder}/{stage}/{name}")
        for name in os.listdir(self.folder):
            if name.startswith("attempt-"):
                shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)
