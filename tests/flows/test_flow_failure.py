"""What a flow died of, out of what Spark says."""

import pytest

from mainstem.errors import BrokerUnavailable, Conflict, Fenced, FlowFailed, Unavailable
from mainstem.flows.runner import flow_failed, root_cause

OURS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "topic_stream_reader.py", line 7, in latestOffset
mainstem.errors.Fenced: this run of flow "copy" is fenced: a newer run has started
Detail: This run has epoch 1, the flow is at epoch 2.
Hint: Only one run of a flow may write.
\tat org.apache.spark.sql.Errors.python(Errors.scala:1)
"""
THEIRS = """An error occurred while calling o1.getResult.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Thing.run(Thing.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "shop.py", line 3, in price
ZeroDivisionError: division by zero
\tat org.apache.spark.Thing.run(Thing.scala:2)
"""
WORKER = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:1)
"""
JAVA = """An error occurred while calling o1.start.
: org.apache.spark.SparkException: no start
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.Files.write(Files.java:1)
"""


BROKER = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure
\tat org.apache.spark.Thing.run(Thing.scala:1)
Caused by: org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s) for alarms-0: 120000 ms has passed
\tat org.apache.spark.Thing.run(Thing.scala:2)
"""


def test_a_broker_that_is_away_is_waited_for():
    found = root_cause(BROKER)
    assert isinstance(found, BrokerUnavailable)
    assert found.detail == "The client says: Expiring 3 record(s) for alarms-0: 120000 ms has passed."
    # What waiting does not mend is another thing.
    assert isinstance(root_cause(BROKER.replace("TimeoutException", "RecordTooLargeException")), str)


def test_a_file_that_is_away_is_waited_for():
    found = root_cause(
        "Job aborted\nCaused by: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while "
        "reading file file:///data/all%20stores.csv. File does not exist. It is possible the underlying files have been updated."
    )
    assert isinstance(found, Unavailable)
    assert found.parts() == [
        'the flow reads "/data/all stores.csv", which does not exist',
        "Detail: It was there when the flow started: it was removed, or is being written again.",
        "Hint: Write the file again. The flow retries until it is there.",
    ]


def test_one_of_our_errors_is_found_again():
    found = root_cause(OURS)
    assert isinstance(found, Fenced)
    assert (found.summary, found.detail) == (
        'this run of flow "copy" is fenced: a newer run has started',
        "This run has epoch 1, the flow is at epoch 2.",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THEIRS, "ZeroDivisionError: division by zero (shop.py, line 3, in price)"),
        (
            THEIRS.replace("by zero\n", "by zero\nCalled with: 'o-7', 0\n"),
            "ZeroDivisionError: division by zero (shop.py, line 3, in price), called with ('o-7', 0)",
        ),
        (JAVA, "java.io.IOException: No space left on device"),
        ("[UNRESOLVED] something is wrong", "something is wrong"),
        ("nobody knows", "nobody knows"),
        ("", "nothing was said"),
    ],
)
def test_the_line_that_says_it_best_is_found(text, expected):
    assert root_cause(text) == expected


def test_a_worker_that_did_not_start_is_worth_another_try():
    failed = flow_failed("copy", 7, root_cause(WORKER))
    assert isinstance(failed.__cause__, Unavailable)
    assert "Python worker failed to connect back" in failed.detail


def test_a_failure_says_where_the_next_run_resumes():
    failed = flow_failed("copy", 7, ValueError("no such price\nsecond line"), "The batch held orders[0] up to 9.")
    assert isinstance(failed, FlowFailed)
    assert failed.summary == 'flow "copy" stopped at batch 7'
    assert failed.detail == "ValueError: no such price. The batch held orders[0] up to 9."
    assert failed.hint.endswith("the next run resumes at batch 7.")
    assert flow_failed("copy", None, "no Java").summary == 'flow "copy" stopped before its first batch'
    refused = flow_failed(
        "copy", 7, Conflict("the flow has changed", hint="Rebuild it."), "The batch held ...", refused=True
    )
    assert refused.parts() == [
        'flow "copy" was not started', "Detail: Conflict: the flow has changed.", "Hint: Rebuild it."
    ]  # fmt: skip
