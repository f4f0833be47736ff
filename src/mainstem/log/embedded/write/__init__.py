"""The write side of a partition: appends, their group commit, durability, publication, recovery."""
