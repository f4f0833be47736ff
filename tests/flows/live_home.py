"""A process that uses a home until it is killed: appends, transactions over two topics, sealing, compaction, a group.

    python live_home.py HOME

Appends a number a time, from 0 on; transfers go over two topics of two partitions each, and never change the total.
"""

import sys
from itertools import count

import mainstem


def main(home):
    stem = mainstem.open(home)
    numbers, left, right = stem.topic("numbers"), stem.topic("left"), stem.topic("right")
    latest = stem.topic("latest")
    member = numbers.join_group("readers")
    for number in count():
        numbers.append([{"n": number}])
        latest.append([{"key": number % 7, "n": number}])
        with stem.transaction() as transaction:
            transaction.append(left, [{"account": number % 5, "amount": number}])
            transaction.append(right, [{"account": number % 3, "amount": -number}])
        if number % 10 == 9:
            member.poll()
            member.commit()
        if number % 25 == 24:
            for topic in (numbers, left, latest):
                topic.seal()
            latest.compact()
        sys.stdout.write(".")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
