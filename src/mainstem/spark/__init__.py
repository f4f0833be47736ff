"""The log as DataFrames: the session, sources, analysis of plans, and the files of a run beside Spark's checkpoint."""
