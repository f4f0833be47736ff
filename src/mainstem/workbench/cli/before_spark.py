"""What can be known without Spark, said before it starts: to start it takes many seconds.

Whether the home can be written to, whether the database of its views answers, whether a view is there; and, of a program
that says plainly which flows it has, whether it has the ones that are asked for.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mainstem.errors import DatabaseUnavailable, FlowNotFound, Unavailable, did_you_mean
from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log.embedded.home import unavailable
from mainstem.workbench.cli.program_file import FUNCTION

if TYPE_CHECKING:
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.program_file import ProgramFile

__all__ = ["check_before_spark", "check_writable", "flows_named_in"]

# What a run writes at least before its first batch is done.
PROBE_BYTES = 64 << 10


def check_before_spark(stem: Mainstem, file: ProgramFile, *, only: Sequence[str] | None = None, view: str = "") -> None:
    """Raise what a start of Spark could not change. `only`: the flows asked for; `view`: one that must be there."""
    source = _parsed(file.path)
    known = flows_named_in(source)
    for name in only or ():
        if known is not None and name not in known:
            raise FlowNotFound(
                f'the program has no flow "{name}"',
                detail=f"Its flows are: {', '.join(known) or 'none'}.",
                hint=did_you_mean(name, known) or "Name some of these.",
            )
    if view or any(isinstance(node, ast.Attribute) and node.attr == "view" for node in ast.walk(source)):
        _check_views(stem, view)


def check_writable(home: str) -> None:
    """Raise if nothing can be written into the home: it may be full, or mounted read-only."""
    path = f"{home}/.probe-{os.getpid()}"
    with unavailable(home):
        try:
            handle = REAL_FILES.create(path)
            try:
                REAL_FILES.pwrite(handle, bytes(PROBE_BYTES), 0)
                REAL_FILES.sync(handle)
            finally:
                REAL_FILES.close(handle)
        finally:
            if os.path.exists(path):
                os.remove(path)


def _check_views(stem: Mainstem, view: str) -> None:
    """A database that may be about to start is waited for, as a run does."""
    from mainstem.log.waiting import patiently

    def may_pass(error: Unavailable) -> bool:
        from mainstem.views.postgres_errors import may_pass

        return isinstance(error, DatabaseUnavailable) and may_pass(error)

    patiently(stem.view_place.names, worth_it=may_pass, clock=stem.log.clock)
    if view:
        # Raises, with the views that there are, if there is none of that name.
        stem.view(view).describe()


def _parsed(path: str) -> ast.Module:
    with open(path, "rb") as file:
        return ast.parse(file.read())


def flows_named_in(source: ast.Module) -> list[str] | None:
    """The names of the flows of a program, if it says them plainly; None if they are known only when it runs.

    >>> flows_named_in(ast.parse('def flows(stem): yield Flow(rows, into=stem.view("revenue", key="store"))'))
    ['revenue']
    >>> flows_named_in(ast.parse('def flows(stem): yield from others(stem)'))
    """
    functions = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    replaced = any(
        isinstance(node, ast.Name) and node.id == FUNCTION and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(source)
    )
    if len(functions) != 1 or functions[0] not in source.body or functions[0].decorator_list or replaced:
        return None
    sinks = _assigned(functions[0])
    names: list[str] = []
    for flow in _yielded(functions[0]):
        name = _name_of(flow, sinks)
        if name is None:
            return None
        names.append(name)
    return names


def _yielded(function: ast.FunctionDef) -> Iterator[ast.expr | None]:
    """What it yields, and what it returns; None for what cannot be told."""
    for node in ast.walk(function):
        if isinstance(node, ast.Yield):
            yield node.value
        elif isinstance(node, ast.YieldFrom) or (isinstance(node, ast.Return) and node.value is not None):
            yield from node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [None]
        elif node is not function and isinstance(node, ast.FunctionDef | ast.Lambda):
            # What is yielded or returned in there is not the program's.
            yield None


def _assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The variables that are given a value once."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _name_of(flow: ast.expr | None, sinks: dict[str, ast.expr]) -> str | None:
    if isinstance(flow, ast.Name):
        flow = sinks.get(flow.id)
    if not isinstance(flow, ast.Call) or getattr(flow.func, "id", getattr(flow.func, "attr", "")) != "Flow":
        return None
    given = {keyword.arg: keyword.value for keyword in flow.keywords}
    if None in given or len(flow.args) > 2:
        return None
    if "name" in given:
        return _text(given["name"])
    sink = given.get("into") or (flow.args[1] if len(flow.args) == 2 else None)
    if isinstance(sink, ast.Name):
        sink = sinks.get(sink.id)
    # A folder of files has a name that follows from where it is.
    plain = isinstance(sink, ast.Call) and isinstance(sink.func, ast.Attribute) and sink.func.attr in ("view", "topic")
    return _text(sink.args[0]) if plain and isinstance(sink, ast.Call) and sink.args else None


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
