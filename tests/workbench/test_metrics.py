"""The page of metrics: its text, its server, and the counting behind it."""

import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
import typer

from mainstem.errors import MainstemError, Unavailable
from mainstem.flows.flow_handle import FlowProgress
from mainstem.log.lag import Lag
from mainstem.workbench.cli.metrics_server import FIGURES, FlowFigures, MetricsServer, metrics_text, parse_address
from mainstem.workbench.cli.run_display import FlowCounts, FlowStatus, RunCounts
from tests.workbench.ran_flows import progress_topic

ANYWHERE = ("127.0.0.1", 0)


def asked(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_every_figure_has_its_help_and_kind_and_a_line_for_each_flow():
    progress = FlowProgress(batch=7, watermark="2026-01-01T00:00:00.000Z", state_rows=3, state_bytes=4096, batch_ms=250)
    counts = FlowCounts(rows_in=10, rows_out=8, rejected=1, late=1, too_late=3, batches=2, batch_ms=500)
    status = FlowStatus("revenue", "running", progress, counts, 5.0, Lag(records=4, seconds=1.5), 2)

    page = metrics_text([status.figures()])

    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    assert values == {
        f'mainstem_flow_{name}{{flow="revenue"}}': value
        for name, value in {
            "running": "1", "rows_in_total": "10", "rows_out_total": "8", "rejected_total": "1", "late_total": "1",
            "too_late_total": "3",
            "batches_total": "2", "batch_seconds_total": "0.5", "restarts_total": "2", "lag_records": "4",
            "lag_seconds": "1.5", "watermark_seconds": "1767225600.0", "state_rows": "3", "state_bytes": "4096",
            "last_batch": "7", "last_batch_seconds": "0.25",
        }.items()
    }  # fmt: skip
    assert page.count("# HELP ") == page.count("# TYPE ") == len(FIGURES)
    assert all(kind == ("counter" if name.endswith("_total") else "gauge") for name, kind, _ in FIGURES)


def test_what_is_not_known_yet_is_left_out():
    new = FlowStatus("revenue", "starting", FlowProgress(), FlowCounts(), 0.0, Lag(), 0)

    page = metrics_text([new.figures()])

    assert 'mainstem_flow_running{flow="revenue"} 0\n' in page
    assert "flow_watermark" not in page
    assert "flow_last_batch" not in page


def test_a_name_cannot_break_the_page():
    assert 'flow="a\\"b\\\\c\\nd"' in metrics_text([FlowFigures('a"b\\c\nd', {"lag_records": 1})])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_an_address_is_on_this_machine_unless_it_says_otherwise(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:٣"])
def test_what_is_no_address(text):
    with pytest.raises(typer.BadParameter):
        parse_address(text)


def test_the_server_serves_the_page_and_nothing_else():
    with MetricsServer(ANYWHERE, lambda: "up 1\n") as server:
        assert asked(server.url) == (200, "text/plain; version=0.0.4; charset=utf-8", "up 1\n")
        assert asked(server.url + "?x=1")[0] == 200
        assert asked(server.url.removesuffix("metrics"))[0] == 404


def test_what_cannot_be_told_now_is_a_status_of_its_own(capfd):
    def fail() -> str:
        raise MainstemError("the log is closed")

    with MetricsServer(ANYWHERE, fail) as server:
        assert asked(server.url)[::2] == (503, "the log is closed\n")
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken():
    with MetricsServer(ANYWHERE, str) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(Unavailable, match=f"metrics cannot be served on 127.0.0.1:{port}: Address already in use"):
            MetricsServer(("127.0.0.1", port), str)


# Counting


def batch(flow: str, epoch: int, rows: int) -> dict[str, object]:
    return {
        "flow": flow,
        "epoch": epoch,
        "rows_in": rows,
        "rows_out": rows - 1,
        "rejected": 1,
        "late": 0,
        "batch_ms": 100,
    }


def flows(**epochs: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(name=name, run=SimpleNamespace(epoch=epoch)) for name, epoch in epochs.items()]


def test_every_batch_of_our_own_runs_is_counted_once(stem):
    topic = progress_topic(stem)
    topic.append([batch("revenue", 4, 1000)])

    counts = RunCounts(stem)
    topic.append([batch("revenue", 5, 10), batch("elsewhere", 5, 99)])
    counts.look(flows(revenue=5))
    counts.look(flows(revenue=5))
    topic.append([batch("revenue", 6, 20), batch("revenue", 7, 5000)])
    counts.look(flows(revenue=6))

    found = counts.of("revenue")
    assert (found.rows_in, found.rows_out, found.rejected, found.batches, found.batch_ms) == (30, 28, 2, 2, 200)
    assert counts.restarts("revenue", 6) == 1
    assert counts.of("unknown") == FlowCounts()
    assert counts.rows_per_second("unknown") == 0
