"""Views in a PostgreSQL database."""
