"""Views in SQLite files in the home."""
