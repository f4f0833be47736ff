"""Upkeep: sealing, compaction, retention, verification, and the manifest of what is sealed."""
