"""Queues: messages of a topic, taken, held by a lease, acknowledged one by one."""
