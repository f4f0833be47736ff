"""Case A03: the integration tests of Flink's CEP library, as facts: rows, a pattern, and the matches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.operators.patterns.after_match import read_after_match
from mainstem.operators.patterns.automaton import ALWAYS, Automaton
from mainstem.operators.patterns.expression import read_expression
from mainstem.operators.patterns.matcher import Found, KeyMatches, Matcher, path_of
from tests.acceptance.case_files import case
from tests.acceptance.pattern_cases import after_match_of, name_of, pattern_of

CASES = case("A03")["cases"]
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("price", pa.float64()),
        ("id", pa.int64()),
        ("volume", pa.float64()),
        ("subtype", pa.string()),
    ]
)


def find(given: dict[str, Any], *, one_by_one: bool = False) -> tuple[list[Found], Automaton]:
    """The matches of a case: all rows at once, or with the clock moved after each."""
    pattern, rows = given["pattern"], given["input"]
    automaton = Automaton(pattern_of(pattern["stages"]))
    after = read_after_match(after_match_of(pattern["skip"]), automaton.step_names)
    bounds = pattern["within"] or {}
    kind = {"FIRST_AND_LAST": "within", "PREVIOUS_AND_CURRENT": "gap"}
    spans = {kind[bounds["type"]]: bounds["ms"]} if bounds else {}
    matcher = Matcher(automaton, after_match=after, timeouts=True, **spans)
    numbered = list(zip(range(len(rows)), bits_of(automaton, rows), times_of(rows), strict=True))
    key, end = KeyMatches(), max(times_of(rows)) if rows else 0
    if not one_by_one:
        return matcher.run(key, numbered, until=end), automaton
    found = []
    for number, bits, time in numbered:
        found += matcher.run(key, [(number, bits, time)], until=time)
    return found, automaton


def times_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row.get("ts", number) for number, row in enumerate(rows)]


def bits_of(automaton: Automaton, rows: list[dict[str, Any]]) -> list[int]:
    asked = [read_expression(str(text), (), SCHEMA).compile() for text in automaton.conditions]
    whole = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    return [ALWAYS | sum(2 << place for place, holds in enumerate(asked) if holds(row, no_rows)) for row in whole]


def no_rows(step: str) -> list[Any]:
    return []


def refs(found: Found, rows: list[dict[str, Any]]) -> list[str]:
    return [rows[number]["ref"] for number, _ in path_of(found.node)]


def told(matches: list[list[str]], rows: list[dict[str, Any]]) -> list[list[str]]:
    """Matches by the first of equal rows: a case may call a row by the name of one that equals it."""
    same: dict[str, str] = {}
    for row in rows:
        content = {name: value for name, value in row.items() if name != "ref"}
        same[row["ref"]] = next(
            other["ref"] for other in rows if content == {name: value for name, value in other.items() if name != "ref"}
        )
    return sorted([same[ref] for ref in match] for match in matches)


@pytest.mark.parametrize("given", CASES, ids=[given["id"] for given in CASES])
@pytest.mark.parametrize("one_by_one", [False, True], ids=["at_once", "row_by_row"])
def test_the_matches_are_those_of_the_case(given: dict[str, Any], one_by_one: bool) -> None:
    if given.get("expected_error"):
        with pytest.raises(Invalid):
            find(given, one_by_one=one_by_one)
        return
    found, automaton = find(given, one_by_one=one_by_one)
    rows = given["input"]
    matches = [refs(match, rows) for match in found if not match.timed_out]
    if "expected_matches" in given:
        assert told(matches, rows) == told(given["expected_matches"], rows)
    if "expected_match_count" in given:
        assert len(matches) == given["expected_match_count"]
    if "expected_timeouts" in given:
        expected = [
            ({name_of(name): rows for name, rows in ended["partial"].items()}, ended["timeout_ts"])
            for ended in given["expected_timeouts"]
        ]
        timed_out = [(by_step(ended, automaton, rows), ended.at) for ended in found if ended.timed_out]
        assert sorted(map(str, timed_out)) == sorted(map(str, expected))


def by_step(found: Found, automaton: Automaton, rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for number, step in path_of(found.node):
        steps.setdefault(automaton.step_names[step], []).append(rows[number]["ref"])
    return steps
