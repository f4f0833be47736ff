"""The tour: all examples in order, and the page with their output.

    python -m examples.tour              all of them; writes docs/tour.md
    python -m examples.tour replay ...   only these; writes nothing

The page is deterministic: measured figures are marked, and a different measurement is no reason to write the page
again.
"""

import contextlib
import importlib
import io
import re
import sys
import tempfile
from pathlib import Path

from mainstem import MainstemError

PAGE = Path(__file__).parent.parent / "docs" / "tour.md"

CHAPTERS = {
    "Transmitting events": [
        "polling_or_notified",
        "load_balancing_and_fan_out",
        "redelivery_reorders",
        "poisoned_message",
        "broker_or_log",
        "consumer_offsets",
        "falling_off",
        "replay",
        "constant_cost",
    ],
    "Databases and streams": [
        "dual_write_race",
        "compacted_log_is_a_table",
        "change_capture",
        "initial_snapshot",
        "outbox",
        "unbundled_database",
        "several_views",
        "read_your_own_writes",
        "changes_out_of_order",
    ],
    "Uses of processing": ["rates_and_rolling_averages"],
    "Time": [
        "event_or_processing_time",
        "knowing_when_you_are_ready",
        "declared_watermark",
        "whose_clock",
        "tumbling_hopping_sliding_session",
        "what_where_when_how",
        "sessions_across_batches",
        "fixed_windows_in_batch",
        "filtering_a_stream",
    ],
    "Joins": [
        "click_through_rate",
        "enrichment_as_of",
        "timeline_cache",
        "profile_and_settings",
        "tax_rate_changes",
    ],
    "Fault tolerance": [
        "crash_anywhere",
        "atomic_commit",
        "idempotent_by_offset",
        "rebuild_lost_state",
        "zombie_is_fenced",
        "state_three_ways",
    ],
    "Architectures": ["kappa_reprocess", "pipeline_of_jobs"],
}

HEAD = """# The tour

One short program for each idea of the field, using only the public interface. Each makes its own data, shows the point
in a few lines, and compares the result with an independent recomputation: `equal`, or the difference. This page is the
output of `make tour`; figures marked `(measured)` depend on the machine.
"""


def run(stop: str) -> str:
    """The output of an example; raises `SystemExit` with the difference if it found one."""
    main = importlib.import_module(f"examples.{stop}").main
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as home, contextlib.redirect_stdout(printed):
        main(home)
    return printed.getvalue()


def section(stop: str, printed: str) -> str:
    """An example on the page: the first line of its docstring is the heading, the rest the text."""
    title, _, text = (importlib.import_module(f"examples.{stop}").__doc__ or "").strip().partition(".\n\n")
    return f"\n### {title}\n\n{text}\n\n[{stop}](../examples/{stop}.py) printed:\n\n```text\n{printed}```\n"


def page(printed: dict[str, str]) -> str:
    """The whole page."""
    parts = [HEAD]
    for chapter, stops in CHAPTERS.items():
        parts.append(f"\n## {chapter}\n")
        parts += [section(stop, printed[stop]) for stop in stops]
    return "".join(parts)


def without_measures(text: str) -> str:
    """The text without the measured figures."""
    return re.sub(r"[\d.,]+(?=.*\(measured\)$)", "#", text, flags=re.MULTILINE)


def main(chosen: list[str]) -> int:
    printed: dict[str, str] = {}
    failed = []
    for chapter, stops in CHAPTERS.items():
        wanted = [stop for stop in stops if not chosen or stop in chosen]
        if wanted:
            print(f"{chapter}\n{'=' * len(chapter)}\n")
        for stop in wanted:
            print(stop, flush=True)
            try:
                printed[stop] = run(stop)
            except (SystemExit, MainstemError) as difference:
                failed.append(stop)
                printed[stop] = f"{difference}\n"
            print("".join(f"    {line}\n" for line in printed[stop].splitlines()))
    if unknown := set(chosen) - set(printed):
        print(f"there is no stop {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if failed:
        print(f"not equal: {', '.join(failed)}", file=sys.stderr)
        return 1
    print(f"{len(printed)} stop{'s' * (len(printed) != 1)}, all equal")
    text = page(printed) if not chosen else ""
    if text and (not PAGE.exists() or without_measures(PAGE.read_text()) != without_measures(text)):
        PAGE.write_text(text)
        print(f"written: {PAGE.relative_to(PAGE.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
