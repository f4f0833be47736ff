"""How far a flow had read its sources, from the reports on its batches."""

from mainstem.flows.why.batch_reports import UNKNOWN, BatchReport, BatchReports
from mainstem.log.watermark import NO_TIME


def report(batch: int, first: int, stop: int) -> BatchReport:
    return BatchReport(batch, {"orders": {0: (first, stop)}}, NO_TIME)


APPLIED = {"orders": {0: 9}}


def test_a_flow_begins_where_its_first_batch_did() -> None:
    assert BatchReports([report(0, 3, 5), report(1, 5, 9)]).spans(None, APPLIED) == {"orders": {0: (3, 9)}}
    assert BatchReports([report(0, 3, 5), report(1, 5, 9)]).spans(0, APPLIED) == {"orders": {0: (3, 5)}}


def test_a_start_that_no_report_has_is_that_of_the_lineage() -> None:
    for reports in ([report(0, UNKNOWN, 5)], [report(7, 5, 9)], []):
        assert BatchReports(reports, {"orders": {"0": 4}}).spans(None, APPLIED) == {"orders": {0: (4, 9)}}
        assert BatchReports(reports, {"orders": {}}).spans(None, APPLIED) == {"orders": {0: (0, 9)}}
        assert BatchReports(reports).spans(None, APPLIED) == {"orders": {0: (UNKNOWN, 9)}}


def test_the_offsets_of_a_batch_have_no_first_one_that_is_not_known() -> None:
    assert BatchReports([report(0, UNKNOWN, 5)], {"orders": {"0": 4}}).ranges(0) == {"orders": {0: (4, 5)}}
    assert BatchReports([report(0, UNKNOWN, 5)]).ranges(0) == {"orders": {}}
