"""The command `mainstem`: parses arguments, calls the Python interface, shows the result.

`command_tree` imports the module of a noun when it is called. The log, Arrow and DuckDB are imported inside the functions
that need them, so that `mainstem --help` and completion take a tenth of a second. Elsewhere only DuckDB is imported inside
functions for speed.
"""
