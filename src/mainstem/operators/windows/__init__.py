"""Windows of time: their kinds, their triggers, and their engines."""
