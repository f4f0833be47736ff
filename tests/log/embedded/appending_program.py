"""Appends one record after another and says what became of each: the process under test of the system call injectors.

    python -m tests.log.embedded.appending_program HOME APPENDS [MUTANT]

Prints a line for each append: `acknowledged OFFSET ID` or `refused ERROR`. After a refusal it goes on: a later append
must be refused too if an fsync failed.
"""

import sys
from contextlib import nullcontext

import pyarrow.parquet  # noqa: F401 - now: libfiu locks up when a library is loaded while another thread is at work

import mainstem
from mainstem.errors import MainstemError
from tests.log.embedded.forked_writers import TOPIC
from tests.log.embedded.mutants import mutant


def main(home: str, appends: int) -> None:
    with mainstem.open(home) as stem:
        topic = stem.topic(TOPIC)
        for number in range(appends):
            try:
                placed = topic.append([{"id": number, "what": "x"}], partition=0)
                print("acknowledged", placed.offsets[0][0], number, flush=True)
            except MainstemError as error:
                print("refused", type(error).__name__, error.summary, flush=True)


if __name__ == "__main__":
    with mutant(sys.argv[3]) if len(sys.argv) > 3 else nullcontext():
        main(sys.argv[1], int(sys.argv[2]))
