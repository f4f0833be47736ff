"""What views, stores and captures in PostgreSQL share: addresses, connections, types, errors."""
