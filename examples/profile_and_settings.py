"""Table-table join: two changing tables side by side.

Profiles and settings of users come as two change streams. Their join is a table itself: a change on either side changes
it, and it includes users without settings. In Mainstem `table(rows, key=...)` makes a *changing table* of a stream of
facts, and a join of two of them emits a retraction of the old row and the new row; unchanged rows are not emitted.
"""

import random
import sys
import tempfile

import mainstem
from mainstem import Flow
from mainstem.operators import join, table

USERS = range(6)


def accounts(stem: mainstem.Mainstem):
    profiles = table(stem.topic("profiles").stream(), key="user")
    settings = table(stem.topic("settings").stream(), key="user")
    yield Flow(join(profiles, settings, on="user", how="left"), into=stem.view("accounts", key="user"))


def main(home: str) -> None:
    chance = random.Random(7)
    facts: dict[str, dict[int, str]] = {"profiles": {}, "settings": {}}
    columns = {"profiles": "name", "settings": "theme"}
    with mainstem.open(home) as stem:
        for topic, column in columns.items():
            stem.create_topic(topic, schema=f"user INT, {column} STRING", key="user")
        with stem.start(accounts) as running:
            for step in range(1, 6):
                for topic, column in columns.items():
                    for user in chance.sample(USERS, 3):
                        if user in facts[topic] and chance.random() < 0.3:
                            stem.topic(topic).delete([user])
                            del facts[topic][user]
                        else:
                            facts[topic][user] = f"{column} {chance.randint(1, 9)}"
                            stem.topic(topic).append([{"user": user, column: facts[topic][user]}])
                running.wait_until_idle()
                found = {
                    row["user"]: (row["name"], row["theme"]) for row in stem.view("accounts").to_arrow().to_pylist()
                }
                expected = {user: (name, facts["settings"].get(user)) for user, name in facts["profiles"].items()}
                with_settings = sum(theme is not None for _, theme in found.values())
                print(f"step {step}: {len(found)} accounts, {with_settings} of them with settings")
                if found != expected:
                    sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
