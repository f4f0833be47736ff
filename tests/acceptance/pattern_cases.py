"""The cases of A03 as patterns: what their stages, quantifiers and strategies are called here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mainstem.operators.patterns.pattern import Pattern, group, step

# What a case calls the way in which a stage follows, and the method here.
FOLLOWS: dict[str, Callable[[Pattern, Pattern], Pattern]] = {
    "next": Pattern.next,
    "followedBy": Pattern.then,
    "followedByAny": Pattern.then_any,
    "notNext": Pattern.not_next,
    "notFollowedBy": Pattern.not_then,
}


def pattern_of(stages: list[dict[str, Any]]) -> Pattern:
    first, *rest = stages
    made = part_of(first)
    for stage in rest:
        made = FOLLOWS[stage["contiguity"]](made, part_of(stage))
    return made


def part_of(stage: dict[str, Any]) -> Pattern:
    inner = stage.get("group") or stage.get("stages")
    made = group(pattern_of(inner)) if inner else step(name_of(stage["name"]), condition_of(stage))
    quantifier = stage.get("quantifier") or ""
    numbers = [int(number) for number in re.findall(r"\d+", quantifier)]
    if quantifier.startswith("times("):
        made = made.times(*numbers)
    elif quantifier:
        made = made.at_least(*(numbers or [1]))
    if stage.get("consecutive"):
        made = made.strict()
    if stage.get("allowCombinations"):
        made = made.any()
    if stage.get("until"):
        made = made.until(sql_of(stage["until"]))
    if stage.get("greedy"):
        made = made.greedy()
    return made.optional() if stage.get("optional") else made


def name_of(name: str) -> str:
    return name.replace("-", "_")


def condition_of(stage: dict[str, Any]) -> str | None:
    subtype = f"subtype = '{stage['subtype']}'" if stage.get("subtype") else None
    parts = [sql_of(stage["where"]) if stage.get("where") else None, subtype]
    return " AND ".join(f"({part})" for part in parts if part) or None


def sql_of(condition: str) -> str:
    """A condition in Spark's SQL."""
    condition = re.sub(r"(\w+) contains ('[^']*')", r"contains(\1, \2)", condition)
    return condition.replace("==", "=").replace("&&", "AND").replace("||", "OR")


def after_match_of(skip: str | None) -> Any:
    """`after_match` for a strategy: without "throwing" a row that is missing is no error."""
    if skip in (None, "noSkip"):
        return "no skip"
    if skip in ("skipPastLastEvent", "skipToNext"):
        return {"skipPastLastEvent": "past last", "skipToNext": "next"}[skip]
    [(side, name, strict)] = re.findall(r"skipTo(First|Last)\(([^)]*)\)( throwing)?", skip)
    return (side.lower(), name_of(name), *(() if strict else ("or no skip",)))
