"""Aggregate functions: how they are written, and what is kept of rows so that two parts can be merged."""
