"""Changing tables: rows that are inserted and deleted, and the engines over them."""
