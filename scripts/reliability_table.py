"""Put the figures of a run's fault tests into docs/reliability.md.

MAINSTEM_FAULT_REPORT=faults.jsonl make test
.venv/bin/python scripts/reliability_table.py faults.jsonl
"""

import json
import platform
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "reliability.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def table(lines: list[dict]) -> str:
    rows = ["| fault | test | points | compared | violations | seed | seconds |", "|---|---|--:|--:|--:|---|--:|"]
    for line in sorted(lines, key=lambda line: (str(line["fault"]), line["test"])):
        test = line["test"].rpartition("::")[2].replace("_", " ").removeprefix("test ")
        seed = "" if line["seed"] is None else line["seed"]
        figures = f"{line['points']:,} | {line['compared']:,} | {line['violations']:,} | {seed} | {line['seconds']}"
        rows.append(f"| {line['fault']} | {test} | {figures} |")
    return "\n".join(rows)


def main(report: str) -> None:
    lines = [json.loads(line) for line in Path(report).read_text().splitlines()]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    ran_on = f"Commit {commit or 'none'}, Linux {platform.release()}, Python {platform.python_version()}."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{ran_on}\n\n{table(lines)}\n{END}{after}")
    print(f"{PAGE.relative_to(REPOSITORY)}: {len(lines)} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
