"""Routing patterns in SQL against a recursive definition."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log.rows.row_filter import ROUTED_MACRO

words = st.sampled_from(["a", "b", "", "a+b", "(", "[x", "\\", "*a", "ä"])
keys = st.lists(words, max_size=5).map(".".join)
patterns = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), max_size=5).map(".".join)

BINDINGS = {"Q1": ["*.orange.*"], "Q2": ["*.*.rabbit", "lazy.#"]}


def split(text: str) -> list[str]:
    return text.split(".") if text else []


def matches(key: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return matches(key, pattern[1:]) or (bool(key) and matches(key[1:], pattern))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(key[1:], pattern[1:])


def routed(pairs: list[tuple[str, str]]) -> list[bool]:
    """What SQL says of pairs of a routing key and a pattern."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(ROUTED_MACRO)
        question = "SELECT routed(key, pattern) FROM (SELECT unnest(?) AS key, unnest(?) AS pattern)"
        found = connection.execute(question, [[key for key, _ in pairs], [pattern for _, pattern in pairs]]).fetchall()
    return [answer for (answer,) in found]


@settings(max_examples=40)
@given(st.lists(st.tuples(keys, patterns), min_size=1, max_size=100))
def test_like_the_definition(pairs: list[tuple[str, str]]) -> None:
    assert routed(pairs) == [matches(split(key), split(pattern)) for key, pattern in pairs]


@pytest.mark.parametrize(
    ("key", "queues"),
    [
        ("quick.orange.rabbit", ["Q1", "Q2"]),
        ("lazy.orange.elephant", ["Q1", "Q2"]),
        ("quick.orange.fox", ["Q1"]),
        ("lazy.brown.fox", ["Q2"]),
        ("lazy.pink.rabbit", ["Q2"]),
        ("quick.brown.fox", []),
        ("orange", []),
        ("quick.orange.new.rabbit", []),
        ("lazy.orange.new.rabbit", ["Q2"]),
    ],
)
def test_the_example_everybody_knows(key: str, queues: list[str]) -> None:
    assert [queue for queue, bound in BINDINGS.items() if any(routed([(key, pattern) for pattern in bound]))] == queues
