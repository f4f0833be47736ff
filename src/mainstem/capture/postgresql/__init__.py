"""PostgreSQL as a source of changes: logical replication (pgoutput)."""
