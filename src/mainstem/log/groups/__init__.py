"""Reader groups: several members share the partitions of a topic and commit how far they have read."""
