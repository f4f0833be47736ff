"""Real-time mode: plans that Spark can run continuously, their messages, and the note of how far a run is."""
