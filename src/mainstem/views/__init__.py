"""Views: keyed tables that flows keep current, in SQLite files or in a PostgreSQL database."""
