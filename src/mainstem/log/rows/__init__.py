"""Rows on their way into a topic and out of it: checked, converted, placed in a partition; schemas and their evolution."""
