"""Aggregate functions: how they are parsed, and their accumulators, which can be merged."""
