"""Capture: the changes of other databases, as records of topics."""

__all__: list[str] = []
