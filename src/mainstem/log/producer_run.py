"""ProducerRun: one run of a producer, as a log knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """`check` raises `Fenced` once a newer run was opened; `state` says that nothing earlier will come to a topic.

    A shared one is used by several processes at once, and orders its sequences by itself.
    """

    name: str
    id: int
    epoch: int
    check: Callable[[], None]
    state: Callable[[str, int], None]
    last_sequence: Callable[[str], int]
    kept_sequence: Callable[[str], int]
    incomplete_sequence: Callable[[str], int | None]
    shared: bool = False
