"""A poisoned message, and the dead letter queue.

A message that can never be processed is redelivered forever, unless its deliveries are limited. In Mainstem a queue has
`retry=`, a delay that grows with every delivery, and `deliveries_max=`; after that the message is *rejected*: it goes
to the topic `<topic>.<queue>.rejected` with its reason, and it never blocked the others.
"""

import itertools
import sys
import tempfile
import time

import mainstem

PAYMENTS = [{"id": "p-1", "amount": "12.50"}, {"id": "p-2", "amount": "twelve"}, {"id": "p-3", "amount": "8.00"}]
REJECTED = """
    SELECT id, rejection.cause, rejection.reason, rejection.deliveries,
           split_part(rejection.last_error, chr(10), 1) AS error
    FROM "payments.booking.rejected"
"""


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        payments = stem.create_topic("payments", schema="id string, amount string")
        retry = mainstem.Backoff("20 milliseconds", max="50 milliseconds")
        booking = payments.queue("booking", deliveries_max=4, retry=retry)
        payments.append(PAYMENTS)
        booked, failed_at = {}, []
        while taken := booking.take(wait="1 second"):
            message = taken[0]
            try:
                booked[message.row["id"]] = float(message.row["amount"])
            except ValueError as error:
                failed_at.append(time.monotonic())
                message.release(error=error)
            else:
                message.acknowledge()
        rejected = stem.query(REJECTED).to_pylist()

    waits = [round(1000 * (later - earlier)) for earlier, later in itertools.pairwise(failed_at)]
    delays = [min(20 * deliveries, 50) for deliveries in (1, 2, 3)]
    print("booked:", *booked)
    print("p-2 was tried 4 times, after at least", ", ".join(map(str, delays)), "milliseconds")
    print(f"rejected: {rejected[0]['id']}, {rejected[0]['reason']}")
    print(f"          {rejected[0]['error']}")

    found = {"booked": booked, "rejected": rejected, "early": [w for w, d in zip(waits, delays, strict=True) if w < d]}
    error = "ValueError: could not convert string to float: 'twelve'"
    reason = "given out 4 times without being acknowledged"
    row = {"id": "p-2", "cause": "deliveries", "reason": reason, "deliveries": 4, "error": error}
    expected = {"booked": {"p-1": 12.5, "p-3": 8.0}, "rejected": [row], "early": []}
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
