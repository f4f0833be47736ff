"""SQL text as a user types it: where a statement ends, and which names may complete a word."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["KEYWORDS", "completions", "has_statement", "quote_name", "split_statements"]

# Those of a query, in the order of their use; DuckDB knows more.
KEYWORDS = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "ORDER", "ASC", "DESC", "LIMIT", "OFFSET", "QUALIFY",
    "WITH", "AS", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "SEMI", "ANTI", "ASOF", "ON", "USING", "UNION",
    "INTERSECT", "EXCEPT", "ALL", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "EXISTS", "CASE",
    "WHEN", "THEN", "ELSE", "END", "CAST", "INTERVAL", "TIMESTAMP", "DATE", "OVER", "PARTITION", "VALUES", "EXPLAIN",
    "DESCRIBE", "SHOW", "SUMMARIZE", "PIVOT", "UNPIVOT", "count(", "sum(", "avg(", "min(", "max(", "first(", "last(",
    "date_trunc(", "row_number(", "quantile_cont(", "list(", "coalesce(",
)  # fmt: skip

# What a semicolon may stand in without ending a statement, or a semicolon.
_PARTS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$\w*\$).*?\1|--[^\n]*|/\*.*?\*/|(?P<open>'|"|/\*|\$\w*\$)|(?P<end>;)""",
    re.DOTALL,
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_statements(text: str) -> tuple[list[str], str]:
    """The complete statements, without their semicolons, and the rest, which is not complete yet.

    >>> split_statements("SELECT ';' AS a; SELECT 2 -- and; so on")
    (["SELECT ';' AS a"], ' SELECT 2 -- and; so on')
    """
    statements, start = [], 0
    for found in _PARTS.finditer(text):
        if found["open"]:
            # A quote or a comment that is not closed.
            break
        if found["end"]:
            statements.append(text[start : found.start()].strip())
            start = found.end()
    return [statement for statement in statements if has_statement(statement)], text[start:]


def has_statement(text: str) -> bool:
    """Whether a text is more than blanks and comments."""
    return bool(_COMMENT.sub("", text).strip())


def quote_name(name: str, reserved: Iterable[str] = KEYWORDS) -> str:
    """A name as SQL needs it: in quotes if it is more than letters, digits and underscores, or a keyword.

    >>> quote_name("orders"), quote_name("orders.late"), quote_name("order"), quote_name("window")
    ('orders', '"orders.late"', '"order"', '"window"')
    """
    if _PLAIN.fullmatch(name) and name.upper() not in (*reserved, "WINDOW", "TABLE", "TO", "FOR", "CHECK", "COLUMN"):
        return name
    return '"' + name.replace('"', '""') + '"'


def completions(word: str, names: Iterable[str]) -> list[str]:
    """The keywords and names that begin with a word: names first, as SQL needs them, keywords in the case of the word.

    >>> completions("or", ["orders", "orders.late", "customers"])
    ['orders', '"orders.late"', 'order', 'or']
    """
    # After a table's name and a dot, only a column can follow.
    table, dot, last = word.rpartition(".") if not word.startswith('"') else ("", "", word)
    begun = last.lstrip('"').lower()
    found = [quote_name(name) for name in dict.fromkeys(names) if name.lower().startswith(begun)]
    if not dot and begun and not word.startswith('"'):
        upper = last[:1].isupper()
        keywords = [keyword for keyword in KEYWORDS if keyword.lower().startswith(begun)]
        found += [keyword.upper() if upper and not keyword.endswith("(") else keyword.lower() for keyword in keywords]
    return [f"{table}{dot}{name}" for name in dict.fromkeys(found)]
