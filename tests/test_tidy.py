"""The house lint: what no linter knows. A failure names file and line, and says what to write instead."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "src" / "mainstem"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))

# A number of seconds below one, but not nothing.
_MOMENT = r"(?:0?\.\d+|\d+(?:\.\d+)?e-\d+)"
SLEEP = re.compile(
    r"\b(?:time|asyncio)\.sleep\(|\bTimer\("
    rf"|\.(?:wait|join|acquire|get|result|poll|select)\((?:[^()]*[\s,])?(?:timeout=)?{_MOMENT}\s*[,)]"
)

VAGUE = {"util", "helper", "common", "base", "core", "manager", "misc", "stuff"}


@dataclass(frozen=True)
class Rule:
    """Names that only some places may use, what to write everywhere else, and which places those are."""

    names: frozenset[str]
    instead: str
    places: tuple[str, ...] = ()

    def allows(self, place: str) -> bool:
        return any(place == allowed or place.startswith(f"{allowed}/") for allowed in self.places)


RULES = [
    Rule(
        frozenset(
            [
                "time.time",
                "time.time_ns",
                "time.localtime",
                "time.gmtime",
                "datetime.datetime.now",
                "datetime.datetime.utcnow",
                "datetime.datetime.today",
                "datetime.date.today",
            ]
        ),
        "take a Clock (mainstem.clock) and call clock.now(), so that a test can move time",
        places=("clock.py",),
    ),
    Rule(
        frozenset(["print", "sys.stdout", "sys.stderr"]),
        "raise, return, or log: only the workbench talks to a person",
        # A run on a terminal says what it does. A fork has the streams of the process that it stands for.
        places=("workbench", "flows/run_notes.py", "spark/warm_workers.py"),
    ),
    Rule(
        frozenset(["os.environ", "os.getenv", "os.putenv"]),
        "take it as a parameter; the environment is read in settings.py and workbench/cli/ alone",
        # Spark takes its settings from the environment, a fork has that of the process that it stands for, and whoever kills a
        # process cannot hand it a parameter.
        places=(
            "settings.py",
            "workbench/cli",
            "spark/spark_session.py",
            "spark/warm_client.py",
            "spark/warm_workers.py",
            "crash_points.py",
        ),
    ),
    Rule(
        frozenset(
            [
                "pickle.loads",
                "pickle.load",
                "pickle.Unpickler",
                "marshal.loads",
                "marshal.load",
                "shelve.open",
                "yaml.load",
                "yaml.unsafe_load",
                "jsonpickle.decode",
                "eval",
                "exec",
            ]
        ),
        "read data as JSON or Arrow: this one runs whatever program the bytes hold",
    ),
    Rule(
        frozenset(["os.system", "os.popen"]),
        "subprocess.run([...]) with a list of arguments: a shell would take a name for a command",
    ),
]


def place_of(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def shown(module: Path) -> str:
    return module.relative_to(REPOSITORY).as_posix()


def is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def numbered(module: Path) -> list[tuple[int, str]]:
    return list(enumerate(module.read_text().splitlines(), start=1))


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(), filename=shown(module))


def names_used(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and full name of everything a module uses: `from time import time as t; t()` uses time.time."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            origins |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    used = []
    for node in ast.walk(tree):
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            used.append((inner.lineno, ".".join([origins.get(inner.id, inner.id), *reversed(parts)])))
    return used


def offences(tree: ast.Module, place: str) -> list[tuple[int, str, str]]:
    return sorted(
        {
            (line, name, rule.instead)
            for line, name in names_used(tree)
            for rule in RULES
            if name in rule.names and not rule.allows(place)
        }
    )


def test_everything_stands_where_it_belongs():
    found = [
        f"{shown(module)}:{line}: {name}; instead: {instead}"
        for module in MODULES
        for line, name, instead in offences(parsed(module), place_of(module))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.time()",
        "import time as t; t.time_ns()",
        "from time import time as now; now()",
        "import datetime; datetime.datetime.now()",
        "from datetime import datetime; datetime.now(UTC)",
        "from datetime import datetime as moment; moment.utcnow()",
        "print('hello')",
        "import sys; sys.stdout.write('hello')",
        "import os; os.environ['HOME']",
        "import os; os.getenv('HOME')",
        "from os import environ; environ.get('HOME')",
        "import pickle; pickle.loads(b'')",
        "from yaml import load; load('')",
        "eval('1')",
        "import os; os.system('ls')",
    ],
)
def test_the_lint_sees_what_it_is_to_see(source):
    assert len(offences(ast.parse(source), "log/topic.py")) == 1


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import time; time.time_ns()", "clock.py"),
        ("import time; time.monotonic()", "log/topic.py"),
        ("print('hello')", "workbench/cli/main.py"),
        ("import os; os.environ['HOME']", "workbench/cli/main.py"),
        ("import os; os.environ['HOME']", "settings.py"),
        ("clock.time(); topic.print(); self.eval(1)", "log/topic.py"),
    ],
)
def test_the_lint_leaves_alone_what_is_right(source, place):
    assert offences(ast.parse(source), place) == []


def test_no_two_files_share_a_name():
    counts = Counter(module.name for module in MODULES if module.name not in ("__init__.py", "__main__.py"))
    twice = [shown(module) for module in MODULES if counts[module.name] > 1]
    assert not twice, f"a traceback must need no folder; name each after what is special to it: {', '.join(twice)}"


def test_no_vague_names():
    vague = [
        f'{shown(module)}: "{word}" says nothing; name it after its subject, as durations.py is'
        for module in MODULES
        for part in module.relative_to(PACKAGE).with_suffix("").parts
        for word in part.split("_")
        if word.removesuffix("s") in VAGUE
    ]
    assert not vague, "\n" + "\n".join(vague)


def test_every_module_says_what_it_is():
    silent = [shown(module) for module in [*MODULES, *TESTS] if not ast.get_docstring(parsed(module))]
    assert not silent, f"begin with a docstring that says what is in the file: {', '.join(silent)}"


def test_every_folder_is_a_package():
    # Without it import-linter does not look inside, and says nothing.
    bare = sorted({shown(m.parent) for m in MODULES if not (m.parent / "__init__.py").exists()})
    assert not bare, f"add an __init__.py with a docstring to: {', '.join(bare)}"


def test_inside_the_package_nothing_comes_from_the_root():
    # The root knows every layer, so importing from it would let a lower one reach a higher one.
    found = [
        f"{shown(module)}:{node.lineno}: import {name.name} from the module that defines it"
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ImportFrom) and node.module == "mainstem"
        for name in node.names
        if name.name != "__version__" and not is_module(name.name)
    ]
    assert not found, "\n" + "\n".join(found)


def sleeps(line: str) -> bool:
    """Whether a line sleeps, or waits for less than a second: for the machine, then, and not for what is to happen."""
    return SLEEP.search(line) is not None


def test_operators_do_not_ask_whether_a_test_runs_them():
    asking = re.compile(r"scripted|isinstance\((rows|frame|changes|left|right)\b")
    found = [shown(module) for module in MODULES if "operators" in module.parts and asking.search(module.read_text())]
    assert not found, f"let the class of rows register its own form of the step (singledispatch): {', '.join(found)}"


def test_no_test_sleeps():
    # In the text, not the tree: programs that tests write for other processes count too.
    places = [test for test in TESTS if test not in (Path(__file__), REPOSITORY / "tests" / "waiting.py")]
    asleep = [f"{shown(test)}:{n}" for test in places for n, line in numbered(test) if sleeps(line)]
    assert not asleep, (
        "move a ManualClock, wait for the event itself with a time limit nobody reaches, or use "
        f"tests.waiting.wait_until: {', '.join(asleep)}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(3)",
        "await asyncio.sleep(0.5)",
        "threading.Event().wait(0.05)",
        "done.wait(timeout=.1)",
        "thread.join(0.001)",
        "process.wait(5e-2)",
        "lock.acquire(timeout=0.2)",
        "rows = queue.get(timeout=0.25)",
        "ready = select.select([pipe], [], [], 0.1)",
        "threading.Timer(0.2, interrupt).start()",
        "threading.Timer(2, interrupt).start()",
    ],
)
def test_a_sleep_is_seen(line):
    assert sleeps(line)


@pytest.mark.parametrize(
    "line",
    [
        "assert done.wait(60)",
        "assert not done.wait(0)",
        "thread.join()",
        "thread.join(SECONDS_MAX)",
        'row = view.get(7, wait="0 seconds")',
        "monkeypatch.setattr(time, 'sleep', waited.append)",
        "', '.join(names)",
    ],
)
def test_a_wait_for_an_event_is_no_sleep(line):
    assert not sleeps(line)


def test_packages_are_pinned_by_name_and_version_alone():
    lines = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    strange = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
    assert not strange, f'write "name==version" and no address: {strange}'
    assert len({line.partition("==")[0] for line in lines}) == len(lines)
