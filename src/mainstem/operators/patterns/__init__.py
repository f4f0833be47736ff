"""Patterns: sequences of rows of one key, found by an automaton. Without Spark."""
