"""Law: a reader of a view over a captured table never sees half a transaction of the database; also when all is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.capture.captured_shop import CapturedShop
from tests.waiting import wait_until

pytestmark = pytest.mark.starts_servers

ACCOUNTS, BALANCE, TRANSFERS = 50, 1000, 10_000

TABLE = f"""
CREATE TABLE accounts (id int PRIMARY KEY, bank text, balance bigint, transfers bigint);
INSERT INTO accounts SELECT i, 'one', {BALANCE}, 0 FROM generate_series(1, {ACCOUNTS}) i;
CREATE PROCEDURE transfer(n int) LANGUAGE plpgsql AS $$
DECLARE one int; other int;
BEGIN
    FOR i IN 1..n LOOP
        one := 1 + floor(random() * {ACCOUNTS}); other := 1 + (one + floor(random() * {ACCOUNTS - 1})::int) % {ACCOUNTS};
        UPDATE accounts SET balance = balance - i, transfers = transfers + 1 WHERE id = one;
        UPDATE accounts SET balance = balance + i, transfers = transfers + 1 WHERE id = other;
        COMMIT;
    END LOOP;
END $$
"""


def transfer(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CALL transfer({count})".encode())


class Program:
    """The program in a process of its own, with all that it starts."""

    def __init__(self, shop: CapturedShop, said: Path) -> None:
        root = Path(__file__).parent.parent.parent
        with said.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.capture.bank_program", shop.home, shop.slot],
                stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, cwd=root,
                env={**os.environ, "PYTHONPATH": f"{root}/src:{root}"},
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(f"{shop.url}\n".encode())
        self._process.stdin.flush()
        self._said = said

    def check(self) -> None:
        assert self._process.poll() is None, self._said.read_text()[-3000:]

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_every_total_that_a_reader_sees_is_right(
    shop: CapturedShop, tmp_path: Path, kills: int, fault_report: Callable[..., None]
) -> None:
    shop.sql(TABLE)
    view = shop.stem.view("totals", key="bank")
    seen: list[tuple[int, int]] = []

    def look() -> int:
        rows = view.to_arrow().to_pylist() if view.exists else []
        seen.extend((row["total"], row["transfers"]) for row in rows)
        return int(rows[0]["transfers"]) if rows else -1

    done = 0
    with ThreadPoolExecutor(1) as pool:
        for number in range(kills + 1):
            program = Program(shop, tmp_path / "said")
            share = TRANSFERS // (kills + 1)
            written = pool.submit(transfer, shop.url, share)
            before = done
            # The last one is not killed before it has seen all.
            wanted = 2 * share * (number + 1) if number == kills else before + 1
            wait_until(lambda program=program, wanted=wanted: program.check() or look() >= wanted)  # type: ignore[misc]
            done = look()
            program.kill()
            written.result()
    wrong = [one for one in seen if one[0] != ACCOUNTS * BALANCE or one[1] % 2]
    fault_report("C1 transfers", points=kills, compared=len(seen), violations=wrong)
    assert seen[-1] == (ACCOUNTS * BALANCE, 2 * share * (kills + 1))
