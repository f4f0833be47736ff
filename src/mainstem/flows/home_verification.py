"""HomeVerification: checks every file of a home that has a checksum or a format that can be checked.

    topics/, ledgers/           every block, sealed file, manifest and index; the ledgers of groups and queues too
    views/                      view.json, and SQLite's own check of every version
    flows/                      flow.json, the notes beside each checkpoint, the state of its stages, and what Spark keeps there
    captures/                   the secrets of masked columns; the rest tells of processes, or is derived
    folders that flows write    the log of commits, and whether each file exists with its length

It takes no lock: the home may be in use. A file that changes during the check is checked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from mainstem.capture.capture_status import SECRET, capture_names, damaged_secret
from mainstem.errors import Corrupt, MainstemError, NewerFormat, NotFound, summary_of
from mainstem.log.log import Log
from mainstem.log.upkeep_report import Verification
from mainstem.operators.stage.state_run_file import RunEntry, check_run
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.sinks.file_commits import FileCommits
from mainstem.spark.checkpoint.checkpoint_check import damaged_files
from mainstem.spark.checkpoint.checkpoint_location import read_pointer
from mainstem.spark.checkpoint.flow_store import FlowStore, flow_names
from mainstem.spark.checkpoint.native_history import noted_history
from mainstem.spark.real_time.real_time_note import noted_topics
from mainstem.views.sqlite.view_folder import ViewFolder, view_names

__all__ = ["HomeProblem", "HomeVerification", "verify_home"]

# How often a view or a flow is checked before a problem is reported: its files may be replaced during a check.
LOOKS = 3


@dataclass(frozen=True, slots=True)
class HomeProblem:
    """Damage: of what, in which file, and which offsets of a topic are lost."""

    of: str
    file: str
    what: str
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass
class HomeVerification:
    """What was checked, and the damage that was found."""

    topics: list[str] = field(default_factory=list)
    ledgers: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    records: int = 0
    problems: list[HomeProblem] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_home(
    log: Log | None,
    home: str,
    step: Callable[[str], None] = lambda _: None,
    *,
    folders: Literal["all", "inside"] = "all",
) -> HomeVerification:
    """Check everything; `step` is called with the name of each step. Topics on Kafka and views in PostgreSQL are not checked.

    `folders`: which of the folders that flows write, since they may be outside the home.
    """
    found = HomeVerification()
    if log is not None and not log.address:
        _verify_log(log, home, found, step)
    for name in view_names(home):
        step(f"view {name}")
        found.views.append(name)
        found.problems += _look_repeatedly(lambda name=name: _view_problems(home, name))  # type: ignore[misc]
    within = "" if folders == "all" else f"{home}/"
    for name in flow_names(home):
        step(f"flow {name}")
        found.flows.append(name)
        found.problems += _look_repeatedly(lambda name=name: _flow_problems(home, name, within))  # type: ignore[misc]
    for name in capture_names(home):
        if wrong := damaged_secret(home, name):
            found.problems.append(HomeProblem(f"capture {name}", f"{home}/captures/{name}/{SECRET}", wrong))
    return found


def _look_repeatedly(look: Callable[[], Iterator[HomeProblem]]) -> list[HomeProblem]:
    """The problems found in every one of `LOOKS` attempts."""
    problems = list(look())
    for _ in range(LOOKS - 1):
        if problems:
            again = set(look())
            problems = [problem for problem in problems if problem in again]
    return problems


# The log


def _verify_log(log: Log, home: str, found: HomeVerification, step: Callable[[str], None]) -> None:
    for name in log.topic_names():
        title = f"topic {name}"
        step(title)
        try:
            _take(found, title, log.open_topic(name).verify())
        except NotFound:
            continue  # deleted meanwhile
        except (Corrupt, NewerFormat) as error:
            found.problems.append(_problem(title, error, f"{home}/topics/{name}"))
        found.topics.append(name)
    for report in log.verify_ledgers(step):
        _take(found, report.topic, report)
        found.ledgers.append(report.topic)


def _take(found: HomeVerification, title: str, report: Verification) -> None:
    found.records += report.records
    for it in report.problems:
        found.problems.append(HomeProblem(title, it.file, it.what, it.partition, it.first_offset, it.last_offset))


# Views and flows


def _view_problems(home: str, name: str) -> Iterator[HomeProblem]:
    folder = ViewFolder(home, name)
    try:
        for path, what in folder.problems():
            yield HomeProblem(f"view {name}", path, what)
    except NotFound:
        return  # dropped meanwhile
    except (Corrupt, NewerFormat) as error:
        yield _problem(f"view {name}", error, f"{folder.path}/view.json")


def _flow_problems(home: str, name: str, within: str) -> Iterator[HomeProblem]:
    store, title = FlowStore(home, name), f"flow {name}"
    folders: set[str] = set()
    try:
        for run in store.read().get("runs", {}).values():
            if (run.get("folder") or "").startswith(within or "/"):
                folders.add(run["folder"])
    except (Corrupt, NewerFormat) as error:
        yield _problem(title, error, f"{store.folder}/flow.json")
    versions = sorted(entry for entry in os.listdir(store.folder) if entry[0] == "v" and entry[1:].isdigit())
    for version in versions:
        checkpoint = f"{store.folder}/{version}"
        for look in (read_pointer, noted_topics, noted_history):
            try:
                look(checkpoint)
            except (Corrupt, NewerFormat) as error:
                yield _problem(title, error, checkpoint)
        yield from _stage_problems(title, checkpoint)
        for path, what in damaged_files(checkpoint):
            yield HomeProblem(title, path, what)
    for folder in sorted(folders):
        yield from _folder_problems(title, folder)


def _stage_problems(title: str, checkpoint: str) -> Iterator[HomeProblem]:
    """Problems of the retained manifests and of the runs that they name."""
    manifests = StageManifests(checkpoint)
    seen: set[tuple[str, RunEntry]] = set()
    for batch in manifests.batches():
        try:
            stages = manifests.read(batch)["stages"]
        except (Corrupt, NewerFormat) as error:
            yield _problem(title, error, manifests.folder)
            continue
        seen |= {
            (f"{manifests.folder}/{stage}", RunEntry(**run))
            for stage, facts in stages.items()
            for bucket in facts.get("state", {}).values()
            for run in bucket["runs"]
        }
    for folder, run in sorted(seen, key=lambda found: (found[0], found[1].name)):
        try:
            check_run(folder, run)
        except Corrupt as error:
            yield _problem(title, error, folder)


def _folder_problems(title: str, folder: str) -> Iterator[HomeProblem]:
    commits = FileCommits(folder)
    try:
        facts = commits.facts()
        batches = [] if facts is None else list(commits.batches(facts.version))
    except (Corrupt, NewerFormat) as error:
        yield _problem(title, error, folder)
        return
    for batch in batches:
        for file in batch.files:
            path = f"{folder}/{file.path}"
            size = os.path.getsize(path) if os.path.exists(path) else None
            if size is None:
                yield HomeProblem(title, path, "the file is missing")
            elif size != file.bytes:
                yield HomeProblem(title, path, f"has {size} bytes, not {file.bytes}")


def _problem(title: str, error: MainstemError, otherwise: str) -> HomeProblem:
    return HomeProblem(title, str(getattr(error, "path", "")) or otherwise, summary_of(error))
