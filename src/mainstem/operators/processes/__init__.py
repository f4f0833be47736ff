"""A user's own operator: its class, its state as text, its timers, and the engine that calls it."""
