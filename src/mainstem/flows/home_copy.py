"""HomeCopy: copies a whole home into another directory while processes append, seal and run flows in it.

    sealed history                      without any lock
    every flow held between batches     then, in this order: checkpoints, views, other files, topics as of one moment
    mainstem.json                       last: an interrupted copy is not a home, and has the file `unfinished-copy`

While the flows are held, their files do not change; and the records that their checkpoints name are in the topics before
these are copied. So in the copy no checkpoint is ahead of its sink or of its topics.

At the end every file of the copy is verified (see `home_verification`), after the flows are released. Damaged files are
copied as they are and reported, so that the rest can be rescued.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.arguments import path_text
from mainstem.capture.capture_status import SECRET, capture_names
from mainstem.durable_files import REAL_FILES, copy_file, unavailable
from mainstem.errors import Corrupt, Invalid
from mainstem.flows.home_verification import HomeProblem, verify_home
from mainstem.log.log import LogCopy
from mainstem.sinks.store_record import StoreRecord, store_names
from mainstem.spark.checkpoint.flow_copy import FlowCopy, copy_tree
from mainstem.spark.checkpoint.flow_store import flow_names
from mainstem.views.sqlite.view_folder import ViewFolder, view_names

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["HomeCopy", "copy_home"]

# Copied separately, or (`lock`, `checks`; `console`: who may see this home may not see each copy of it) not at all.
KNOWN = frozenset(["mainstem.json", "lock", "topics", "ledgers", "flows", "views", "captures", "checks", "console"])
CHECK = ".check"
UNFINISHED = "unfinished-copy"


@dataclass(frozen=True)
class HomeCopy:
    """What was copied, and what belongs to the home but is stored elsewhere and was not."""

    path: str
    topics: tuple[str, ...]
    flows: tuple[str, ...]
    views: tuple[str, ...]
    bytes: int
    elsewhere: tuple[str, ...]
    # Damage in the copy, and so most likely in the home: damaged files are copied as they are.
    problems: tuple[HomeProblem, ...] = ()


def copy_home(stem: Mainstem, target: str | os.PathLike[str], step: Callable[[str], None] = lambda _: None) -> HomeCopy:
    """Copy a home to a new directory, as of one moment; `step` is called with the name of each step."""
    home, path = os.path.realpath(stem.home), os.path.abspath(path_text(target, "path"))
    _check_target(home, path)
    log = stem.log.copy_to(path)
    flows = [FlowCopy(stem.home, name, path) for name in flow_names(stem.home) if not name.endswith(CHECK)]
    views = view_names(stem.home)
    with unavailable(path), ExitStack() as held:
        REAL_FILES.make_directory(path)
        REAL_FILES.close(REAL_FILES.create(f"{path}/{UNFINISHED}"))
        if log is not None:
            step("sealed history")
            log.copy_history()
        step("waiting for the end of a batch")
        for flow in flows:
            held.enter_context(flow.hold())
        if log is not None:
            held.enter_context(log.freeze())
        size = 0
        for flow in flows:
            step(f"flow {flow.name}")
            flow.copy()
            size += flow.bytes
        for view in views:
            step(f"view {view}")
            try:
                size += ViewFolder(stem.home, view).copy_to(path)
            except Corrupt:
                size += copy_tree(f"{stem.home}/views/{view}", f"{path}/views/{view}")
        step("other files")
        size += copy_tree(stem.home, path, left_out=KNOWN)
        size += _copy_secrets(stem.home, path)
        if log is not None:
            step("topics")
            log.copy()
            size += log.bytes
        for flow in flows:
            flow.check_held()
        os.remove(f"{path}/{UNFINISHED}")
        if log is not None:
            log.finish()
    topics = tuple(stem.log.topic_names()) if log is not None else ()
    elsewhere = (*_places(stem), *(each for flow in flows for each in flow.elsewhere()))
    problems = _problems(path, log, step)
    return HomeCopy(path, topics, tuple(flow.name for flow in flows), tuple(views), size, elsewhere, problems)


def _copy_secrets(home: str, path: str) -> int:
    """Copy the secrets of masked columns, with which equal values stay equal. The rest of a capture's files tells of its
    process, or is derived from the topics."""
    size = 0
    for name in capture_names(home):
        if os.path.exists(f"{home}/captures/{name}/{SECRET}"):
            os.makedirs(f"{path}/captures/{name}", mode=0o700, exist_ok=True)
            size += copy_file(REAL_FILES, f"{home}/captures/{name}/{SECRET}", f"{path}/captures/{name}/{SECRET}")
            REAL_FILES.sync_directory(f"{path}/captures/{name}")
    return size


def _problems(path: str, log: LogCopy | None, step: Callable[[str], None]) -> tuple[HomeProblem, ...]:
    copied = None if log is None else log.open_copy()
    try:
        found = verify_home(copied, path, lambda what: step(f"verifying {what}"), folders="inside")
    finally:
        if copied is not None:
            copied.close()
    return tuple(found.problems)


def _check_target(home: str, path: str) -> None:
    real = os.path.realpath(path)
    if real == home or real.startswith(f"{home}/") or home.startswith(f"{real}/"):
        raise Invalid(
            f'the home "{home}" cannot be copied to "{path}"',
            detail="One of the two directories is inside the other.",
            hint="Give a directory beside the home, or on another disk.",
        )
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise Invalid(
            f'"{path}" is not empty',
            detail="The copy of a home needs a directory of its own.",
            hint="Give a new or empty directory.",
        )


def _places(stem: Mainstem) -> list[str]:
    """The parts of the home, and of its topics, that are stored elsewhere."""
    found = []
    if stem.log.address:
        found.append(f"topics, groups and queues: {stem.log.address}")
    if stem.view_backend.address is not None:
        found.append(f"views: {stem.view_backend.address}")
    for name in () if stem.log.address else stem.log.topic_names():
        archive = None
        with suppress(Corrupt):
            archive = stem.log.open_topic(name).settings.archive
        if archive is not None and not archive.startswith(f"{stem.home}/"):
            found.append(f'the archive of topic "{name}": {archive}')
    for name in store_names(stem.home):
        location = StoreRecord(stem.home, name).read().location
        if f"{stem.home}/" not in location:
            found.append(f'store "{name}": {location}')
    return found
