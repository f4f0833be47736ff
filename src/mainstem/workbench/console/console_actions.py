"""What a visitor may do through the console: stop a flow, append a row, restore or drop rejected messages, kill a run (for the
demo).

Each action must be permitted by `--actions` when the console is started, and by a token with the scope `act`. A request without
`confirm` only says what it would do, and the command that does the same. What was done is a row of `mainstem.activity`.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mainstem.clock import Clock
from mainstem.errors import Conflict, Invalid, MainstemError, Unavailable
from mainstem.log.activity import note_activity
from mainstem.log.queues.queue import Queue
from mainstem.log.rows.plain_values import NotAValue
from mainstem.log.rows.rows import check_rows
from mainstem.names import check_own_name
from mainstem.processes import end_process
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process
from mainstem.stem import Mainstem
from mainstem.workbench.cli.flow_commands import stop_flow
from mainstem.workbench.cli.flow_facts import FlowFacts, flow_facts
from mainstem.workbench.cli.row_files import JsonLines
from mainstem.workbench.cli.terminal_table import show_count
from mainstem.workbench.console.console_answer import JsonResponse, error_body, read_json
from mainstem.workbench.console.home_map import OWN_PREFIX

__all__ = ["ACTIONS", "ConsoleActions"]

ACTIONS = ("stop", "restore", "drop", "append", "kill")
STOP_SECONDS = 30
POSITIONS_MAX = 1_000
# A flow with rows to read pauses for 200 ms at most between two batches.
SOON_US = 1_000_000
LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Planned:
    """An action that can be done now: what it will do, the command that does the same, and what was done afterwards."""

    name: str
    will: str
    command: str
    do: Callable[[], str]


class ConsoleActions:
    """The actions that this console permits."""

    def __init__(self, stem: Mainstem, permitted: frozenset[str]) -> None:
        self._stem = stem
        self.permitted = permitted
        self._plans: Mapping[str, Callable[[dict[str, Any]], Planned]] = {
            "stop": self._stop,
            "restore": lambda given: self._settle(given, "restore"),
            "drop": lambda given: self._settle(given, "drop"),
            "append": self._append,
            "kill": self._kill,
        }

    def of(self, scope: str) -> list[str]:
        """The actions that a visitor may take."""
        return [action for action in ACTIONS if action in self.permitted and scope == "act"]

    async def respond(self, request: Request) -> Response:
        """Say what an action will do; with `confirm`, do it."""
        visitor, action = request.state.visitor, request.path_params["action"]
        refusal = self._refusal(action, visitor.scope)
        if refusal is not None:
            return JsonResponse(error_body(refusal), 403)
        given = await read_json(request)
        planned = await run_in_threadpool(self._plans[action], given)
        if given.get("confirm") is not True:
            return JsonResponse({"action": action, "will": planned.will, "command": planned.command})
        done = await run_in_threadpool(self._do, action, planned, visitor.who)
        return JsonResponse({"action": action, "done": done})

    def _refusal(self, action: str, scope: str) -> MainstemError | None:
        if action not in ACTIONS:
            return MainstemError(
                f'there is no action "{action[:60]}"',
                detail=f"There are: {', '.join(ACTIONS)}.",
                hint="Choose one of these.",
            )
        if action not in self.permitted:
            return MainstemError(
                f"this console does not permit to {action}",
                detail=f"It permits: {', '.join(sorted(self.permitted)) or 'nothing'}.",
                hint=f"Start it with: mainstem console --actions {action}",
            )
        if scope != "act":
            return MainstemError(
                "you may read, and not act",
                detail="An action needs a token with the scope act.",
                hint="Create one: mainstem token create --scope act",
            )
        return None

    def _do(self, action: str, planned: Planned, who: str) -> str:
        done = planned.do()
        note_activity(self._stem.log, "console", planned.name, "acted", f"{action}: {done}", who=who)
        return done

    # Flows

    def _running(self, given: dict[str, Any]) -> FlowFacts:
        facts = flow_facts(self._stem, check_own_name(_text(given, "flow"), "flow"), {})
        if facts.pid is None:
            raise Conflict(
                f'flow "{facts.flow}" does not run',
                detail=f"Its state is {facts.state}.",
                hint="Run its program: mainstem run PROGRAM.py",
            )
        return facts

    def _stop(self, given: dict[str, Any]) -> Planned:
        facts = self._running(given)

        def stop() -> str:
            batch = stop_flow(self._stem, facts, STOP_SECONDS * 1_000_000, f"{STOP_SECONDS} seconds")
            return f"stopped flow {facts.flow} {'before its first batch' if batch is None else f'after batch {batch}'}"

        will = f"Flow {facts.flow} ends after its batch; the next run of its program continues from there."
        return Planned(facts.flow, will, f"mainstem flow stop {facts.flow}", stop)

    def _kill(self, given: dict[str, Any]) -> Planned:
        facts = self._running(given)

        def kill() -> str:
            process = find_process(FlowStore(self._stem.home, facts.flow).of_version(facts.version))
            # Compared by its start time: another process may have got the id.
            if process is None or process["pid"] != facts.pid:
                raise Conflict(
                    f'flow "{facts.flow}" runs in another process now',
                    detail=f"Process {facts.pid} no longer runs it.",
                    hint="Look again.",
                )
            batch = _begun_batch(facts.checkpoint, self._stem.log.clock)
            if not end_process(process):
                raise Unavailable(
                    f"process {facts.pid} could not be killed",
                    detail="It belongs to another user, or waits for a disk.",
                    hint=f"Try it by hand: kill -9 {facts.pid}",
                )
            return f"killed process {facts.pid}, which ran flow {facts.flow}{'' if batch is None else f', in batch {batch}'}"

        will = (
            f"Process {facts.pid} is killed (SIGKILL), with every flow that it runs. Nothing is lost: a run continues."
        )
        return Planned(facts.flow, will, f"kill -9 {facts.pid}", kill)

    # Rows

    def _append(self, given: dict[str, Any]) -> Planned:
        name, text = check_own_name(_text(given, "topic"), "topic"), _text(given, "row")
        if name.startswith(OWN_PREFIX):
            raise Invalid(
                f'topic "{name}" is written by Mainstem alone',
                detail="It says what happened; a row from elsewhere would be a lie.",
                hint="Append to a topic of your own.",
            )
        topic = self._stem.topic(name)
        try:
            row = JsonLines(topic.settings).row(1, " ".join(text.splitlines()))
        except NotAValue as error:
            hint = error.hint or "Write a value of that type."
            raise Invalid(str(error), detail=f"The row is for topic {topic.name}.", hint=hint) from None
        if row is None:
            raise Invalid(
                "there is no row to append", detail="The text is empty.", hint='Write one, for example: {"order_id": 1}'
            )
        rows = check_rows([row], topic.settings)

        def append() -> str:
            placed = topic.backend.append(rows)
            ((number, (first, _)),) = placed.offsets.items()
            return f"appended a row to topic {topic.name}, partition {number}, offset {first}"

        where = (
            f"its partition is that of its key, {', '.join(topic.settings.key)}"
            if topic.settings.key
            else "any partition"
        )
        will = (
            f"One row is appended to topic {topic.name} ({where}); every flow and queue that reads the topic gets it."
        )
        return Planned(topic.name, will, f"echo {shlex.quote(text)} | mainstem topic append {topic.name} -", append)

    # Rejected messages

    def _settle(self, given: dict[str, Any], action: str) -> Planned:
        topic, name = check_own_name(_text(given, "topic"), "topic"), check_own_name(_text(given, "queue"), "queue")
        queue: Queue = self._stem.topic(topic).open_queue(name)
        positions = given.get("positions")
        if (
            not isinstance(positions, list)
            or not 1 <= len(positions) <= POSITIONS_MAX
            or not all(isinstance(it, str) for it in positions)
        ):
            raise Invalid(
                f"{action} needs the positions of messages",
                detail=f"`positions` is a list of 1 to {POSITIONS_MAX:,} texts.",
                hint='For example: ["0:17"], partition and offset in the topic.',
            )
        count = show_count(len(positions), "message")
        done = "restored" if action == "restore" else "dropped"

        def settle() -> str:
            (queue.restore if action == "restore" else queue.drop)(positions)
            return f"{done} {count} of queue {name} of {topic}"

        will = {
            "restore": f"{count} of queue {name} of {topic} will be delivered again, as if never delivered.",
            "drop": f"{count} of queue {name} of {topic} are done: they are not delivered again.",
        }[action]
        return Planned(
            f"{topic}.{name}", will, f"mainstem queue {action} {topic} {name} {' '.join(positions[:20])}", settle
        )


def _begun_batch(checkpoint: str, clock: Clock) -> int | None:
    """The batch that a flow works on; if it is between two, the next one, if that begins soon."""
    began, pause = clock.monotonic(), threading.Event()
    while (begun := last_batch(checkpoint, "offsets")) is not None:
        if begun != last_batch(checkpoint):
            return begun
        if clock.monotonic() - began > SOON_US:
            break
        pause.wait(LOOK_SECONDS)
    return None


def _text(given: dict[str, Any], name: str) -> str:
    found = given.get(name)
    if not isinstance(found, str):
        raise Invalid(
            f"the request has no {name}", detail=f"`{name}` is the name of a {name}.", hint=f'Send {{"{name}": "..."}}.'
        )
    return found
