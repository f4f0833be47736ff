"""The log as Spark DataFrames, read and written once."""
