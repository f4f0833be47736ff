"""Topics as sources of Spark: streams, globs and bounded reads of both logs, and where a batch ends."""
