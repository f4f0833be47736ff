"""Where a statement ends, and what completes a word."""

import pytest

from mainstem.workbench.cli.sql_text import completions, quote_name, split_statements


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT\n2;;", ["SELECT 1", "SELECT\n2"], ""),
        ("SELECT ';';", ["SELECT ';'"], ""),
        ("SELECT 'it''s;';", ["SELECT 'it''s;'"], ""),
        ('SELECT ";" FROM a;', ['SELECT ";" FROM a'], ""),
        ("SELECT $$;$$, $x$ ; $x$;", ["SELECT $$;$$, $x$ ; $x$"], ""),
        ("SELECT 1 -- one; two\n;", ["SELECT 1 -- one; two"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("-- only a comment\n;", [], ""),
        ("SELECT 'not closed; ", [], "SELECT 'not closed; "),
        ("SELECT 1; SELECT /* not closed; ", ["SELECT 1"], " SELECT /* not closed; "),
    ],
)
def test_a_semicolon_ends_a_statement_unless_it_is_quoted(text, statements, rest):
    assert split_statements(text) == (statements, rest)


NAMES = ["orders", "orders.emails.rejected", "revenue", "store", "order_id", "window", "Total"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("ord", ["orders", '"orders.emails.rejected"', "order_id", "order"]),
        ("ORD", ["orders", '"orders.emails.rejected"', "order_id", "ORDER"]),
        ("o.st", ["o.store"]),
        ('"orders.e', ['"orders.emails.rejected"']),
        ("win", ['"window"']),
        ("tot", ["Total"]),
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("cou", ["count("]),
        ("zebra", []),
    ],
)
def test_a_word_is_completed_by_names_and_keywords(word, found):
    assert completions(word, NAMES) == found


def test_a_quote_in_a_name_is_doubled():
    assert quote_name('a"b') == '"a""b"'
