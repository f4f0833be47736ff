"""Spark's errors in our words: the one place where they are translated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mainstem.errors import Invalid, MainstemError, SchemaMismatch, did_you_mean
from mainstem.log_on_spark.spark_types import TIME_HINT

__all__ = ["spark_errors"]

_COLUMN = re.compile(
    r"with name `(?P<name>[^`]+)` cannot be resolved(?:\. Did you mean one of the following\? \[(?P<known>[^\]]*)\])?"
)


@contextmanager
def spark_errors(subject: str) -> Iterator[None]:
    """What Spark refuses while a plan is built, as `Invalid`."""
    try:
        yield
    except MainstemError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("pyspark"):
            raise
        raise translated(error, subject) from error


def translated(error: Exception, subject: str) -> Invalid:
    """One of Spark's errors as ours, without its stack."""
    text = str(error)
    if found := _COLUMN.search(text):
        known = [name.strip(" `") for name in (found["known"] or "").split(",") if name.strip()]
        return SchemaMismatch(
            f'{subject} uses the column "{found["name"]}", which is not there',
            detail=f"The columns nearest to it are: {', '.join(known)}." if known else "",
            hint=did_you_mean(found["name"], known) or "Name one of the columns that the rows have.",
            column=found["name"],
        )
    if "UNSUPPORTED_TIME_TYPE" in text:
        return Invalid(
            f"{subject} uses a TIME, which this Spark session does not take",
            detail="Spark has times of day, and Mainstem turns them on where nobody says otherwise.",
            hint=TIME_HINT,
        )
    first = text.splitlines()[0] if text else type(error).__name__
    first = re.sub(r"^\[[A-Z_.]+\] ", "", first)
    return Invalid(
        f"{subject} cannot be built",
        detail=first if first.endswith(".") else f"{first}.",
        hint="Nothing was started. Mend the program and check it again.",
    )
