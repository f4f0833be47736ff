"""Checks that need no Spark, made before it starts, which takes many seconds.

They check whether the home is writable, the database of its views answers, and a view exists; if the program names its
flows literally, whether it has the requested ones; and whether the topics, patterns and views that it reads exist.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from mainstem.durable_files import REAL_FILES, unavailable
from mainstem.errors import FlowNotFound, MainstemError, did_you_mean
from mainstem.spark.build import Build
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_glob import TopicGlob
from mainstem.stem import Mainstem
from mainstem.views.home_views import wait_for_views
from mainstem.views.spark_view import SparkView
from mainstem.workbench.cli.program_file import FUNCTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.sinks.sink import Sink
    from mainstem.workbench.cli.program_file import ProgramFile

__all__ = ["check_before_spark", "check_writable", "flows_named_in", "sinks_of"]

# What a run writes at least before its first batch is committed.
PROBE_BYTES = 64 << 10


def check_before_spark(stem: Mainstem, file: ProgramFile, *, only: Sequence[str] | None = None, view: str = "") -> None:
    """Raise errors that do not depend on Spark. `only`: the requested flows; `view`: one that must exist."""
    source = _parse(file.path)
    known = flows_named_in(source)
    for name in only or ():
        if known is not None and name not in known:
            raise FlowNotFound(
                f'the program has no flow "{name}"',
                detail=f"Its flows are: {', '.join(known) or 'none'}.",
                hint=did_you_mean(name, known) or "Choose from these.",
            )
    if view or any(isinstance(node, ast.Attribute) and node.attr == "view" for node in ast.walk(source)):
        _check_views(stem, view)
    with file.locate_errors():
        check_sources(stem, file)


def check_writable(home: str) -> None:
    """Raise if the home is not writable: it may be full, mounted read-only, or belong to another user."""
    for folder in (home, f"{home}/flows", f"{home}/views"):
        if os.path.isdir(folder):
            _probe(folder)


def _probe(folder: str) -> None:
    path = f"{folder}/.probe-{os.getpid()}"
    with unavailable(folder):
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
    wait_for_views(stem.view_backend.names, stem.log.clock)
    if view:
        # Raises, with the existing views, if there is none of that name.
        stem.view(view).describe()


def check_sources(stem: Mainstem, file: ProgramFile) -> None:
    """Raise errors of the program's sources that do not need Spark: a topic does not exist, or has no event time.

    The program's function is called with placeholders for Spark's frames. If it needs more of them than to be passed on
    and called, or a function of Spark, this ends: later errors are found when the program is built.
    """
    build = Build(schemas=_UnknownSchemas())
    try:
        with build.enter():
            for flow in file.flows(_WithoutSpark(stem)):
                build.schemas[f"{flow.into.kind}:{flow.into.name}"] = flow.rows
    except MainstemError as error:
        if _is_of_source(error):
            raise
    except Exception:  # noqa: BLE001 - of Spark, or a fault of the program: it is said, with its line, by the build
        return


def sinks_of(stem: Mainstem, file: ProgramFile) -> list[Sink]:
    """The sinks of a program's flows, to read from; Spark is started only if the program needs it to be built."""
    found = []
    try:
        # Errors are located below: here that would make another error of what only needs Spark.
        with Build(schemas=_UnknownSchemas()).enter():
            for flow in file.flows(_WithoutSpark(stem)):
                found.append(flow.into)  # noqa: PERF401 - the next one may raise
    except MainstemError:
        with file.locate_errors():
            raise
    except Exception:  # noqa: BLE001 - of Spark, or a fault of the program: it is said, with its line, by the build
        from mainstem.flows.program import Program

        with file.locate_errors():
            return [flow.flow.into for flow in Program(stem, file.flows).flows]
    return found


class _WithoutSpark(Mainstem):
    """The same home, with a session that only makes placeholders."""

    def __init__(self, stem: Mainstem) -> None:
        vars(self).update(vars(stem))

    def _session(self) -> SparkSession:
        return cast("SparkSession", _Session())


class _NeedsSpark(Exception):
    """The program cannot be checked any further."""


class _Session:
    """The part of a session that a stream of a topic or view uses."""

    defaultParallelism = 1  # noqa: N815 - as Spark calls it

    @property
    def sparkContext(self) -> Self:  # noqa: N802 - as Spark calls it
        return self

    @property
    def readStream(self) -> Self:  # noqa: N802 - as Spark calls it
        return self

    def format(self, _: str) -> Self:
        return self

    def schema(self, _: object) -> Self:
        return self

    def option(self, *_: str) -> Self:
        return self

    def load(self) -> _Frame:
        return _Frame()

    def __getattr__(self, name: str) -> Any:
        raise _NeedsSpark(name)


class _Frame:
    """A placeholder for a DataFrame and everything derived from it. It has no columns and no rows."""

    isStreaming = True  # noqa: N815 - as a DataFrame calls it
    # Otherwise an object that can be indexed would count as a sequence without an end.
    __iter__ = None

    def __getattr__(self, name: str) -> _Frame:
        if name.startswith("_") or name in ("schema", "columns", "dtypes", "sparkSession"):
            raise _NeedsSpark(name)
        return self

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __getitem__(self, _: object) -> Self:
        return self

    def __bool__(self) -> bool:
        raise _NeedsSpark("a truth value")


class _UnknownSchemas(dict[str, Any]):
    """The schemas of the program's sinks: they exist, but are unknown."""

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            raise _NeedsSpark(key)
        return default


_SOURCES = {inspect.unwrap(source.stream).__code__ for source in (SparkTopic, TopicGlob, SparkView)}


def _is_of_source(error: MainstemError) -> bool:
    """Whether it was raised while a source was made: errors of operators about placeholders are not faults."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _SOURCES:
            return True
        trace = trace.tb_next
    return False


def _parse(path: str) -> ast.Module:
    with open(path, "rb") as file:
        return ast.parse(file.read())


def flows_named_in(source: ast.Module) -> list[str] | None:
    """The names of the flows of a program, if it names them literally; None if they are known only when it runs.

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
    sinks = _find_assignments(functions[0])
    names: list[str] = []
    for flow in _find_yields(functions[0]):
        name = _name_of(flow, sinks)
        if name is None:
            return None
        names.append(name)
    return names


def _find_yields(function: ast.FunctionDef) -> Iterator[ast.expr | None]:
    """The yielded and returned expressions; None for an unknown one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Yield):
            yield node.value
        elif isinstance(node, ast.YieldFrom) or (isinstance(node, ast.Return) and node.value is not None):
            yield from node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [None]
        elif node is not function and isinstance(node, ast.FunctionDef | ast.Lambda):
            # A yield or return in a nested function is not the program's.
            yield None


def _find_assignments(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The variables that are assigned once."""
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
    # The name of a flow into a folder of files depends on its path.
    plain = isinstance(sink, ast.Call) and isinstance(sink.func, ast.Attribute) and sink.func.attr in ("view", "topic")
    return _text(sink.args[0]) if plain and isinstance(sink, ast.Call) and sink.args else None


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
