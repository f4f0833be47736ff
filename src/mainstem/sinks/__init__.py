"""Sinks outside the log: folders of Parquet files, written exactly once."""
