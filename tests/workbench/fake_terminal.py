"""A terminal in memory, for what is shown on one."""

from __future__ import annotations

import io
import re


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What is seen, without colours."""
        return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in self.getvalue().splitlines()]
