"""mainstem sql: on a terminal, and from a file."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from mainstem.workbench.cli.main import main; main()", "sql"]
# Only a shell that hangs takes so long.
SECONDS_MAX = 120


@pytest.fixture
def sales(orders):
    orders.append([{"order_id": f"o-{n}", "store": "Berlin" if n % 2 else "Paris", "amount": n} for n in range(5)])
    return orders


# From a file or a pipe


def test_statements_of_standard_input_are_run_one_after_another(cli, sales):
    said = cli(
        "sql", "--json", stdin="SELECT count(*) AS n\nFROM orders; -- all\nSELECT max(amount) AS most FROM orders"
    )

    assert (said.status, said.err) == (0, "")
    assert said.lines == [{"n": 5}, {"most": 4.0}]


def test_after_an_error_it_goes_on_and_the_status_is_1(cli, sales):
    said = cli("sql", "--format", "csv", stdin="SELECT * FROM ordres;\nSELECT 1 AS n;\n")

    assert (said.status, said.out) == (1, "n\n1\n")
    first, _, hint = said.err.splitlines()
    assert first == 'mainstem.TopicNotFound: topic "ordres" does not exist'
    assert hint == 'Hint: Did you mean "orders"?'


def test_commands_with_a_dot(cli, stem, sales):
    said = cli("sql", stdin=".tables\n.columns orders\n.nonsense\nhelp\nexit;\nSELECT 1;\n")

    assert [line.split() for line in said.out.splitlines()[:3]][::2] == [["kind", "table"], ["topic", "orders"]]
    assert "order_id" in said.out
    assert ".help          show this" in said.out
    assert said.err == ".nonsense is not a command of this shell; .help lists them\n"


def test_nothing_to_do(cli, sales):
    assert cli("sql", stdin="") == (0, "", "")
    assert cli("sql", stdin=" ;; -- nothing\n") == (0, "", "")


# On a terminal


class Conversation:
    """A shell on a terminal of 60 columns, and what it has printed."""

    def __init__(self, home: Path) -> None:
        # Before it starts: readline takes the size when it begins.
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
            environment = {**os.environ, "TERM": "xterm", "HOME": str(home), "INPUTRC": "/dev/null"}
            for name in ("COLUMNS", "LINES", "XDG_STATE_HOME", "NO_COLOR"):
                environment.pop(name, None)
            os.execve(COMMAND[0], COMMAND, environment)
        self._printed = ""

    def until(self, text: str) -> str:
        """What it prints up to a text, without colours."""
        while text not in self._printed:
            ready, _, _ = select.select([self._terminal], [], [], SECONDS_MAX)
            assert ready, f"waits for {text!r} after {self._printed!r}"
            try:
                data = os.read(self._terminal, 65_536)
            except OSError:
                data = b""
            assert data, f"ended before {text!r}: {self._printed!r}"
            self._printed = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self._printed + data.decode())
        found, _, self._printed = self._printed.partition(text)
        return found.replace("\r", "")

    def say(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C. Python does not see one that comes between a prompt and its wait for a key, so it is typed again."""
        for _ in range(60):
            self.say("\x03")
            if select.select([self._terminal], [], [], 5)[0]:
                return
        raise AssertionError(f"it does not hear Ctrl-C after {self._printed!r}")

    def end(self) -> int:
        """The exit status."""
        try:
            while True:
                ready, _, _ = select.select([self._terminal], [], [], SECONDS_MAX)
                assert ready, "it does not end"
                if not os.read(self._terminal, 65_536):
                    break
        except OSError:
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.thorough
def test_a_conversation(place, stem):
    stem.create_topic("sales", schema="store STRING, amount DOUBLE").append(
        [{"store": "Berlin" if n % 2 else "Paris", "amount": n} for n in range(5)]
    )
    shell = Conversation(place)
    shell.until("mainstem> ")
    # Several lines, and a result that fits.
    shell.say("SELECT store, count(*) AS n,\n")
    shell.until("...> ")
    shell.say("repeat('x', 200) AS note FROM sales GROUP BY store ORDER BY store;\n")
    lines = shell.until("mainstem> ").splitlines()
    assert [line for line in lines if line.startswith("Berlin")] == [f"Berlin  {'2':>6}  {'x' * 43}…"]
    assert max(map(len, lines[-6:])) <= 60
    # An error, after which it goes on.
    shell.say("SELECT zebra FROM sales;\n")
    said = shell.until("mainstem> ")
    assert [line.split(":")[0] for line in said.splitlines() if ": " in line][:3] == [
        "mainstem.Invalid",
        "Detail",
        "Hint",
    ]
    # Tab completes a keyword, a topic and a column.
    shell.say("SEL\t max(amo\t) AS most FROM sal\t;\n")
    assert "4.0" in shell.until("mainstem> ")
    # Ctrl-C clears what was typed.
    shell.say("SELECT 'never\n")
    shell.until("...> ")
    shell.interrupt()
    shell.until("mainstem> ")
    shell.say(".help\n")
    assert "Ctrl-C clears a line" in shell.until("mainstem> ")
    # Ctrl-D ends it.
    shell.say("\x04")
    assert shell.end() == 0

    history = place / ".local/state/mainstem/sql_history"
    assert (history.stat().st_mode & 0o777, history.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert history.read_text().splitlines()[-2:] == ["SELECT max(amount) AS most FROM sales;", ".help"]

    # The next one remembers: twice up is the last statement.
    shell = Conversation(place)
    shell.until("mainstem> ")
    shell.say("\x1b[A\x1b[A")
    shell.until("FROM sales;")
    shell.say("\n")
    assert "4.0" in shell.until("mainstem> ")
    shell.say(".quit\n")
    assert shell.end() == 0
    assert len(history.read_text().splitlines()) == 6
