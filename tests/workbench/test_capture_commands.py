"""mainstem capture ... with a real PostgreSQL: what each command does, says and refuses."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.capture.source import Health
from mainstem.processes import this_process
from mainstem.workbench.cli.capture_commands import capture_warnings
from mainstem.workbench.cli.completion_command import complete
from mainstem.workbench.cli.metrics_server import capture_metrics
from tests.capture.shop_database import ShopDatabase, shop_database
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer
from tests.waiting import wait_until
from tests.workbench.conftest import Cli


@pytest.fixture
def shop(place: Path, postgres: PostgresServer) -> Iterator[ShopDatabase]:
    """A database, and the program `shop.py` that captures it."""
    with shop_database(postgres) as made:
        (place / "shop.py").write_text(made.program())
        yield made


@contextmanager
def running(*options: str) -> Iterator["subprocess.Popen[str]"]:
    """`capture run` in a process of its own, once it has reported."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mainstem.workbench.cli.main", "capture", "run", "shop.py", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with process:
            wait_until(lambda: process.poll() is not None or _runs())
            yield process
            process.terminate()
    finally:
        process.kill()


def _runs() -> bool:
    status = StatusFile("shop", "shop").read()
    return status is not None and status.state == "running" and status.running


def status(**facts: object) -> CaptureStatus:
    """A capture that this process seems to run."""
    known = {
        "name": "shop", "source": "postgresql://reader@db:5432/shop", "topics": {"orders": "shop.orders"},
        "state": "running", "at": "2026-01-01T09:00:00+00:00", "process": this_process(),
    }  # fmt: skip
    return CaptureStatus(**{**known, **facts})  # type: ignore[arg-type]


# Setup


def test_the_sql_for_an_administrator_is_printed_without_a_server_and_without_a_home(
    place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "shop.py").write_text(
        "from mainstem import Capture\nfrom mainstem.capture import postgres\n"
        "def captures(stem):\n"
        '    yield Capture("shop", postgres("postgresql://reader:canary@127.0.0.1:1/shop", tables=["orders"]))\n'
    )
    monkeypatch.delenv("MAINSTEM_HOME")
    said = cli("capture", "setup", "shop.py", "--print")
    publication = (
        'CREATE PUBLICATION "mainstem_shop" FOR TABLE "public"."orders" WITH '
        "(publish = 'insert, update, delete, truncate', publish_via_partition_root = true);"
    )
    assert said.out.splitlines() == [
        "-- capture shop, postgresql://reader@127.0.0.1:1/shop",
        "-- In postgresql.conf: wal_level = logical (needs a restart)",
        publication,
        'ALTER ROLE "reader" REPLICATION;',
        'GRANT SELECT ON "public"."orders" TO "reader";',
    ]
    [found] = cli("capture", "setup", "shop.py", "shop", "--print", "--json").json
    assert found["sql"].startswith("-- In postgresql.conf")
    assert not (place / "data").exists()


def test_after_the_printed_sql_replication_and_select_suffice(
    shop: ShopDatabase, place: Path, cli: Cli, postgres: PostgresServer
) -> None:
    role = f"reader_{shop.slot}"
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        shop.address = postgres.address(shop.slot, user=role)
        (place / "shop.py").write_text(shop.program())
        refused = cli("capture", "setup", "shop.py")
        assert (refused.status, refused.out) == (1, "")
        assert f'ALTER ROLE "{role}" REPLICATION;' in refused.err
        shop.execute(cli("capture", "setup", "shop.py", "--print").out)
        assert cli("capture", "run", "shop.py", "--until-idle").status == 0
        assert [one["records"] for one in cli("topic", "list", "--json").json if one["topic"] == "shop.orders"] == [100]
        dropped = cli("capture", "drop", "shop.py", "shop", "--yes")
        assert (dropped.status, shop.slots(), shop.publications()) == (0, [], [shop.slot])
        assert f'its owner can remove it: DROP PUBLICATION "{shop.slot}";' in dropped.err
    finally:
        shop.execute(f"DROP OWNED BY {role}")
        shop.execute(f"DROP ROLE {role}")


def test_tables_of_another_schema_need_a_right_that_setup_checks_and_prints(
    shop: ShopDatabase, place: Path, cli: Cli, postgres: PostgresServer
) -> None:
    role = f"reader_{shop.slot}"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    shop.execute(
        'CREATE SCHEMA "Sales"; CREATE TABLE "Sales".returns (id int PRIMARY KEY); INSERT INTO "Sales".returns VALUES (1)'
    )
    shop.execute(f'GRANT SELECT ON "Sales".returns TO {role}')
    try:
        shop.address = postgres.address(shop.slot, user=role)
        (place / "shop.py").write_text(shop.program(tables='["Sales.returns"]'))
        refused = cli("capture", "setup", "shop.py")
        assert refused.error[0] == f'mainstem.Invalid: user "{role}" may not use schema "Sales"'
        assert refused.error[2] == f'Hint: As its owner: GRANT USAGE ON SCHEMA "Sales" TO "{role}";'
        printed = cli("capture", "setup", "shop.py", "--print").out
        assert f'GRANT USAGE ON SCHEMA "Sales" TO "{role}";\n' in printed
        shop.execute(printed)
        assert cli("capture", "run", "shop.py", "--until-idle").status == 0
        assert cli("query", 'SELECT id FROM "shop.Sales.returns"', "--json").json == {"id": 1}
    finally:
        shop.execute(f"DROP OWNED BY {role}")
        shop.execute(f"DROP ROLE {role}")


def test_a_table_is_added_to_the_publication_of_an_administrator(
    shop: ShopDatabase, place: Path, cli: Cli, postgres: PostgresServer
) -> None:
    role = f"reader_{shop.slot}"
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        shop.address = postgres.address(shop.slot, user=role)
        (place / "shop.py").write_text(shop.program(tables='["orders"]'))
        shop.execute(cli("capture", "setup", "shop.py", "--print").out)
        assert cli("capture", "run", "shop.py", "--until-idle").status == 0
        (place / "shop.py").write_text(shop.program())
        shop.execute(f"GRANT SELECT ON customers TO {role}")
        refused = cli("capture", "setup", "shop.py")
        statement = f'ALTER PUBLICATION "{shop.slot}" ADD TABLE "public"."customers";'
        assert refused.error[0] == f'mainstem.Invalid: publication "{shop.slot}" lacks table "customers"'
        assert refused.error[2] == f"Hint: As its owner: {statement}"
        shop.execute(statement)
        assert cli("capture", "run", "shop.py", "--until-idle").status == 0
        assert cli("query", 'SELECT count(*) AS n FROM "shop.customers"', "--json").json == {"n": 10}
        # One that is published for nobody is not in the way.
        (place / "shop.py").write_text(shop.program(tables='["customers"]'))
        shop.execute("UPDATE orders SET amount = 0")
        shop.execute("DELETE FROM customers WHERE id = 1")
        assert cli("capture", "run", "shop.py", "--until-idle").status == 0
        assert cli("query", 'SELECT count(*) AS n FROM "shop.customers"', "--json").json == {"n": 9}
    finally:
        shop.execute(f"DROP OWNED BY {role}")
        shop.execute(f"DROP ROLE {role}")


def test_setup_makes_publication_slot_and_topics_and_can_be_repeated(shop: ShopDatabase, cli: Cli) -> None:
    for _ in range(2):
        [made] = cli("capture", "setup", "shop.py", "--json").json
        assert (made["capture"], made["slot"], made["outcome"]) == ("shop", shop.slot, "set up")
        assert [(it["table"], it["topic"], it["key"]) for it in made["tables"]] == [
            ("customers", "shop.customers", ["id"]),
            ("orders", "shop.orders", ["id"]),
        ]
        assert (shop.slots(), shop.publications()) == ([shop.slot], [shop.slot])
    said = cli("capture", "setup", "shop.py")
    assert re.search(r"^orders +shop\.orders +id +4$", said.out, re.MULTILINE)
    assert "run it: mainstem capture run shop.py" in said.err
    assert [(it["capture"], it["state"]) for it in cli("capture", "list", "--json").json] == [("shop", "set up")]


def test_setup_that_fails_leaves_no_slot(shop: ShopDatabase, place: Path, cli: Cli) -> None:
    shop.execute("CREATE TABLE keyless (n int)")
    (place / "shop.py").write_text(shop.program(tables='["orders", "keyless"]'))
    assert cli("capture", "setup", "shop.py").error[0] == 'mainstem.Invalid: table "keyless" has no key'
    assert (shop.slots(), shop.publications()) == ([], [])


def test_a_slot_that_another_home_made_is_not_taken(
    shop: ShopDatabase, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("capture", "setup", "shop.py").status == 0
    monkeypatch.setenv("MAINSTEM_HOME", "second")
    said = f'mainstem.Conflict: the replication slot "{shop.slot}" is of another home, or of an earlier capture'
    for command in (["setup", "shop.py"], ["run", "shop.py", "--until-idle"], ["run", "shop.py"]):
        refused = cli("capture", *command)
        assert (refused.status, said in refused.err) == (1, True)
    assert "mainstem capture drop PROGRAM.py shop --yes" in refused.err
    # The first one has lost nothing.
    monkeypatch.setenv("MAINSTEM_HOME", "shop")
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    shop.execute("DELETE FROM orders WHERE id < 11")
    monkeypatch.setenv("MAINSTEM_HOME", "second")
    assert said in cli("capture", "run", "shop.py", "--until-idle").err
    monkeypatch.setenv("MAINSTEM_HOME", "shop")
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    assert cli("query", 'SELECT count(*) AS n FROM "shop.orders"', "--json").json == {"n": 90}
    # Dropped from elsewhere with a word only.
    monkeypatch.setenv("MAINSTEM_HOME", "second")
    dropped = cli("capture", "drop", "shop.py", "shop", "--yes")
    assert (dropped.status, shop.slots()) == (0, [])
    assert f'Warning: The replication slot "{shop.slot}" was not made by this home' in dropped.err
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0


# Running


def test_a_run_until_idle_captures_what_was_there_and_what_changed(shop: ShopDatabase, cli: Cli) -> None:
    first = cli("capture", "run", "shop.py", "--until-idle")
    assert (first.status, first.err) == (0, "")
    assert re.search(r"^shop +stopped +0 +[0-9A-F]+/[0-9A-F]+$", first.out, re.MULTILINE)
    shop.execute("INSERT INTO orders SELECT i, 1, 2 FROM generate_series(1001, 1005) i")
    shop.execute("DELETE FROM orders WHERE id = 1")
    lines = cli("capture", "run", "shop.py", "shop", "--until-idle", "--json").lines
    assert {"capture", "state", "position", "changes", "held_bytes", "left_bytes", "alarm", "snapshot", "paused", "error",
            "reported_at"} == set(lines[-1])  # fmt: skip
    assert (lines[-1]["state"], lines[-1]["changes"]) == ("stopped", 6)
    assert cli("query", 'SELECT count(*) AS n FROM "shop.orders"', "--format", "json").lines == [{"n": 104}]


def test_a_run_needs_no_spark(shop: ShopDatabase) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from mainstem.workbench.cli.main import run; sys.exit(run(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-c", program, "capture", "run", "shop.py", "--until-idle"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_running_capture_is_listed_described_asked_and_stopped(shop: ShopDatabase, cli: Cli) -> None:
    with running("--metrics", "127.0.0.1:0") as process:
        shop.execute("INSERT INTO orders VALUES (5000, 1, 2)")
        wait_until(lambda: cli("capture", "describe", "shop", "--json").json["changes"] == 1)
        [listed], described = cli("capture", "list", "--json").json, cli("capture", "describe", "shop", "--json").json
        assert set(listed) == set(described)
        assert (listed["state"], listed["pid"], listed["alarm"]) == ("running", process.pid, False)
        assert listed["held_bytes"] > 0
        assert listed["tables"][1]["columns"] == {
            "id": "BIGINT", "customer": "INT", "amount": "DECIMAL(10, 2)", "placed_at": "TIMESTAMP"
        }  # fmt: skip
        shown = cli("capture", "describe", "shop").out
        assert f"running, process {process.pid}" in shown
        assert "without a limit" in shown

        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics at ").strip()
        page = urllib.request.urlopen(url, timeout=60).read().decode()
        assert 'mainstem_capture_running{capture="shop"} 1' in page
        assert 'mainstem_capture_changes_total{capture="shop"} 1' in page

        refused = cli("capture", "drop", "shop.py", "shop", "--yes")
        assert refused.error[0] == 'mainstem.Conflict: capture "shop" is running'
        assert cli("capture", "snapshot", "shop", "--table", "orders").out.startswith(
            "requested a snapshot of orders; "
        )
        wait_until(lambda: cli("topic", "describe", "shop.orders", "--json").json["records"] >= 201)

        stopped = cli("capture", "stop", "shop", "--json").json
        assert [(it["capture"], it["outcome"]) for it in stopped] == [("shop", "stopped")]
        assert process.wait(60) == 0
    assert cli("capture", "stop", "shop").out == "capture shop does not run\n"
    assert shop.slots() == [shop.slot]


def test_a_capture_that_fails_ends_the_run_with_its_cause(shop: ShopDatabase, place: Path, cli: Cli) -> None:
    shop.execute("CREATE TABLE keyless (n int)")
    (place / "shop.py").write_text(shop.program(tables='["keyless"]'))
    said = cli("capture", "run", "shop.py")
    assert said.status == 1
    assert said.err.splitlines()[0] == 'mainstem.Invalid: table "keyless" has no key'
    [listed] = cli("capture", "list", "--json").json
    assert (listed["state"], listed["error"]) == ("failed", 'table "keyless" has no key')
    assert "keyless" in cli("doctor").out


def test_commands_never_say_the_password(shop: ShopDatabase, cli: Cli) -> None:
    said = [
        cli("capture", "setup", "shop.py"),
        cli("capture", "setup", "shop.py", "--print"),
        cli("capture", "run", "shop.py", "--until-idle", "--json"),
        cli("capture", "list", "--program", "shop.py"),
        cli("capture", "describe", "shop", "--json"),
        cli("capture", "drop", "shop.py", "shop", "--yes"),
    ]
    for one in said:
        assert one.status == 0, one
        assert PASSWORD not in one.out + one.err
        assert QUOTED_PASSWORD not in one.out + one.err


def test_the_server_is_asked_for_a_capture_that_does_not_run(shop: ShopDatabase, cli: Cli) -> None:
    cli("capture", "run", "shop.py", "--until-idle")
    [before] = cli("capture", "list", "--json").json
    [asked] = cli("capture", "list", "--program", "shop.py", "--json").json
    assert before["held_bytes"] is None
    assert asked["held_bytes"] is not None
    assert {**before, "held_bytes": 0, "reported_at": ""} == {**asked, "held_bytes": 0, "reported_at": ""}


# The end


def test_drop_removes_everything_but_the_topics_and_the_next_run_begins_anew(shop: ShopDatabase, cli: Cli) -> None:
    cli("capture", "run", "shop.py", "--until-idle")
    shop.execute("DELETE FROM orders WHERE id <= 10")
    refused = cli("capture", "drop", "shop.py", "shop")
    assert refused.status == 2
    assert "needs a confirmation" in refused.err
    assert cli("capture", "drop", "shop.py", "shop", "--yes").out == "dropped capture shop\n"
    assert (shop.slots(), shop.publications()) == ([], [])
    assert cli("capture", "list").out == "no captures yet\n"
    known = [it["topic"] for it in cli("topic", "list", "--json").json]
    assert known == ["mainstem.activity", "shop.customers", "shop.orders"]

    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    assert cli("query", 'SELECT count(*) AS n FROM "shop.orders"', "--format", "json").lines == [{"n": 90}]
    dropped = cli("capture", "drop", "shop.py", "shop", "--topics", "--yes", "--json").json
    assert dropped == {"capture": "shop", "topics": ["shop.customers", "shop.orders"], "outcome": "dropped"}
    assert [it["topic"] for it in cli("topic", "list", "--json").json] == ["mainstem.activity"]


# Requests, and what needs no server


@pytest.fixture
def known(stem) -> StatusFile:
    """A capture that ran."""
    files = StatusFile(stem.home, "shop")
    files.write(status(state="stopped", position="0/1"))
    return files


def taken(files: StatusFile) -> list[dict[str, Any]]:
    return list(files.requests().values())


def test_requests_wait_for_the_next_run(known: StatusFile, cli: Cli) -> None:
    where = "placed_at > now() - interval '1 day'"
    said = cli("capture", "snapshot", "shop", "--table", "orders", "--where", where)
    assert said.out == "requested a snapshot of orders; the next run follows it, and checks the condition\n"
    assert cli("capture", "snapshot", "shop", "--pause", "--json").json == {
        "capture": "shop", "request": "pause", "running": False, "outcome": "requested"
    }  # fmt: skip
    cli("capture", "snapshot", "shop", "--resume")
    cli("capture", "snapshot", "shop")
    assert taken(known) == [
        {"kind": "snapshot", "tables": ["orders"], "where": where},
        {"kind": "pause"},
        {"kind": "resume"},
        {"kind": "snapshot", "tables": ["orders"], "where": None},
    ]


def test_requests_are_checked(known: StatusFile, cli: Cli) -> None:
    first, detail, hint = cli("capture", "snapshot", "shop", "--table", "ordres").error
    assert first == 'mainstem.Invalid: capture "shop" has no table "ordres"'
    assert (detail, hint) == ("Detail: Its tables are: orders.", 'Hint: Did you mean "orders"?')
    for wrong in (["--pause", "--resume"], ["--pause", "--table", "orders"], ["--where", "id < 3"]):
        assert cli("capture", "snapshot", "shop", *wrong).status == 2
    for command in (["describe"], ["stop"], ["snapshot"]):
        assert cli("capture", *command, "shp").error[2] == 'Hint: Did you mean "shop"?'
    assert taken(known) == []


def test_a_snapshot_shows_its_progress_and_the_time_left(known: StatusFile, cli: Cli) -> None:
    progress = {
        "orders": {"rows": 20_000, "of": 100_000, "reason": "initial", "seconds_left": 40.0},
        "items": {"rows": 0, "of": 50_000, "reason": "initial", "seconds_left": 25.0},
    }
    known.write(status(snapshot=progress, paused=True))
    described = cli("capture", "describe", "shop")
    assert re.search(r"^orders +20,000 +100,000 +40 seconds +initial$", described.out, re.MULTILINE)
    assert described.err == "paused; to resume: mainstem capture snapshot shop --resume\n"
    found = cli("capture", "describe", "shop", "--json").json
    assert found["seconds_left"] == 65.0
    assert found["snapshot"][0] == {"table": "orders", **progress["orders"]}
    assert "snapshot paused" in cli("capture", "list").out


def test_an_alarm_is_shown_and_measured_when_more_than_half_is_held(known: StatusFile, cli: Cli) -> None:
    from mainstem import Capture
    from mainstem.capture import postgres

    capture = Capture("shop", postgres("postgresql://reader@db/shop", tables=["orders"]))

    def reported(held: int, left: int | None) -> CaptureStatus:
        return CaptureStatus.of(capture, "running", "0/1", 0, Health(held, left, "0/1"), {}, "", paused=False, now=0)

    assert [reported(*one).alarm for one in ((50, 50), (51, 49), (51, None), (90, -10))] == [False, True, False, True]
    alarmed = reported(48 << 20, 16 << 20)
    known.write(alarmed)
    listed = cli("capture", "list")
    assert "ALARM" in listed.out
    assert listed.err == (
        "Warning: capture shop: the server holds 48 MiB of its WAL, and may hold 16 MiB more; beyond that, changes are lost\n"
    )
    assert cli("capture", "list", "--json").json[0]["alarm"] is True
    page = capture_metrics([alarmed])
    assert 'mainstem_capture_alarm{capture="shop"} 1\n' in page
    assert 'mainstem_capture_left_bytes{capture="shop"} 16777216\n' in page
    [finding] = [it for it in cli("doctor", "--json").json["findings"] if it["subject"] == "captures"]
    assert finding["state"] == "look"


def test_a_killed_capture_is_said_to_be_killed(known: StatusFile, cli: Cli) -> None:
    known.write(status(process={**this_process(), "started": 1}))
    [listed] = cli("capture", "list", "--json").json
    assert (listed["state"], listed["pid"]) == ("killed", None)


def test_names_of_captures_are_completed(known: StatusFile) -> None:
    assert [word for word, _ in complete(["capture", "describe", ""])] == ["shop"]
    assert [word for word, _ in complete(["capture", "drop", "shop.py", ""])] == ["shop"]
    assert [word for word, _ in complete(["capture", "stop", "shop", ""])] == ["shop"]


def test_the_same_warning_is_said_once_a_minute() -> None:
    import logging

    said: list[str] = []
    with capture_warnings(said.append):
        for _ in range(3):
            logging.getLogger("mainstem.capture").warning("it waits")
    assert said == ["Warning: it waits"]


def test_a_program_without_captures_is_told_how_to_write_them(place: Path, cli: Cli) -> None:
    (place / "shop.py").write_text("def flows(stem):\n    return []\n")
    first, detail, hint = cli("capture", "run", "shop.py").error
    assert first == 'mainstem.Invalid: "shop.py" has no function `captures`'
    assert (detail, "def captures(stem): yield Capture(" in hint) == ("Detail: It defines: flows.", True)


def test_an_unknown_capture_of_a_program_is_refused(place: Path, cli: Cli) -> None:
    (place / "shop.py").write_text(
        "from mainstem import Capture\nfrom mainstem.capture import postgres\n"
        'def captures(stem):\n    return Capture("shop", postgres("postgresql://db/shop", tables=["orders"]))\n'
    )
    assert cli("capture", "run", "shop.py", "shp").error[0] == 'mainstem.NotFound: the program has no capture "shp"'


def test_the_secret_of_masked_columns_is_copied_and_verified(known: StatusFile, stem, place: Path, cli: Cli) -> None:
    folder = place / "shop" / "captures" / "shop"
    (folder / "mask_secret").write_text("0" * 64)
    (folder / "rows.sqlite").write_text("derived")
    known.request("pause")
    assert cli("home", "copy", "copied").status == 0
    copied = [
        str(path.relative_to(place / "copied")) for path in (place / "copied" / "captures").rglob("*") if path.is_file()
    ]
    assert copied == ["captures/shop/mask_secret"]
    (folder / "mask_secret").write_text("0" * 60)
    verified = cli("home", "verify")
    assert verified.status == 1
    assert "capture shop: it is not a secret of 64 hexadecimal digits" in verified.out


# Comparing


def test_check_names_what_differs_and_repairs_it(shop: ShopDatabase, stem, cli: Cli) -> None:
    never = cli("capture", "check", "shop.py")
    assert (never.status, never.error[0]) == (1, 'mainstem.NotFound: capture "shop" has not run in this home')
    cli("capture", "run", "shop.py", "--until-idle")
    assert cli("capture", "check", "shop.py").out.splitlines() == [
        "shop customers: 10 rows in 1 chunk, equal",
        "shop orders: 100 rows in 1 chunk, equal",
    ]
    stem.topic("shop.orders").delete([{"id": 7}])
    found = cli("capture", "check", "shop.py", "shop", "--table", "orders", "--json")
    said = cli("capture", "check", "shop.py", "--repair")
    after = cli("capture", "check", "shop.py", "--json")
    wrong = cli("capture", "check", "shop.py", "--table", "ordrs")

    assert found.status == 1
    [[table]] = [one["tables"] for one in found.json]
    assert (table["table"], table["rows"], table["repaired"]) == ("orders", 100, 0)
    assert table["differences"] == [{"key": {"id": 7}, "kind": "missing in topic", "columns": []}]
    assert said.status == 0
    assert said.out.splitlines()[1:] == [
        "shop orders: 100 rows in 1 chunk, 1 row differs, 1 repaired",
        '  {"id": 7} missing in topic',
    ]
    assert (after.status, [one["equal"] for one in after.json]) == (0, [True])
    assert wrong.error[0] == 'mainstem.Invalid: no capture has a table "ordrs"'


@pytest.mark.parametrize("column", ["amount", "id"])
def test_what_the_hint_of_a_renamed_column_advises_works(
    shop: ShopDatabase, place: Path, cli: Cli, column: str
) -> None:
    """Also for a column of the key, of which changes from before cannot be assigned to rows."""
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    shop.execute("UPDATE orders SET customer = 1 WHERE id < 5")
    shop.execute(f"ALTER TABLE orders RENAME {column} TO other")
    shop.execute("INSERT INTO orders VALUES (1000, 1, 5)")
    refused = cli("capture", "run", "shop.py", "--until-idle").err
    assert f'mainstem.Invalid: column "{column}" of table "orders" was renamed to "other"' in refused
    assert 'CapturedTable("orders", into=...)' in refused
    assert ("mainstem capture drop" in refused) == (column == "id")

    (place / "shop.py").write_text(shop.program(tables='["customers", CapturedTable("orders", into="orders_v2")]'))
    again = cli("capture", "run", "shop.py", "--until-idle")
    if column == "id":
        assert 'mainstem.Invalid: changes of table "orders" lack its key' in again.err
        assert "mainstem capture drop PROGRAM.py shop" in again.err
        assert cli("capture", "drop", "shop.py", "shop", "--yes").status == 0
        again = cli("capture", "run", "shop.py", "--until-idle")
    assert (again.status, again.err) == (0, "")
    key = "other" if column == "id" else "id"
    assert cli("query", f'SELECT count(DISTINCT {key}) AS n FROM "orders_v2"', "--json").json == {"n": 101}
    assert cli("capture", "check", "shop.py").status == 0


def test_a_condition_is_checked_by_the_source_of_the_program(shop: ShopDatabase, cli: Cli) -> None:
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    snapshot = ["capture", "snapshot", "shop", "--table", "orders", "--program", "shop.py", "--where"]
    first, detail, _ = cli(*snapshot, "idd < 100").error
    assert first == 'mainstem.Invalid: table "orders" cannot be read where idd < 100'
    assert 'column "idd" does not exist' in detail
    assert StatusFile("shop", "shop").requests() == {}
    assert cli(*snapshot, "id < 100").out == "requested a snapshot of orders; the next run follows it\n"


def test_the_new_name_of_a_renamed_table_is_in_the_hint(shop: ShopDatabase, cli: Cli) -> None:
    assert cli("capture", "run", "shop.py", "--until-idle").status == 0
    shop.execute("ALTER TABLE orders RENAME TO purchases")
    first, _, hint = cli("capture", "setup", "shop.py").error
    assert first == 'mainstem.Invalid: table "orders" does not exist'
    assert 'Was it renamed to "purchases", which is published?' in hint
