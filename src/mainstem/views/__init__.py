"""Views: keyed tables that flows keep current, one SQLite file for each version of one."""
