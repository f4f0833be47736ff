"""Programs of examples/ in one process, each in a home of its own: python -m tests.programs.production_examples FOLDER NAME ...

What a program prints is left in FOLDER/<name>.printed. Where its log, its views and its Spark are is said by the home and the
environment: the programs are as they stand.
"""

import contextlib
import importlib
import io
import shutil
import sys
import traceback
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mainstem
from tests.programs.production_shop import ShopEvents, append, flows, make_topics

SHOP = "shop"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run_shop(home: str) -> None:
    """An hour of the shop, in three parts."""
    events = ShopEvents(0)
    with mainstem.open(home) as stem:
        make_topics(stem)
        append(stem, events.customers())
        with stem.start(flows) as running:
            for part in range(3):
                steps = [events.at(NOON + timedelta(minutes=20 * part + minute), orders=8) for minute in range(20)]
                append(stem, {topic: [row for step in steps for row in step[topic]] for topic in steps[0]})
                running.wait_until_idle()


def lose(path: Path) -> None:
    """As `shutil.rmtree`; a view that is in a database is lost there."""
    if path.parent.name == "views" and not path.exists():
        with mainstem.open(path.parent.parent) as stem:
            stem.view(path.name).drop()
    else:
        shutil.rmtree(path)


def run(name: str, home: str) -> str:
    """What a program printed, or what went wrong."""
    if name == SHOP:
        main = run_shop
    else:
        program = importlib.import_module(f"examples.{name}")
        main = program.main
        if name == "rebuild_lost_state":
            program.shutil = types.SimpleNamespace(rmtree=lose)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            main(home)
        except SystemExit as different:
            print(different)
        except Exception:  # noqa: BLE001 - the test shows it
            traceback.print_exc(file=printed)
    return printed.getvalue()


def main(folder: str, *names: str) -> None:
    for name in names:
        Path(folder, f"{name}.printed").write_text(run(name, f"{folder}/{name}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
