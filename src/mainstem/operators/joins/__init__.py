"""Joins of streams and lookups in tables: engines over Arrow, without Spark."""
