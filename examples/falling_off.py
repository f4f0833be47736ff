"""When a consumer cannot keep up: falling off the end of the log.

A log has a bounded history. A consumer that stops for long enough needs records that were dropped; the others are not
affected. In Mainstem a topic's `keep` is an age or a size; a reader that comes too late gets `FellOff` with the exact
range of the lost records, and can continue with the first retained one.
"""

import sys
import tempfile

import mainstem


def read_on(member) -> list[int]:
    numbers = []
    while (batch := member.poll()) is not None:
        numbers += batch.column("n").to_pylist()
    member.commit()
    return numbers


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("numbers", schema="n bigint")
        with topic.join_group("slow") as slow, topic.join_group("steady") as steady:
            read: dict[str, list[int]] = {"slow": [], "steady": []}
            for begin in range(0, 40, 10):
                topic.append([{"n": number} for number in range(begin, begin + 10)])
                topic.seal()  # one segment per round
                read["steady"] += read_on(steady)
                if begin == 0:
                    read["slow"] += read_on(slow)
            topic.append([{"n": number} for number in range(40, 50)])
            topic.alter(keep="1 byte")  # less than any segment: only the active one stays
            topic.drop_expired()
            try:
                slow.poll()
                lost = None
            except mainstem.FellOff as error:
                lost = error.first_lost, error.last_lost
                print("slow:  ", error.summary)
                slow.seek("earliest")
            read["slow"] += read_on(slow)
            read["steady"] += read_on(steady)

    print("slow    read", len(read["slow"]), "records, went on with", read["slow"][10])
    print("steady  read", len(read["steady"]), "records")
    found = [lost, read]
    expected = [(10, 39), {"slow": [*range(10), *range(40, 50)], "steady": [*range(50)]}]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
