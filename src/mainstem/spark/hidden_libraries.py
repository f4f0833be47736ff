"""Finds a file beside a program that has the name of a library, such as pandas.py: Python imports it instead of the library,
here and in Spark's workers, and what fails then names neither."""

from __future__ import annotations

import os
import sys

from mainstem.errors import Invalid

__all__ = ["LIBRARIES", "check_libraries"]

# What Mainstem and Spark import while a program runs.
LIBRARIES = (
    "duckdb",
    "google_crc32c",
    "mainstem",
    "numpy",
    "pandas",
    "py4j",
    "pyarrow",
    "pyspark",
    "rich",
    "sqlglot",
    "typer",
)


def check_libraries(folder: str) -> None:
    """Raise `Invalid` if a file or package in the folder of a program hides a library."""
    for library in LIBRARIES:
        for path in (f"{folder}/{library}.py", f"{folder}/{library}/__init__.py"):
            if os.path.isfile(path) and not _is_library(library, path):
                raise Invalid(
                    f'"{path}" hides the library {library}',
                    detail="Python imports what lies beside the program instead of the library of the same name, which "
                    "Mainstem or Spark needs.",
                    hint="Rename it.",
                )


def _is_library(library: str, path: str) -> bool:
    """Whether this is the library itself: the program lies where libraries are installed, or beside their sources."""
    if "site-packages" in path.split(os.sep):
        return True
    found = getattr(sys.modules.get(library), "__file__", None)
    return library == "mainstem" and found is not None and os.path.exists(found) and os.path.samefile(found, path)
