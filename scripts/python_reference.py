"""Writes the reference of the Python interface, docs/reference/python*.md, from signatures and docstrings.

    python scripts/python_reference.py            write the pages
    python scripts/python_reference.py --check    write nothing; exit status 1 if a page is not current

Every public name is on one of the pages, with the classes that public methods return. The examples are those of the
docstrings, which the tests run.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, ForwardRef

import mainstem
import mainstem.capture
import mainstem.errors
import mainstem.operators
import mainstem.sinks
import mainstem.testing
from mainstem.durations import show_duration

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
LINE = 110

# In which order a reader meets them; a test holds that these are all public names of the root but the errors.
CHAPTERS = {
    "Opening a home": ["open", "Mainstem"],
    "Topics": ["Topic", "AppendResult", "Keep", "Producer", "Transaction"],
    "Readers": ["Member", "Queue", "Message", "Backoff", "Lag"],
    "Programs and views": ["Flow", "View", "Capture", "Comparison", "Difference"],
}
# Classes that a program makes itself; all others are returned by methods.
MADE_BY_USERS = {
    "Backoff",
    "Capture",
    "CapturedTable",
    "FenceMoved",
    "Fences",
    "Flow",
    "Keep",
    "TestStream",
    "TestStreams",
}
# Attributes that `__init__` sets, and that the docstring does not list.
ATTRIBUTES = {"FlowHandle": {"state": "str", "error": "FlowFailed | None", "progress": "FlowProgress"}}
# Methods that other parts of Mainstem call.
INTERNAL = {
    "Capture": {"own_topic", "snapshot_when_lost"},
    "FileSink": {"id", "version"},
    "FlowHandle": {"batch_over", "become"},
    "Flow": {"every_us"},
    "Member": {"commit_in", "heartbeat", "log"},
    "Producer": {"append_in", "kept_sequence"},
    "Queue": {"open", "require"},
    "QueueSettings": {"differences", "from_options", "lease_of"},
    "ScriptedRows": {"columns", "isStreaming", "mapped", "through", "transformed"},
    "SparkTopic": {"shown_schema"},
    "SparkView": {"version"},
    "Store": {"at_version", "follows_record", "reached", "table_writer"},
    "StoreContract": {"check_random_changes", "kill", "trial"},
    "TestStream": {"topic"},
    "Topic": {"open_queue"},
    "TopicSettings": {"alter", "of", "schema_of", "schema_version", "stored_schema", "with_codec"},
    "Verification": {"add", "join"},
    "View": {"changes_between", "close", "id", "kind", "last_position", "snapshot", "status", "watch"},
}
INTERNAL_ANYWHERE = {"accept", "from_json", "to_json", "writer"}
# A store of one's own keeps fences.
SHOWN = {"Fence": {"from_json", "to_json"}}


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    root = [entry(getattr(mainstem, name), name, "mainstem") for names in CHAPTERS.values() for name in names]
    returned = sorted(returned_classes(), key=lambda kind: kind.__name__)
    chapters = {title: [e for e in root if e.name in names] for title, names in CHAPTERS.items()}
    chapters["Returned objects"] = [entry(kind, kind.__name__, "") for kind in returned]
    operators = [entry(getattr(mainstem.operators, n), n, "mainstem.operators") for n in mainstem.operators.__all__]
    capture = [entry(getattr(mainstem.capture, n), n, "mainstem.capture") for n in mainstem.capture.__all__]
    sinks = [entry(getattr(mainstem.sinks, n), n, "mainstem.sinks") for n in mainstem.sinks.__all__]
    testing = [entry(getattr(mainstem.testing, n), n, "mainstem.testing") for n in mainstem.testing.__all__]
    return {
        "python.md": page(
            "Python: home, log, programs",
            "The names of `mainstem`, and the classes that their methods return. Further pages: [operators]"
            "(python_operators.md), [capture](python_capture.md), [sinks](python_sinks.md), [testing](python_testing.md), [errors](python_errors.md). A duration "
            'is text such as `"10 minutes"`, or a `timedelta`; a position is one of [these](../guides/reading.md#where-to-start-and-stop).',
            chapters,
        ),
        "python_operators.md": page(
            "Python: operators",
            "The names of `mainstem.operators`. [Which operator for which question](../guides/which_operator.md) helps to choose.",
            {"": operators},
        ),
        "python_capture.md": page(
            "Python: capture",
            "The names of `mainstem.capture`; see the [guide](../guides/capture.md).",
            {"": capture},
        ),
        "python_sinks.md": page(
            "Python: sinks",
            "The names of `mainstem.sinks`: [stores](../guides/stores.md), and what a [store of your own](../guides/own_store.md) needs.",
            {"": sinks},
        ),
        "python_testing.md": page(
            "Python: testing",
            "The names of `mainstem.testing`; see the [guide](../guides/testing.md).",
            {"": testing},
        ),
        "python_errors.md": errors_page(),
    }


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name with its text, as Markdown."""

    name: str
    summary: str
    text: str

    @property
    def heading(self) -> str:
        """Anchors have neither case nor dots: those of `Process` and `process`, of `TopicSettings` and `Topic.settings`,
        would be the same."""
        return (
            f"{self.name} (class)"
            if self.name in ("Process", "RunningFlows", "StoreStatus", "TopicSettings")
            else self.name
        )


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(title: str, introduction: str, chapters: dict[str, list[Entry]]) -> str:
    lines = [f"# {title}", "", *textwrap.wrap(introduction, 120, break_long_words=False, break_on_hyphens=False), ""]
    for chapter, entries in chapters.items():
        if chapter:
            lines += [f"**{chapter}**", ""]
        lines += ["| name | |", "|---|---|"]
        lines += [f"| [`{e.name}`](#{anchor(e.heading)}) | {e.summary.replace('|', chr(92) + '|')} |" for e in entries]
        lines += [""]
    lines += [line for entries in chapters.values() for e in entries for line in (f"## {e.heading}", "", e.text, "")]
    return "\n".join(lines).rstrip() + "\n"


def errors_page() -> str:
    """The tree of errors as their module draws it, then each with its words."""
    tree = inspect.getdoc(mainstem.errors) or ""
    kinds = [getattr(mainstem, name) for name in mainstem.__all__ if is_error(getattr(mainstem, name))]
    lines = ["# Python: errors", "", *described(tree), "", "All can be imported from `mainstem`.", ""]
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        bases = ", ".join(f"[{b.__name__}](#{b.__name__.lower()})" for b in kind.__bases__ if is_error(b))
        lines += [
            f"## {kind.__name__}",
            "",
            *([f"A kind of {bases}.", ""] if bases else []),
            *described(words(kind)),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, mainstem.MainstemError)


def entry(value: Any, name: str, module: str) -> Entry:
    where = f"{module}." if module else ""
    lines: list[str] = []
    if inspect.isclass(value):
        if name in MADE_BY_USERS:
            lines += code(f"{where}{name}", inspect.signature(value), skip_first=False)
        lines += described(words(value))
        fields = attributes(value)
        if fields and name not in MADE_BY_USERS:
            lines += ["", "| field | type |", "|---|---|"]
            lines += [f"| `{field}` | `{kind.replace('|', chr(92) + '|')}` |" for field, kind in fields.items()]
        for member, kind, function in members(value):
            lines += ["", f"### {name}[...]" if member == "__getitem__" else f"### {name}.{member}", ""]
            if member == "__getitem__":
                lines += code("", inspect.signature(function), skip_first=True, brackets="[]")
            elif kind == "property":
                lines += ["```py", f"{member}: {function.__annotations__.get('return', '')}", "```", ""]
            else:
                lines += code(member, inspect.signature(function), skip_first=True)
            lines += described(words(function))
    else:
        lines += code(f"{where}{name}", inspect.signature(value), skip_first=False)
        lines += described(words(value))
    first = words(value).split("\n\n")[0].replace("\n", " ")
    return Entry(name, plain(re.split(r"(?<=\w[.:;]) ", first)[0].rstrip(":;")), "\n".join(lines).strip())


def members(kind: type) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Public methods and properties of a class in the order of its source, with those that it adds to a public base."""
    hidden = (INTERNAL.get(kind.__name__, set()) | INTERNAL_ANYWHERE) - SHOWN.get(kind.__name__, set())
    for name, value in vars(kind).items():
        if (name.startswith(("_", "test_")) and name != "__getitem__") or name in hidden:
            continue
        if isinstance(value, property) and value.fget:
            yield name, "property", value.fget
        elif isinstance(value, classmethod | staticmethod):
            yield name, "method", value.__func__
        elif inspect.isfunction(value):
            yield name, "method", value


def attributes(kind: type) -> dict[str, str]:
    """The fields of a dataclass, and attributes that another class sets."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: str(field.type) for field in fields if field.name[0] != "_"} | ATTRIBUTES.get(kind.__name__, {})


def words(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    # What a dataclass without a docstring is given is its signature.
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def code(name: str, signature: inspect.Signature, *, skip_first: bool, brackets: str = "()") -> list[str]:
    """A signature, on one line if it fits."""
    given = list(signature.parameters.values())[1 if skip_first else 0 :]
    parts: list[str] = []
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{star}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {shown(parameter.default)}"
        parts.append(text)
    arrow = (
        ""
        if signature.return_annotation in (signature.empty, None, "None")
        else f" -> {annotation(signature.return_annotation)}"
    )
    line = f"{name}{brackets[0]}{', '.join(parts)}{brackets[1]}{arrow}"
    if len(line) > LINE:
        line = "\n".join([f"{name}{brackets[0]}", *(f"    {part}," for part in parts), f"{brackets[1]}{arrow}"])
    return ["```py", line, "```", ""]


def annotation(value: Any) -> str:
    if isinstance(value, ForwardRef):
        return value.__forward_arg__
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def shown(default: Any) -> str:
    return f'"{show_duration(default)}"' if isinstance(default, timedelta) else repr(default).replace("'", '"')


def plain(text: str) -> str:
    """Text with its `<flow>` shown, which Markdown would take for HTML outside of code."""
    return "".join(
        part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def described(text: str) -> list[str]:
    """A docstring as Markdown: examples and drawings in fences, all else as it is."""
    lines: list[str] = []
    fence = ""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")) if text else []:
        first = paragraph.split("\n")[0]
        drawn = all(line.startswith("  ") for line in paragraph.split("\n")) or any(
            re.match(r"\s*\S+(?: \S+)? {2,}\S", line) for line in paragraph.split("\n")
        )
        kind = "pycon" if first.lstrip().startswith(">>>") else "text" if drawn else ""
        if fence and kind == fence:
            lines += ["", *paragraph.split("\n")]
            continue
        if fence:
            lines += ["```"]
        lines += [""] if lines else []
        fence = kind
        lines += [f"```{kind}"] if kind else []
        lines += (textwrap.dedent(paragraph) if kind else plain(paragraph)).split("\n")
    return [*lines, "```"] if fence else lines


def returned_classes() -> set[type]:
    """Classes of Mainstem that public methods return, and theirs, as far as a program can get hold of them."""
    known = {name for names in CHAPTERS.values() for name in names} | {"Sink", *mainstem.sinks.__all__}
    found: set[type] = set()
    waiting = [getattr(mainstem, name) for names in CHAPTERS.values() for name in names]
    while waiting:
        kind = waiting.pop()
        functions = [function for _, _, function in members(kind)] if inspect.isclass(kind) else [kind]
        hints = [(function.__annotations__.get("return", ""), function.__module__) for function in functions]
        if inspect.isclass(kind):
            hints += [(text, kind.__module__) for text in attributes(kind).values()]
        for hint, module in hints:
            for name in re.findall(r"\b[A-Z]\w+", annotation(hint)):
                value = resolved(name, module)
                if (
                    inspect.isclass(value)
                    and value.__module__.startswith("mainstem")
                    and not is_error(value)
                    and name not in known
                    and value not in found
                    and inspect.getdoc(value)
                ):
                    found.add(value)
                    waiting.append(value)
    return found


def resolved(name: str, module: str) -> Any:
    """What a name means in a module, also if only type checkers import it there."""
    here = importlib.import_module(module)
    if hasattr(here, name):
        return getattr(here, name)
    return getattr(importlib.import_module(imports(module)[name]), name) if name in imports(module) else None


@cache
def imports(module: str) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {
        name.asname or name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mainstem")
        for name in node.names
    }


def main(arguments: list[str]) -> int:
    made = pages()
    old = [name for name, text in made.items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text]
    if "--check" in arguments:
        for name in old:
            print(f"docs/reference/{name} is not current: run scripts/python_reference.py", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (FOLDER / name).write_text(made[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
