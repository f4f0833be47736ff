"""The disk behind files in memory: what was written, what of it a power cut would leave, and every way to lose the difference.

A file has what a process would read now (the page cache) and what is on disk; a directory its names, likewise.
"""

from __future__ import annotations

import random
from typing import Literal

Mode = Literal["lost", "kept", "prefix", "pieces", "zeros", "garbage"]
MODES: tuple[Mode, ...] = ("lost", "kept", "prefix", "pieces", "zeros", "garbage")

# What a disk writes whole, or not at all.
SECTOR_BYTES = 512

# A write or a truncation that is not on disk: position and bytes, or the new size and None.
Change = tuple[int, bytes | None]


class Node:
    """A file: its bytes as they are read, as they are on disk, and the changes between."""

    __slots__ = ("cached", "changes", "durable", "number", "unsynced")

    def __init__(self, number: int) -> None:
        self.number = number
        self.cached = bytearray()
        self.durable = bytearray()
        self.unsynced: list[Change] = []
        self.changes = 0

    def change(self, change: Change) -> None:
        apply(self.cached, change)
        self.unsynced.append(change)
        self.changes += 1

    def sync(self) -> None:
        for change in self.unsynced:
            apply(self.durable, change)
        self.unsynced.clear()


class Directory:
    """A directory: its entries, those on disk, and the changes between, each of which is there whole or not at all."""

    __slots__ = ("durable", "entries", "number", "unsynced")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Node | Directory] = {}
        self.durable: dict[str, Node | Directory] = {}
        self.unsynced: list[dict[str, Node | Directory | None]] = []

    def change(self, change: dict[str, Node | Directory | None]) -> None:
        rename(self.entries, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            rename(self.durable, change)
        self.unsynced.clear()


def apply(data: bytearray, change: Change) -> None:
    position, written = change
    if written is None:
        if position < len(data):
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


def rename(entries: dict[str, Node | Directory], change: dict[str, Node | Directory | None]) -> None:
    for name, entry in change.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def after_power_cut(node: Node, mode: Mode, chance: random.Random) -> bytearray:
    """The bytes of a file as a power cut leaves them."""
    if mode == "kept":
        return bytearray(node.cached)
    data = bytearray(node.durable)
    if mode == "lost" or not node.unsynced:
        return data
    if mode == "prefix":
        whole = chance.randrange(len(node.unsynced) + 1)
        for change in node.unsynced[:whole]:
            apply(data, change)
        for position, written in node.unsynced[whole : whole + 1]:
            if written is not None:
                apply(data, (position, written[: chance.randrange(len(written) + 1)]))
        return data
    if mode == "pieces":
        for position, written in node.unsynced:
            if written is None:
                if chance.random() < 0.5:
                    apply(data, (position, None))
                continue
            for piece_at, piece in sectors(position, written):
                if chance.random() < 0.5:
                    apply(data, (piece_at, piece))
        return data
    # The new size is on disk, and where the bytes should be lies nothing, or something else.
    before = len(data)
    apply(data, (len(node.cached), None))
    if mode == "garbage":
        data[before:] = chance.randbytes(max(0, len(data) - before))
    return data


def sectors(position: int, data: bytes) -> list[tuple[int, bytes]]:
    """What of a write lies in each sector."""
    first = position - position % SECTOR_BYTES
    pieces = []
    for start in range(first, position + len(data), SECTOR_BYTES):
        low, high = max(start, position), min(start + SECTOR_BYTES, position + len(data))
        pieces.append((low, data[low - position : high - position]))
    return pieces
