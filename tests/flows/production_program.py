"""The program of `kafka_shop` on a Spark cluster, in a process of its own: HOME LOG VIEWS SPARK ROWS."""

import sys

import mainstem
from tests.flows.kafka_shop import flows


def main() -> None:
    home, log, views, spark = sys.argv[1:]
    with mainstem.open(home, log=log, views=views, spark=spark) as stem:
        stem.run(flows, until="idle")


if __name__ == "__main__":
    main()
