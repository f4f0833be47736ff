"""Real-time mode: plans that Spark can run continuously, their messages, and the record of a run's topics."""
