"""`mainstem` as a command: parses words, calls the Python interface, shows what came of it.

Modules here are imported when `mainstem` starts, so that it can print its help; the log, Arrow and DuckDB are not. They
are imported inside the functions that need them: `mainstem --help` then takes a tenth of a second instead of half of
one. Nothing else in Mainstem imports inside functions for speed alone but DuckDB.
"""
