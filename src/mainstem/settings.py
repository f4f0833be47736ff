"""What Mainstem takes from the environment of its process: the one place that reads it."""

from __future__ import annotations

import os

__all__ = ["environment_with"]


def environment_with(prefix: str) -> dict[str, str]:
    """The variables whose names begin with `prefix`, by the rest of their names in lower case.

    >>> environment_with("MAINSTEM_NOTHING_IS_CALLED_THIS_")
    {}
    """
    return {name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)}
