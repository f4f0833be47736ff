"""A view with history as an earlier version wrote it: it still tells what it was, and goes on.

The home in `sqlite_view_v2/` was written once by `python -m tests.formats.test_view_history_format` and stays as it is.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock, as_datetime
from mainstem.views.view import View
from tests.contracts.view_rows import SCHEMA, recorded, rows

FOLDER = Path(__file__).parent / "sqlite_view_v2"
TOKENS = ["orders@0:2", "orders@0:3,1:1", "orders@0:4", "orders@0:5"]


def write() -> None:
    """Three batches, the first of them trimmed since; another version that is put to use, and a batch into it."""
    clock = ManualClock()
    view = View(FOLDER / "home", "prices", key="store", history="1 hour", changes_age="1 minute", clock=clock)
    run, again = FlowRun("prices", epoch=3), FlowRun("prices", epoch=4, version=2)
    writer = view.writer(run, SCHEMA)
    for number, given in enumerate(
        [rows(Berlin=1, Lisbon=2), rows(Berlin=3), recorded(("Lisbon", None, 0, 1, "delete"), ("Quito", 5, 0, 2, ""))]
    ):
        writer.apply(given, Batch(number, run, {"orders": {0: number + 2, 1: number}}))
        clock.advance("40 minutes")
    writer.close()
    writer = view.writer(again, SCHEMA)
    writer.apply(rows(Berlin=3, Quito=6), Batch(0, again, {"orders": {0: 4, 1: 2}}))
    view.use(2)
    clock.advance("1 minute")
    writer.apply(rows(Osaka=None), Batch(1, again, {"orders": {0: 5, 1: 2}}))
    writer.close()
    view.close()
    (FOLDER / "expected.json").write_text(json.dumps(facts(View(FOLDER / "home", "prices")), indent=1) + "\n")


def facts(view: View) -> dict[str, Any]:
    """What it was, as of all that it can tell of."""
    described = view.describe()
    assert described.history_since is not None
    times = [as_datetime(commit) for commit in _commits(view)]
    found = {
        "history": str(described.history),
        "since": described.history_since.isoformat(),
        "times": {at.isoformat(): view.to_arrow(as_of=at).to_pylist() for at in times if at >= described.history_since},
        "tokens": {token: _told(view, token) for token in TOKENS},
    }
    view.close()
    return found


def _told(view: View, token: str) -> Any:
    try:
        return view.to_arrow(as_of=token).to_pylist()
    except Exception as error:  # noqa: BLE001 - which one is part of what is told
        return type(error).__name__


def _commits(view: View) -> list[int]:
    import sqlite3

    with sqlite3.connect(f"{view.home}/views/prices/v2.sqlite") as connection:
        return [at for (at,) in connection.execute("SELECT committed_at FROM commits ORDER BY end_position")]


def test_a_history_of_format_2_is_told_as_it_was_written_and_goes_on(tmp_path: Path) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())
    # A history that tells nothing would be told right as well.
    assert [type(expected["tokens"][token]) for token in TOKENS] == [str, list, list, list]
    home = shutil.copytree(FOLDER / "home", tmp_path / "home")
    assert facts(View(home, "prices")) == expected
    view, run = View(home, "prices", clock=ManualClock()), FlowRun("prices", 5, 2)
    writer = view.writer(run, SCHEMA)
    writer.apply(rows(Osaka=9), Batch(2, run, {"orders": {0: 6, 1: 2}}))
    writer.close()
    assert view.to_arrow(as_of="orders@0:5").to_pylist() == expected["tokens"]["orders@0:5"]
    assert view.get("Osaka", as_of="orders@0:6") == {"store": "Osaka", "amount": 9}
    view.close()


if __name__ == "__main__":
    write()
