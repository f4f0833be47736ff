"""The files of a flow in the home and beside Spark's checkpoint, and whether they match the log and the sink."""
