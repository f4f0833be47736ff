"""What a flow keeps in the home and beside Spark's checkpoint, and whether it fits the log and the sink."""
