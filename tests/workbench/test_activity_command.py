"""mainstem activity: what happened in a home, newest last."""

from contextlib import closing
from typing import ClassVar

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Fenced, FlowFailed, Unavailable
from mainstem.flows.flow_activity import FlowActivity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from tests.workbench.ran_flows import began, killed


class Query:
    """What `look` asks a query of Spark for."""

    status: ClassVar = {"message": "Processing new data"}


def test_activity_shows_what_happened_in_words_and_as_json(cli, stem, orders):
    orders.alter(keep="30 days")
    killed(stem, began(stem, "big_orders"))

    shown = cli("activity").out.splitlines()
    assert shown[0].split() == ["at", "of", "what", "in", "words", "who"]
    assert ["topic orders" in shown[2], "flow big_orders" in shown[3]] == [True, True]
    assert "killed" in shown[3]

    # Found once, however often somebody looks.
    found = cli("activity", "--json").json
    assert [(row["subject"], row["name"], row["what"], row["epoch"]) for row in found] == [
        ("topic", "orders", "altered", None),
        ("flow", "big_orders", "killed", 1),
    ]
    assert found[1]["detail"] == "Its process 1073741824 ended without stopping it."
    assert cli("activity", "--of", "orders", "--json").json == found[:1]
    assert cli("activity", "--since", "1 hour", "--json").json == found
    assert cli("activity", "--since", "2999-01-01T00:00:00Z").out == "nothing happened in that time\n"
    assert cli("activity", "--since", "1h").error[0] == 'mainstem.Invalid: --since "1h" has the unknown unit "h"'


def test_a_home_in_which_nothing_happened(cli, stem, orders):
    assert (cli("activity").out, cli("activity", "--json").json) == ("nothing happened in that time\n", [])
    assert stem.topics() == ["orders"]


def test_a_flow_notes_a_wait_once_and_few_rows_a_minute(tmp_path, clock):
    log = EmbeddedLog(tmp_path, clock=clock)
    activity, away = FlowActivity(log, "revenue"), Unavailable("no answer", detail="Port 5432.", hint="Start it.")
    activity.begun(FlowRun("revenue", 1), None)
    # Three attempts are one wait; each has an epoch of its own.
    for epoch in (1, 2, 3):
        activity.waits(FlowRun("revenue", epoch), away, 0)
        activity.begun(FlowRun("revenue", epoch + 1), None)
    activity.look(FlowRun("revenue", 4), 0, Query())
    activity.look(FlowRun("revenue", 4), 1, Query())
    # Waits that follow at once have no rows; the next one has their number.
    for batches in range(1, 30):
        activity.waits(FlowRun("revenue", 4), away, batches)
        activity.look(FlowRun("revenue", 4), batches + 1, Query())
    clock.advance("1 minute")
    activity.waits(FlowRun("revenue", 4), away, 30)
    activity.begun(FlowRun("revenue", 5, 2), 17)
    activity.ended(FlowRun("revenue", 5, 2), 31, 18)
    error = FlowFailed("the flow stopped", detail="Facts.", hint="Way out.")
    activity.failed(None, error)
    error.__cause__ = Fenced("newer run")
    activity.failed(FlowRun("revenue", 6, 2), error)

    rows = [
        row for batch in log.open_topic("mainstem.activity").moment().read(0, 0, 100, None) for row in batch.to_pylist()
    ]
    assert [(row["what"], row["version"], row["epoch"], row["text"]) for row in rows] == [
        ("begun", 1, 1, 'flow "revenue" began with version 1, at its first batch'),
        ("waiting", 1, 1, 'flow "revenue" waits and retries: no answer'),
        ("restarted", 1, 4, 'flow "revenue" works again'),
        ("waiting", 1, 4, 'flow "revenue" waits and retries, and waited 29 times since the last such row: no answer'),
        ("begun", 2, 5, 'flow "revenue" continues with version 2, after batch 17'),
        ("restarted", 2, 5, 'flow "revenue" works again'),
        ("ended", 2, 5, 'flow "revenue" stopped after batch 18'),
        ("failed", None, None, "the flow stopped"),
        ("fenced", 2, 6, "the flow stopped"),
    ]
    assert [(row["detail"], row["hint"]) for row in rows if row["what"] in ("waiting", "failed")] == [
        ("Port 5432.", "Start it."), ("Port 5432.", "Start it."), ("Facts.", "Way out."),
    ]  # fmt: skip
    log.close()


def test_a_version_that_is_put_to_use_is_noted(cli, stem):
    rows = pa.table({"store": ["Berlin"], "amount": [12]})
    run = FlowRun("revenue", epoch=1)
    with closing(stem.view("revenue", key="store")) as view:
        view.writer(run, rows.schema).writer.apply(rows, Batch(0, run))
        assert view.new_version() == 2

    cli("view", "versions", "revenue", "--use", "2")

    [row] = cli("activity", "--of", "revenue", "--json").json
    assert (row["subject"], row["what"], row["version"], row["text"]) == (
        "view", "version used", 2, 'view "revenue" shows version 2 now',
    )  # fmt: skip
