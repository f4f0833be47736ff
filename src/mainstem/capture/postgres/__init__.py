"""Change capture from PostgreSQL, by logical replication (pgoutput) and COPY."""
