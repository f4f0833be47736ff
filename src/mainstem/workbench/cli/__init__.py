"""The command `mainstem`: parses arguments, calls the Python interface, shows the result.

The modules here are imported when `mainstem` starts, so that it can print its help. The log, Arrow and DuckDB are
imported inside the functions that need them: so `mainstem --help` takes a tenth of a second instead of half a second.
Elsewhere only DuckDB is imported inside functions for speed.
"""
