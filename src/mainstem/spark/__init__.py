"""The log as DataFrames: the session, sources, what is read from plans, and what a run keeps beside Spark's checkpoint."""
