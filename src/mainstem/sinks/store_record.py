"""StoreRecord: what a home knows of a store: which version its flow writes, and up to where that is filled.

    stores/<name>.json      {"format": 1, "version": 2, "until": {"orders": {"0": 1200}}, "location": "...", "flow": "..."}

Replaced atomically and synced, under a lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from mainstem.batch import Offsets
from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import CorruptHome, NewerFormat
from mainstem.file_locks import lock_folder

__all__ = ["StoreFacts", "StoreRecord", "store_names"]

FORMAT = 1


@dataclass(frozen=True)
class StoreFacts:
    """The version that the flow writes. `until`: the offsets at which it is complete; None if nobody asked yet."""

    version: int = 1
    until: Offsets | None = None
    location: str = ""
    # The highest number that was ever given to a version.
    highest: int = 1
    # The flow that writes it; empty if none did.
    flow: str = ""


def store_names(home: str) -> list[str]:
    """The stores that a flow of this home ever wrote, sorted."""
    try:
        names = os.listdir(f"{home}/stores")
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


class StoreRecord:
    """The file of one store. Any process may use it."""

    def __init__(self, home: str, name: str) -> None:
        self.name = name
        self._folder = f"{home}/stores"
        self._path = f"{self._folder}/{name}.json"

    def read(self) -> StoreFacts:
        """What is known; the defaults if no flow ever wrote the store."""
        try:
            with open(self._path, "rb") as file:
                content = decode_checked(file.read(), since=1, known=FORMAT)
        except FileNotFoundError:
            return StoreFacts()
        except ValueError as error:
            raise CorruptHome(
                f'"{self._path}" is damaged',
                detail=f"Its content is invalid: {error}.",
                hint="Restore it from a copy, or delete it and rebuild the store: mainstem store rebuild "
                f"{self.name} --program FILE",
                path=self._path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat.of(f'store "{self.name}"', found, FORMAT, where=f'"{self._path}"')
        until = content["until"]
        return StoreFacts(
            content["version"],
            None
            if until is None
            else {topic: {int(number): end for number, end in ends.items()} for topic, ends in until.items()},
            content["location"],
            content["highest"],
            content.get("flow", ""),
        )

    def change(self, edit: Callable[[StoreFacts], StoreFacts]) -> StoreFacts:
        """Replace what is known, one process at a time; durable when this returns."""
        with lock_folder(self._folder):
            facts = edit(self.read())
            content = {
                "format": FORMAT, "version": facts.version, "until": facts.until, "location": facts.location,
                "highest": facts.highest, "flow": facts.flow,
            }  # fmt: skip
            replace_file(REAL_FILES, self._path, encode_checked(content, indent=1))
        return facts

    def new_version(self, least: int = 1) -> int:
        """A number for a version that nobody had before."""
        return self.change(lambda facts: replace(facts, highest=max(facts.highest, facts.version, least) + 1)).highest

    def use(self, version: int, until: Offsets | None = None) -> None:
        """From now on the flow writes this version."""
        self.change(lambda facts: replace(facts, version=version, until=until, highest=max(facts.highest, version)))
