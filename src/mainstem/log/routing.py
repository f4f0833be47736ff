r"""Routing patterns: `lazy.#`, `*.orange.*`, as topic exchanges have them.

A routing key is words with dots between them; the empty key has no words. In a pattern `*` stands for exactly one word
and `#` for any number of words, none included; every other word stands for itself.

Pattern and key are given a dot before every word, so that `#` needs no special case wherever it stands:

    pattern  lazy.#    ->  \.lazy(\.[^.]*)*          key  lazy.orange  ->  .lazy.orange
"""

from __future__ import annotations

import re

__all__ = ["ROUTED_MACRO", "pattern_expression", "routed"]

ONE_WORD = r"\.[^.]*"
ANY_WORDS = rf"({ONE_WORD})*"

# The same as below in SQL. With a constant pattern DuckDB builds the expression once, not once per row.
ROUTED_MACRO = rf"""
CREATE MACRO routed(routing_key, pattern) AS regexp_full_match(
    CASE WHEN routing_key = '' THEN '' ELSE '.' || routing_key END,
    CASE WHEN pattern = '' THEN '' ELSE array_to_string(list_transform(string_split(pattern, '.'), lambda word:
        CASE word WHEN '*' THEN '{ONE_WORD}' WHEN '#' THEN '{ANY_WORDS}' ELSE '\.' || regexp_escape(word) END), '') END
)
"""


def pattern_expression(pattern: str) -> str:
    r"""The regular expression that matches a dotted key (see above) as a whole.

    >>> pattern_expression("lazy.#")
    '\\.lazy(\\.[^.]*)*'
    """
    if not pattern:
        return ""
    forms = {"*": ONE_WORD, "#": ANY_WORDS}
    return "".join(forms.get(word, rf"\.{re.escape(word)}") for word in pattern.split("."))


def routed(routing_key: str, pattern: str) -> bool:
    """Whether a key goes where the pattern points.

    >>> routed("lazy.orange.elephant", "lazy.#"), routed("orange", "*.orange.*")
    (True, False)
    """
    dotted = f".{routing_key}" if routing_key else ""
    return re.fullmatch(pattern_expression(pattern), dotted) is not None
