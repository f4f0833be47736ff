"""A query reads the tables that it was given, and nothing else: no file, no variable, no network, and it changes nothing."""

import hashlib
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

import mainstem
from mainstem.errors import Invalid, MainstemError, TopicNotFound
from mainstem.log.query_limits import QueryLimits
from mainstem.log.sql_sandbox import SqlSandbox
from tests.log.endless_query import ENDLESS, ctrl_c_in_a_query, queries

SECRET = "the-secret-of-another-folder"

# Statements by their kind; {secret} is a file that must not be read, {sealed} one of the snapshot, {new} one that is not there.
KINDS = """
COPY (SELECT 1) TO '{new}'
COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
COPY (SELECT 1) TO '{sealed}' (FORMAT csv, use_tmp_file false)
COPY rows TO '{sealed}' (use_tmp_file false, overwrite_or_ignore true)
COPY rows FROM '{secret}'
WITH a AS (COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)) SELECT 1
WITH a AS (COPY (SELECT 1) TO '{new}' (use_tmp_file false)) SELECT 1
WITH b AS (SELECT 1), a AS (COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)) SELECT * FROM b
SELECT * FROM (WITH a AS (COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)) SELECT 1)
SELECT (WITH a AS (COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)) SELECT 1)
SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{sealed}'' (use_tmp_file false)) SELECT 1')
SELECT * FROM query('COPY (SELECT 1) TO ''{sealed}'' (use_tmp_file false)')
SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')
SELECT * FROM query_table('{secret}')
EXPLAIN ANALYZE COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
EXPLAIN (ANALYZE, FORMAT json) WITH a AS (COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)) SELECT 1
/* explain select 1 */ EXPLAIN ANALYZE COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
-- explain select 1 \n EXPLAIN ANALYZE COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
EXPORT DATABASE '{new}'
IMPORT DATABASE '{new}'
ATTACH '{new}' AS other
ATTACH '{secret}' AS other (READ_ONLY)
WITH a AS (INSERT INTO rows VALUES (1) RETURNING *) SELECT * FROM a
SELECT 1; COPY (SELECT 1) TO '{sealed}' (use_tmp_file false)
SELECT * FROM '{secret}'
SELECT * FROM '{secret}.csv'
SELECT * FROM '{folder}/*.csv'
FROM '{secret}'
DESCRIBE '{secret}'
SUMMARIZE SELECT * FROM read_text('{secret}')
SELECT * FROM rows POSITIONAL JOIN read_csv('{secret}')
SELECT (SELECT content FROM read_text('{secret}'))
SELECT * FROM read_csv('{secret}', columns = {{'a': 'VARCHAR'}}, header = false, auto_detect = false)
SELECT * FROM read_csv('{sealed}/../../{secret_name}')
SELECT * FROM read_text('{sealed}/../{secret_name}')
SELECT * FROM read_text('file://{secret}')
SELECT * FROM read_text('/proc/self/root{secret}')
SELECT * FROM read_text('/proc/self/environ')
SELECT * FROM read_parquet(['{sealed}', '{secret}'])
SELECT * FROM read_parquet('{sealed}', encryption_config = {{footer_key: '{secret}'}})
SELECT * FROM SECRET
SELECT * FROM environ
INSTALL httpfs
LOAD httpfs
LOAD '{secret}'
FORCE INSTALL httpfs FROM '{folder}'
SET allowed_paths = ['{secret}']
SET enable_external_access = true
SET lock_configuration = false
SET temp_directory = '{folder}'
SET log_query_path = '{new}'
SET profile_output = '{new}'
SET GLOBAL home_directory = '{folder}'
RESET enable_external_access
PRAGMA enable_profiling = 'json'
PRAGMA profile_output = '{new}'
PRAGMA log_query_path = '{new}'
PRAGMA import_database('{folder}')
CALL enable_logging('QueryLog', storage = 'file', storage_path = '{folder}')
CALL pragma_version()
CHECKPOINT
VACUUM
USE memory
CREATE TABLE t AS SELECT 1
CREATE TABLE t AS SELECT * FROM read_text('{secret}')
CREATE VIEW v AS SELECT 1
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
CREATE PERSISTENT SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
CREATE MACRO m() AS 1
CREATE TYPE t AS ENUM ('a')
CREATE SCHEMA s
DROP VIEW rows
ALTER TABLE rows RENAME TO other
INSERT INTO rows VALUES (1)
UPDATE rows SET n = 2
DELETE FROM rows
TRUNCATE rows
MERGE INTO rows USING rows r ON true WHEN MATCHED THEN DELETE
PREPARE p AS COPY (SELECT 1) TO '{sealed}'
EXECUTE p
DEALLOCATE p
BEGIN
COMMIT
COMMENT ON VIEW rows IS 'a'
COPY FROM DATABASE memory TO other
PIVOT rows ON n
SELECT getenv('SANDBOX_SECRET')
""".strip().splitlines()
KINDS = [kind.replace("\\n", "\n") for kind in KINDS]


def calls() -> list[str]:
    """A statement for each of DuckDB's own functions that takes a text, with a path for every text."""
    made = []
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT DISTINCT function_name, function_type, parameter_types::VARCHAR[] FROM duckdb_functions() "
            "WHERE list_has_any(parameter_types::VARCHAR[], ['VARCHAR', 'VARCHAR[]']) "
            "OR function_type IN ('table', 'table_macro', 'pragma') ORDER BY ALL"
        ).fetchall()
    for name, kind, types in found:
        if not name.replace("_", "").isalnum():
            continue  # an operator
        given = ", ".join(ARGUMENTS.get(of, "NULL") for of in types)
        if kind in ("table", "table_macro"):
            made += [f"SELECT * FROM {name}({given})", f"EXPLAIN ANALYZE SELECT * FROM {name}({given})"]
        elif kind == "pragma":
            made += [f"PRAGMA {name}({given})", f"CALL {name}({given})"]
        else:
            made.append(f'SELECT "{name}"({given})')
    return made


ARGUMENTS = {
    "VARCHAR": "'{path}'", "VARCHAR[]": "['{path}']", "ANY": "'{path}'", "ANY[]": "['{path}']", "JSON": "'{path}'",
    "BIGINT": "1", "INTEGER": "1", "BOOLEAN": "true", "DOUBLE": "1",
}  # fmt: skip


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A secret, and the one file that may be read; commands work in it."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n")
    (tmp_path / "topics").mkdir()
    parquet.write_table(pa.table({"n": [1, 2]}), tmp_path / "topics" / "sealed.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDBOX_SECRET", SECRET)
    return tmp_path


@pytest.mark.thorough
def test_no_statement_reads_or_writes_another_file(folder):
    sealed = folder / "topics" / "sealed.parquet"
    names = {
        "secret": folder / "secret", "sealed": sealed, "new": folder / "new", "folder": folder, "secret_name": "secret"
    }  # fmt: skip
    statements = [kind.format(**names) for kind in KINDS]
    statements += [call.replace("{path}", str(folder / "secret")) for call in calls()]
    assert len(statements) > 500
    before = contents(folder)
    told = []

    # A limit, so that a function that makes a row for each of its bytes ends.
    with SqlSandbox.open(QueryLimits(rows=1000)) as sandbox:
        sandbox.connection.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet('{sealed}')")
        sandbox.lock([str(sealed)])
        for statement in statements:
            try:
                answer = str(sandbox.answer(statement, []).to_pylist())
            except (duckdb.Error, MainstemError) as error:
                answer = str(error)
            # A path may come back, and the text of the statement; what stands in the file may not.
            if SECRET in answer:
                told.append(statement)
        assert sandbox.answer("SELECT n FROM rows", []).to_pylist() == [{"n": 1}, {"n": 2}]

    assert told == []
    assert contents(folder) == before


@pytest.mark.parametrize(
    "statement", [kind for kind in KINDS if not kind.startswith(("SELECT", "FROM", "DESC", "SUMM"))]
)
def test_a_statement_that_does_not_only_read_is_refused_in_three_parts(statement):
    with SqlSandbox.open(QueryLimits()) as sandbox:
        sandbox.connection.register("rows", pa.table({"n": [1]}))
        sandbox.lock()
        with pytest.raises((Invalid, duckdb.ParserException)) as refused:
            sandbox.answer(statement.format(secret="a", sealed="b", new="c", folder="d", secret_name="e"), [])
    if isinstance(refused.value, Invalid):
        assert refused.value.detail
        assert refused.value.hint


def test_ctrl_c_ends_a_query_that_would_run_for_days():
    with SqlSandbox.open(QueryLimits()) as sandbox:
        sandbox.lock()
        with ctrl_c_in_a_query(), pytest.raises(KeyboardInterrupt):
            sandbox.answer(ENDLESS, [])
    assert queries() == []


def test_a_query_ends_when_its_time_is_over():
    with SqlSandbox.open(QueryLimits(seconds=0.01)) as sandbox:
        sandbox.lock()
        with pytest.raises(Invalid, match="the query took longer than 10 milliseconds"):
            sandbox.answer(ENDLESS, [])
    assert queries() == []


def test_an_answer_may_have_so_many_rows_and_no_more():
    with SqlSandbox.open(QueryLimits(rows=5)) as sandbox:
        sandbox.lock()
        assert sandbox.answer("SELECT * FROM range(5)", []).num_rows == 5
        with pytest.raises(Invalid, match="the result has more than 5 rows"):
            sandbox.answer("SELECT * FROM range(6)", [])
        with pytest.raises(Invalid, match="the result has more than 5 rows"):
            sandbox.answer("SELECT * FROM range(1000000000000)", [])


def test_a_query_gets_half_of_the_memory_and_no_temporary_files():
    asked = "SELECT parse_formatted_bytes(current_setting('memory_limit')) AS memory, current_setting('temp_directory') AS temp"
    with duckdb.connect() as connection:
        [(usual, _)] = connection.execute(asked).fetchall()
    with SqlSandbox.open(QueryLimits()) as sandbox:
        sandbox.lock()
        [answer] = sandbox.answer(asked, []).to_pylist()
    # What DuckDB takes by itself is 80 % of the machine's memory; both are shown with one decimal.
    assert answer == {"memory": pytest.approx(usual / 0.8 / 2, rel=0.1), "temp": ""}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT n FROM rows", "FROM rows", "VALUES (1)", "WITH a AS (SELECT 1 AS n) SELECT * FROM a JOIN rows USING (n)",
        "DESCRIBE rows", "SHOW rows", "SHOW TABLES", "SUMMARIZE rows", "EXPLAIN SELECT n FROM rows",
        "EXPLAIN ANALYZE SELECT n FROM rows", "explain (format json) select n from rows", "EXPLAIN (SELECT 1)",
        "(SELECT 1) UNION (SELECT 2)", "SELECT n FROM rows; -- all", "PIVOT rows ON n IN (1, 2) USING count(*)",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t",
    ],
)  # fmt: skip
def test_what_only_reads_is_answered(statement):
    with SqlSandbox.open(QueryLimits()) as sandbox:
        sandbox.connection.register("rows", pa.table({"n": [1]}))
        sandbox.lock()
        assert sandbox.answer(statement, []).num_rows > 0


def test_a_name_with_a_dot_that_is_not_quoted_is_told_how(tmp_path):
    with mainstem.open(tmp_path / "home") as stem:
        stem.create_topic("shop.orders", schema="id INT")
        with pytest.raises(TopicNotFound) as refused:
            stem.query("SELECT * FROM shop.orders")
        assert (refused.value.summary, refused.value.hint) == (
            "the query names shop.orders without quotes",
            'Write: FROM "shop.orders"',
        )
        assert stem.query('SELECT * FROM "shop.orders"').num_rows == 0
        with pytest.raises(TopicNotFound) as refused:
            stem.query("SELECT * FROM shop.ordres")
        assert refused.value.summary == 'topic "shop.ordres" does not exist'
        assert "shop.orders" in refused.value.hint


def test_a_column_whose_name_cannot_stand_without_quotes_is_told_to_be_quoted(tmp_path):
    with mainstem.open(tmp_path / "home") as stem:
        stem.create_topic("requests", schema="at TIMESTAMP, status INT")
        with pytest.raises(Invalid) as refused:
            stem.query("SELECT at FROM requests")
        assert refused.value.hint == 'at is a reserved word of SQL: as a column it is quoted, "at".'
        assert stem.query('SELECT "at", status FROM requests').num_rows == 0
