"""What the tests of the log share: the report of what the fault tests have tried."""

import json
import os
import time
from collections.abc import Callable, Sequence

import pytest


@pytest.fixture
def fault_report(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Judges a fault test: fails it if anything was violated, and writes its figures down where the run wants them.

    `points`: how many faults were tried. `compared`: how many facts (acknowledged records, blocks) were looked at after
    them. With MAINSTEM_FAULT_REPORT set, a line of JSON is added to that file.
    """
    started = time.perf_counter()

    def report(
        fault: str, *, points: int, compared: int, violations: Sequence[object], seed: object = None, **more: object
    ) -> None:
        line = {
            "fault": fault,
            "test": request.node.nodeid,
            "points": points,
            "compared": compared,
            "violations": len(violations),
            "seed": seed,
            "seconds": round(time.perf_counter() - started, 1),
            **more,
        }
        print(json.dumps(line))
        if path := os.environ.get("MAINSTEM_FAULT_REPORT"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        first = "".join(f"\n  {violation}" for violation in violations[:10])
        assert not violations, (
            f"{fault}: {points} points, {compared} compared, {len(violations)} violations{first}\n{line}"
        )
        assert points > 0, f"{fault}: no point was tried"
        assert compared > 0, f"{fault}: nothing was compared"

    return report
