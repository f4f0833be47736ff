"""mainstem search."""

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.log.record import RECORD
from mainstem.testing.store_trial import changes

SCHEMA = pa.schema([("id", pa.int64()), ("title", pa.string()), ("record", RECORD)])
TITLES = ["red shoes", "red hat", "a pair of red shoes", "green shoes"]


@pytest.fixture
def products(stem):
    writer = stem.search_index("products", key="id", text="title").table_writer(FlowRun("products", 1), SCHEMA)
    rows = changes([(number, title, "insert") for number, title in enumerate(TITLES)], SCHEMA)
    writer.commit(writer.prepare(rows), Batch(0, FlowRun("products", 1)))


def test_the_rows_are_a_table_best_first(cli, products):
    said = cli("search", "products", "red shoes")

    heading, _, *lines = said.out.splitlines()
    assert (said.status, said.err) == (0, "")
    assert heading.split() == ["id", "title", "score"]
    assert [line.split()[0] for line in lines] == ["0", "2"]


def test_the_rows_as_json_with_limit_and_offset(cli, products):
    rows = cli("search", "products", "SHOES", "--json").lines

    assert {row["title"] for row in rows} == {"red shoes", "green shoes", "a pair of red shoes"}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert cli("search", "products", "shoes", "--json", "--limit", "1", "--offset", "1").lines == rows[1:2]


def test_query_syntax_is_no_error(cli, products):
    said = cli("search", "products", "key:fence (")

    assert (said.status, said.out) == (0, "")


def test_an_unknown_index_is_told_with_the_known_ones(cli, products):
    said = cli("search", "product", "red")

    assert said.status == 1
    what, detail, hint = said.err.splitlines()
    assert 'search index "product" does not exist' in what
    assert "products" in detail
    assert 'Did you mean "products"?' in hint


def test_a_limit_beyond_what_can_be_paged_through_is_refused(cli, products):
    said = cli("search", "products", "red", "--limit", "20000")

    assert said.status == 1
    assert "a search shows at most 10,000 rows" in said.err
