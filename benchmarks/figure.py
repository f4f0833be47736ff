"""A figure: what was measured, beside the goal it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured value. `at_least` or `at_most` is its goal; one without either is only reported."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.at_least is not None:
            return f">= {self.at_least:g}{self.unit}"
        return "reported" if self.at_most is None else f"<= {self.at_most:g}{self.unit}"

    @property
    def missed_by(self) -> float:
        """How far from the goal, as a share of it; 0 when it is met."""
        if self.at_least is not None:
            return max(0.0, 1 - self.value / self.at_least)
        return 0.0 if self.at_most is None else max(0.0, self.value / self.at_most - 1)

    @property
    def verdict(self) -> str:
        """Met, or by how much missed."""
        if self.at_least is None and self.at_most is None:
            return ""
        return "met" if not self.missed_by else f"missed by {self.missed_by:.0%}"

    def to_json(self) -> dict[str, Any]:
        """As it stands in the last line."""
        met = None if self.goal == "reported" else not self.missed_by
        return {**asdict(self), "goal": self.goal, "met": met, "missed_by": self.missed_by}


def table(figures: Sequence[Figure]) -> str:
    """The figures as a table that a person reads."""
    rows = [("figure", "goal", "measured", "", "detail")]
    rows += [(it.name, it.goal, f"{it.value:.3g}{it.unit}", it.verdict, it.detail) for it in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
