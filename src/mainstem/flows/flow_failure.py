"""What a flow died of: the root cause, out of the many lines in which Spark wraps it."""

from __future__ import annotations

import os
import re

from mainstem import errors
from mainstem.errors import BrokerUnavailable, FlowFailed, MainstemError, Unavailable
from mainstem.log_on_spark.shown_calls import CALLED_WITH

__all__ = ["flow_failed", "root_cause"]

# The last line of a Python traceback inside Spark's message: the class, its message, then our notes.
_RAISED = re.compile(r"^(?:\w+\.)*(?P<kind>[A-Z]\w+)(?:: (?P<message>.*))?$")
_JAVA = re.compile(r"(?:Caused by: |: )[\w.$]+(?:: .*)?$")
# The work is sound; only the process that was to do it is gone.
_WORKER = re.compile(r"Python worker failed to connect back|Python worker exited unexpectedly \(crashed\)")
# What the Java client of Kafka, in Spark's own connector, says of brokers that are away.
_BROKER = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|LeaderNotAvailable|NotLeaderOrFollower|NotEnoughReplicas"
    r"|NotEnoughReplicasAfterAppend|CoordinatorNotAvailable|BrokerNotAvailable)Exception(?:: (?P<said>[^\n]*))?"
)
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
# Not the user's own.
_OTHERS = re.compile(r"[/\\](?:pyspark|py4j|mainstem|site-packages)[/\\]")
_SPARK = re.compile(r"\[(?P<kind>[A-Z_.]+)\] (?P<message>.*)")


def root_cause(text: str) -> MainstemError | str:
    """The error that a Spark exception tells of: one of ours as it was raised, or the line that says it best."""
    lines = text.splitlines()
    if found := _WORKER.search(text):
        return Unavailable(
            "a Python worker of Spark did not start, or died",
            detail=f"Spark says: {found[0]}.",
            hint="The machine may be too busy, or short of memory. It is tried again.",
        )
    if found := _BROKER.search(text):
        return BrokerUnavailable(
            "no Kafka broker answers Spark's connector",
            detail=f"The client says: {(found['said'] or 'nothing').rstrip('.')}.",
            hint="Start the broker, or correct the address. It is tried again.",
        )
    for index in range(len(lines) - 1, -1, -1):
        found = _RAISED.match(lines[index].strip())
        ours = getattr(errors, found["kind"], None) if found else None
        if found and isinstance(ours, type) and issubclass(ours, MainstemError):
            notes = dict(
                line.strip().split(": ", 1)
                for line in lines[index + 1 : index + 3]
                if line.strip().startswith(("Detail: ", "Hint: "))
            )
            return ours(found["message"] or "", detail=notes.get("Detail", ""), hint=notes.get("Hint", ""))
    # A traceback of somebody else's error ends with the line that says what it is.
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index].strip()
        found = _RAISED.match(line)
        if found and found["kind"].endswith(("Error", "Exception", "Interrupt", "Exit")) and "py4j" not in line:
            return line + _line_of_program(lines[:index]) + _call(lines[index + 1 :])
    for line in lines:
        if found := _SPARK.search(line):
            return found["message"]
    # The innermost of Java's causes says what happened; the others, who was told of it.
    causes = [
        line.strip().removeprefix("Caused by: ").removeprefix(": ") for line in lines if _JAVA.match(line.strip())
    ]
    if causes:
        return causes[-1]
    return next((line.strip() for line in lines if line.strip()), "nothing was said")


def _line_of_program(lines: list[str]) -> str:
    """Where in the user's program it was: the last frame of the traceback that is not ours or Spark's."""
    for line in reversed(lines):
        if line.startswith("Traceback") or line.endswith("Traceback (most recent call last):"):
            return ""
        found = _FRAME.match(line.strip())
        if found and not _OTHERS.search(found["path"]):
            return f" ({os.path.basename(found['path'])}, line {found['line']}, in {found['function']})"
    return ""


def _call(lines: list[str]) -> str:
    """With which values a function of the user's failed, if that was noted (`shown_calls`)."""
    said = next((line.strip() for line in lines[:3] if line.strip().startswith(CALLED_WITH)), "")
    return f", called with ({said.removeprefix(CALLED_WITH)})" if said else ""


def flow_failed(
    flow: str, batch: int | None, cause: BaseException | str, offsets: str = "", *, refused: bool = False
) -> FlowFailed:
    """The error a user sees first. `refused`: it was not started, and with this program it never will be."""
    where = "stopped before its first batch" if batch is None else f"stopped at batch {batch}"
    found: MainstemError | BaseException | str = cause
    if isinstance(cause, BaseException) and not isinstance(cause, MainstemError):
        found = root_cause(str(cause)) if _from_spark(cause) else cause
    if isinstance(found, MainstemError):
        facts = " ".join(part for part in (f"{_named(found)}: {found.summary}.", found.detail) if part)
        hint = found.hint
    elif isinstance(found, BaseException):
        facts, hint = f"{_named(found)}: {str(found).splitlines()[0] if str(found) else 'no message'}.", ""
    else:
        facts, hint = found if found.endswith(".") else f"{found}.", ""
    advice = hint or "Mend the cause, then run the program again."
    resumes = "" if batch is None or refused else f" Rows are safe in the topic; the next run resumes at batch {batch}."
    error = FlowFailed(
        f'flow "{flow}" {"was not started" if refused else where}',
        detail=facts if refused else f"{facts} {offsets}".strip(),
        hint=f"{advice}{resumes}",
        flow=flow,
        batch=batch,
    )
    if isinstance(found, BaseException):
        error.__cause__ = found
    return error


def _named(error: BaseException) -> str:
    return type(error).__name__


def _from_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j"))
