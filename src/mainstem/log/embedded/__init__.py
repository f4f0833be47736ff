"""The log as files in one directory, shared by any number of processes without a server."""
