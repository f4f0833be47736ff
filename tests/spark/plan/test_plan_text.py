"""The text of a plan is equal for two builds of a program, whatever Java gives its objects and attributes."""

import pytest

from mainstem.spark.plan.flow_plan import without_incidental


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("org.apache.spark.sql.PythonTable@1f2e3d4c, [a#12L]", "org.apache.spark.sql.PythonTable@dd, [a#7L]"),
        ("Range(Source@7)", "Range(Source@12ab34cd)"),
        ("lambda x_1#4", "lambda x_22#9"),
        ("CTERelationDef 1, false", "CTERelationDef 12, false"),
    ],
)
def test_hashes_and_ids_of_any_length_are_left_out(first: str, second: str) -> None:
    assert without_incidental(first) == without_incidental(second)


def test_what_the_program_says_stays() -> None:
    assert without_incidental("(mail = joe@a.example)") != without_incidental("(mail = joe@b.example)")
    assert without_incidental("PythonTable@dd, [a#1]") != without_incidental("PythonTable@dd, [b#1]")
