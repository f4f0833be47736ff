"""Loads a program from a file and finds its function `flows`; its errors name file and line.

The file is run as a module: code under `if __name__ == "__main__"` is not run. Its functions are sent to Spark's
workers by value, since a worker cannot import the file; modules beside it are found there by their path.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.arguments import type_name
from mainstem.errors import Invalid, MainstemError, NotFound, did_you_mean
from mainstem.spark.hidden_libraries import check_libraries
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.shown_passwords import blank_passwords, may_have_password

if TYPE_CHECKING:
    from mainstem.capture.capture import Captures
    from mainstem.flows.program import Flows

__all__ = ["FUNCTION", "ProgramArgument", "ProgramFile", "load_captures", "load_program"]

FUNCTION, CAPTURES = "flows", "captures"
EXAMPLES = {FUNCTION: "Flow(rows, into=sink)", CAPTURES: 'Capture("shop", postgres(url, tables=["orders"]))'}
# As many files of a folder are named.
LISTED_MAX = 10

ProgramArgument = Annotated[str, typer.Argument(metavar="PROGRAM.py", help="A Python file with a function `flows`.")]


@dataclass(frozen=True)
class ProgramFile:
    """A loaded program."""

    path: str
    flows: Flows
    # None if it has none.
    captures: Captures | None = None
    # It has captures and no function `flows`: Spark is not needed.
    without_flows: bool = False

    def fill_hint(self, hint: str) -> str:
        """A hint with the path of this program instead of FILE."""
        return hint.replace("--program FILE", f"--program {shlex.quote(_short_path(self.path))}")

    @contextmanager
    def locate_errors(self, function: str = FUNCTION) -> Iterator[None]:
        """Raises errors of one of its functions with the line of the program that caused them."""
        try:
            yield
        except MainstemError as error:
            place = _line_in(self.path, error) or _line_in(self.path, error.__cause__)
            if place is None and "FILE" not in error.hint:
                raise
            detail = f"{error.detail} It is {place}.".strip() if place else error.detail
            raise with_facts(error, detail=detail, hint=self.fill_hint(error.hint)) from error.__cause__
        except Exception as error:
            if (place := _line_in(self.path, error)) is None:
                raise
            raise Invalid(
                f"the function `{function}` failed",
                detail=f"{_error_text(error)}. It is {place}.",
                hint="Nothing was started. Fix the program and check it again.",
            ) from error


def load_program(path: str, *, captures_suffice: bool = False) -> ProgramFile:
    """Run the file and find its functions, without starting Spark. With `captures_suffice` one with captures needs no flows."""
    module = _load(path)
    captures = getattr(module, CAPTURES, None)
    if captures_suffice and callable(captures) and not hasattr(module, FUNCTION):
        return ProgramFile(path, lambda stem: [], captures, without_flows=True)
    _travel_by_value(module)
    return ProgramFile(path, _function(path, module), captures if callable(captures) else None)


def load_captures(path: str) -> ProgramFile:
    """The same for its captures, which need no Spark; it may have no flows."""
    module = _load(path)
    found = getattr(module, FUNCTION, None)
    flows: Flows = found if callable(found) else lambda stem: []
    return ProgramFile(path, flows, _function(path, module, CAPTURES))


def _load(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        near = [str(other) for other in sorted(file.parent.glob("*.py"))] if file.parent.is_dir() else []
        raise NotFound(
            f'there is no program "{path}"',
            detail=f"The current directory is {os.getcwd()!r}."
            + (f" Python files there: {', '.join(near)}." if 0 < len(near) <= LISTED_MAX else ""),
            hint=did_you_mean(path, near) or "Give the path of a Python file with a function `flows`.",
        )
    return _module(file)


def _module(file: Path) -> ModuleType:
    """The file as a module with a unique name: one called json.py must not replace Python's."""
    name = f"mainstem_program_{''.join(c if c.isalnum() else '_' for c in file.stem)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Invalid(
            f'"{file}" is not a Python file',
            detail="Its name does not end in .py.",
            hint="Give the path of a Python file with a function `flows`.",
        )
    module = importlib.util.module_from_spec(spec)
    _find_neighbours(file)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise _syntax_error(file, error) from error
    except MainstemError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise _load_error(file, error) from error
    return module


def _find_neighbours(file: Path) -> None:
    """Let the program import the modules beside it, here and in the workers, as with `python shop.py`."""
    folder = str(file.parent.resolve())
    check_libraries(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH", "")
    if folder not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = folder + (os.pathsep + known if known else "")


def _travel_by_value(module: ModuleType) -> None:
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError as error:
        raise _without_spark(error) from error
    register: Callable[[ModuleType], Any] = cloudpickle.register_pickle_by_value
    register(module)


def _function(path: str, module: ModuleType, name: str = FUNCTION) -> Callable[[Any], Any]:
    found = getattr(module, name, None)
    if callable(found):
        function: Callable[[Any], Any] = found
        return function
    own = [
        other
        for other, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not other.startswith("_")
    ]
    facts = f"It is {type_name(found)}, which cannot be called." if found is not None else ""
    raise Invalid(
        f'"{path}" has no function `{name}`',
        detail=facts or (f"It defines: {', '.join(own)}." if own else "It defines no functions."),
        hint=f"Write: def {name}(stem): yield {EXAMPLES[name]}.",
    )


def _syntax_error(file: Path, error: SyntaxError) -> Invalid:
    named = error.filename or str(file)
    text = (error.text or "").strip()
    return Invalid(
        f'"{_short_path(named)}" is not Python, at line {error.lineno}',
        detail=f"{error.msg}{_quote(text)}",
        hint="Fix that line and check it again.",
    )


def _load_error(file: Path, error: Exception) -> MainstemError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and missing.partition(".")[0] in ("pyspark", "py4j"):
        return _without_spark(error)
    place = _line_in(str(file), error)
    return Invalid(
        f'"{file}" failed while it was loaded',
        detail=f"{_error_text(error)}.{f' It is {place}.' if place else ''}",
        hint="Spark starts after the program is loaded. Move this line into the function `flows`."
        if _needs_session(error)
        else "Fix it and check it again; a program should do little when it is loaded.",
    )


def _needs_session(error: Exception) -> bool:
    """Whether a function of Spark was called that needs a session: F.udf("string"), F.col("a") > 1."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and f"{os.sep}pyspark{os.sep}" in frames[-1].filename


def _without_spark(error: Exception) -> NotFound:
    return NotFound(
        "PySpark is not installed",
        detail=f"Programs run on it. Python says: {error}.",
        hint='Install it with Mainstem: pip install "mainstem[spark]".',
    )


def _error_text(error: BaseException) -> str:
    first = str(error).splitlines()[0] if str(error) else "no message"
    return blank_passwords(f"{type(error).__name__}: {first}".rstrip("."))


def _line_in(path: str, error: BaseException | None) -> str | None:
    """The last line of the program in the traceback of an error."""
    if error is None:
        return None
    wanted = os.path.realpath(path)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if os.path.realpath(frame.filename) == wanted
    ]
    if not frames:
        return None
    return f"line {frames[-1].lineno} of {_short_path(path)}{_quote(frames[-1].line or '')}"


def _quote(line: str) -> str:
    """A line of a program, after a colon; not one that may have a password: terminals and logs are read by others."""
    if may_have_password(line):
        return ", which is not shown because it may contain a password"
    return f": {line}" if line else ""


def _short_path(path: str) -> str:
    """Relative to the current directory, if it is below it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
