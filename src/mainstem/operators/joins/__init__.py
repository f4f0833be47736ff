"""Joins of streams and look-ups in tables: engines over Arrow, without Spark."""
